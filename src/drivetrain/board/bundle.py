"""The page in one file: its modules as functions, since browsers load no modules from a file."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

_COMMENT = re.compile(r"^[ \t]*(?:/\*.*?\*/|//[^\n]*)[ \t]*\n?", re.MULTILINE | re.DOTALL)
_MARGIN = re.compile(r"^[ \t]+", re.MULTILINE)
_IMPORT = re.compile(r'^import\s+(?P<what>[^;]*?)\s+from\s+"(?P<path>[^"]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?P<kind>async function|function|class|const) (?P<name>\w+)", re.MULTILINE)
_ONEFILE = "onefile/"  # what stands for the modules that would ask the board
_POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; media-src data:; "
    "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)


def bundled(vendored: str, modules: Mapping[str, str], styles: str, kept: Mapping[str, Any]) -> str:
    """The page with what it takes of others, its modules (by path below `static/`), styles, and what it asks the board
    for. Its policy lets in these very scripts and styles, by their hashes, and nothing from elsewhere."""
    script = f"{vendored}\n{_script(modules)}"
    policy = _POLICY.format(script=_hash(script), style=_hash(styles))
    ids = ",".join(run["id"] for run in kept["answers"]["/api/runs"]["runs"])
    # In base 64 no text of a user can end the element that it stands in.
    data = base64.b64encode(gzip.compress(json.dumps(kept, allow_nan=False).encode(), mtime=0)).decode()
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="content-security-policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Drivetrain report</title>\n<style>{styles}</style>\n</head>\n<body>",
            '<a class="skip" href="#main">Skip to the content</a>',
            '<header><p class="name"><a href="#page=runs">Drivetrain report</a></p><nav aria-label="Pages">'
            f'<a href="#page=runs">Runs</a><a href="#page=compare&amp;runs={ids}">Compare</a></nav>'
            '<output id="state" aria-live="polite"></output></header>',
            '<main id="main" tabindex="-1"></main>\n<div id="alerts" role="alert"></div>',
            f'<script type="text/plain" id="kept">{data}</script>',
            f"<script>{script}</script>\n</body>\n</html>\n",
        ]
    )


def _script(modules: Mapping[str, str]) -> str:
    parts = [f"{json.dumps(path)}: (exports, take) => {{\n{_part(path, text)}\n}}" for path, text in modules.items()]
    # A module's own names are made before its body runs: two that import each other find them.
    return (
        '(() => {\n"use strict";\nconst made = {};\n'
        "const take = (path) => {\nif (!(path in made)) { made[path] = {}; parts[path](made[path], take); }\n"
        "return made[path];\n};\n"
        f"const parts = {{\n{','.join(parts)}\n}};\n"
        'take("board.js");\n})();'
    )


def _part(path: str, text: str) -> str:
    """A module as the body of a function that is given its exports, and what gives it others' exports."""
    # Comments are for who reads the modules; some of them have lines that look like exports.
    text = _MARGIN.sub("", _COMMENT.sub("", text))
    names = [found["name"] for found in _EXPORT.finditer(text)]
    functions = [found["name"] for found in _EXPORT.finditer(text) if "function" in found["kind"]]
    text = _IMPORT.sub(lambda found: _taken(path, found), text)
    text = _EXPORT.sub(r"\g<kind> \g<name>", text)
    early = "".join(f"exports.{name} = {name};\n" for name in functions)
    late = "".join(f"exports.{name} = {name};\n" for name in names if name not in functions)
    return f"{early}{text}\n{late}"


def _taken(path: str, found: re.Match[str]) -> str:
    names = found["what"].replace(" as ", ": ")
    return f"const {names} = take({_resolved(path, found['path'])});\n"


def _resolved(path: str, asked: str) -> str:
    """The path below `static/` of what a module asks for; in one file the board's answers lie there too."""
    folder = path.rpartition("/")[0]
    parts = folder.split("/") if folder else []
    for part in asked.split("/"):
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    name = "/".join(parts)
    return json.dumps(f"{_ONEFILE}{name}" if name in ("api.js", "events.js") else name)


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
