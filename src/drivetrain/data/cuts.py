"""Where files of lines and long texts are cut: at places that follow from the content alone.

So a command that is started again, whatever read ahead of it, cuts the same.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from drivetrain.data.inputs import Input, Kind

_STEP = {"text": 1 << 20, "jsonl": 2 << 20}  # bytes from one cut to the next
_SEARCH = 1 << 16  # bytes after a step in which the end of a line is looked for in a text
_LINE = re.compile(rb"\n(?=\S)")  # most tokenizers cut words here anyway


def find_cut(buffer: bytes, at: int, kind: Kind, ended: bool) -> int | None:
    """The first place at or after `at` (at least 1) where a piece may end; None where more bytes are needed to tell.

    For JSON lines, that is the end of a line. For texts, the end of a line that no white space follows, or, where that
    is far away, between two characters.
    """
    if kind == "jsonl":
        end = buffer.find(b"\n", at - 1) + 1
        if not end and ended:
            return len(buffer)
        return end or None
    # With fewer bytes than the search looks at, the answer would depend on how much happened to be read.
    if len(buffer) < at + _SEARCH + 4 and not ended:
        return None
    if found := _LINE.search(buffer, at - 1, at + _SEARCH):
        return found.end()
    if ended and len(buffer) <= at + _SEARCH:
        return len(buffer)
    # Bytes 10xxxxxx go on in a character of UTF-8, of which there are at most three; more of them are no UTF-8.
    for end in range(at, min(at + 4, len(buffer))):
        if buffer[end] & 0xC0 != 0x80:
            return end
    return len(buffer)


def plain_ranges(source: Input) -> Iterator[tuple[int, int]]:
    """Where the pieces of a file that is not compressed begin and end. Raises EOFError where it became shorter."""
    step, start = _STEP[source.kind], 0
    with open(source.path, "rb") as file:
        while start < source.size:
            stop = _plain_cut(file, (start // step + 1) * step, source)
            yield start, stop
            start = stop


def _plain_cut(file: BinaryIO, at: int, source: Input) -> int:
    width = _SEARCH
    while at < source.size:
        file.seek(at - 1)
        window = file.read(width + 8)
        if not window:
            raise EOFError("it became shorter")
        ended = at - 1 + len(window) >= source.size
        cut = find_cut(window, 1, source.kind, ended)
        if cut is not None:
            return at - 1 + cut
        width *= 4  # a long line
    return source.size


def unpacked_ranges(stream: Any, kind: Kind) -> Iterator[tuple[int, int, bytes, bool]]:
    """The same cuts in a stream that can only be read in order: (start, stop, bytes, whether it is the last)."""
    step, start, ended, buffer = _STEP[kind], 0, False, b""
    while not ended:
        block = stream.read(step)
        ended = not block
        buffer += block
        while buffer:
            # Steps count from the file's beginning, as in `plain_ranges`, not from the cut before.
            at = (start // step + 1) * step - start
            cut = None
            if at < len(buffer):
                cut = find_cut(buffer, at, kind, ended)
            elif ended:
                cut = len(buffer)
            if cut is None:
                break
            yield start, start + cut, buffer[:cut], ended and cut == len(buffer)
            start, buffer = start + cut, buffer[cut:]


def parts_of(text: bytes) -> Iterable[bytes]:
    """A long document in parts, cut as a text file is, so that a tokenizer's memory has a bound."""
    step = _STEP["text"]
    if len(text) <= step + _SEARCH:  # the longest piece of a text file
        return [text]
    return [part for _, _, part, _ in unpacked_ranges(io.BytesIO(text), "text")]
