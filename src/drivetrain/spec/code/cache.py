"""What was read from sources before, by the SHA-256 of their content: parsing is most of a scan's time.

Nothing in it can be stale, so files need no times; a damaged or missing cache only costs time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from drivetrain.spec.code.canonical import Import, ModuleSyntax, read_syntax
from drivetrain.spec.files import write_private

_VERSION = 1
"""Of the digests: another one where `canonical` writes trees in another way."""


class SyntaxCache:
    """What the last scan for a folder has read; one file a folder, so that it does not grow."""

    def __init__(self, folder: str = "") -> None:
        """Without a folder nothing is remembered."""
        self._path = cache_path(folder) if folder else None
        self._known = _load(self._path) if self._path else {}
        self._used: dict[str, ModuleSyntax] = {}

    def read(self, source: bytes) -> ModuleSyntax:
        """What `read_syntax` gives."""
        key = hashlib.sha256(source).hexdigest()
        if key not in self._used:
            self._used[key] = self._known.get(key) or read_syntax(source)
        return self._used[key]

    def save(self) -> None:
        """Remember what was read since this was made, where that is anything new."""
        if self._path is None or self._used.keys() <= self._known.keys():
            return
        told = {key: _written(one) for key, one in self._used.items()}
        with suppress(OSError):  # no home, a disk that is full: the next start parses again
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(self._path, json.dumps({"version": _VERSION, "sources": told}).encode())


def cache_path(folder: str) -> Path:
    """Below $XDG_CACHE_HOME, or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    home = Path(base) if base else Path.home() / ".cache"
    return home / "drivetrain" / "code" / f"{hashlib.sha256(folder.encode()).hexdigest()[:16]}.json"


def _written(one: ModuleSyntax) -> tuple[object, ...]:
    """Plain data, which `_load` reads again."""
    imports = [(each.module, each.names, each.level) for each in one.imports]
    return one.digest, imports, one.declared


def _load(path: Path) -> dict[str, ModuleSyntax]:
    """What the file has; nothing where it is damaged, or another version's."""
    known: dict[str, ModuleSyntax] = {}
    if not path.is_file():  # a pipe in its place would be waited for
        return {}
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        kept = json.loads(path.read_bytes())
        if kept["version"] != _VERSION:
            return {}
        for key, (digest, imports, declared) in kept["sources"].items():
            read = tuple(_import(*each) for each in imports)
            files = tuple((_text(owner), texts and tuple(map(_text, texts))) for owner, texts in declared)
            known[key] = ModuleSyntax(_text(digest), read, files)
    return known


def _import(module: object, names: Iterable[object], level: object) -> Import:
    if not isinstance(level, int):
        raise TypeError(f"{level!r} is no number")
    return Import(_text(module), tuple(map(_text, names)), level)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
