"""Lines of JSON: the object in each, and the texts in one field of them."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.registry import nearest

HEAD = 1 << 16
"""Bytes from a file's beginning that `refuse_array` looks at."""
_BOM = b"\xef\xbb\xbf"


class BadDocument(NamedTuple):
    """A line or row that holds no document; `line` counts from 0 within its piece."""

    line: int
    why: str


def refuse_array(head: bytes, path: str) -> None:
    """Raises Failure(65) where a file that should have lines of JSON is one array, which nobody reads in parts."""
    if head.removeprefix(_BOM).lstrip().startswith(b"["):
        hint = "write one object a line, as `jq -c '.[]'` does"
        raise Failure(Exit.BAD_DATA, f"{path} begins with '[': one array, not lines of JSON objects", hint, file=path)


def json_object(line: bytes) -> dict[str, Any]:
    """The object in a line of JSON. Raises ValueError, or RecursionError, where there is none."""
    value = json.loads(line.removeprefix(_BOM).decode())
    if not isinstance(value, dict):
        raise ValueError("is no JSON object")
    return value


def texts_in(data: bytes, field: str) -> tuple[list[bytes], list[BadDocument], int]:
    """The texts of whole lines, the lines that have none, and how many lines there are; blank ones count as lines."""
    found: list[bytes] = []
    bad: list[BadDocument] = []
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines):
        if not line or line.isspace():
            continue
        try:
            found.append(_text_of(line, field))
        except (ValueError, RecursionError) as error:
            bad.append(BadDocument(number, str(error)))
    return found, bad, len(lines)


def _text_of(line: bytes, field: str) -> bytes:
    value = json_object(line)
    if field not in value:
        raise ValueError(f"has no {field!r}{nearest(field, list(value))}")
    text = value[field]
    if not isinstance(text, str):
        raise ValueError(f"{field!r} is no text")
    return text.encode()  # a lone surrogate, which JSON can write, is no text
