"""Where the records of a CSV file end, found without parsing them: a line feed that is in no quoted field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

_CHUNK = 1 << 24
_LINE_FEED, _RETURN, _QUOTE = b"\n"[0], b"\r"[0], b'"'[0]


class BadQuote(Exception):  # noqa: N818 - what it means is for who reads the file to say
    """A quote that fits nowhere: the byte where it stands, and why."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(why)
        self.at, self.why = at, why


class Quotes:
    """Which bytes of a file are in quoted fields, told from chunk to chunk.

    A field is quoted if a quote is its first byte; a doubled quote in it is a quote. In a field that does not begin
    with one a quote is a character like others.
    """

    def __init__(self, delimiter: bytes, at: int = 0) -> None:
        """`at` is where the first chunk begins, at the beginning of a record."""
        self._begins = np.zeros(256, bool)
        self._begins[[delimiter[0], _LINE_FEED, _RETURN]] = True
        self._ends = self._begins.copy()
        self._at, self._before = at, _LINE_FEED
        self._opened: int | None = None  # where the field begins that is still open

    def record_ends(self, chunk: bytes) -> np.ndarray:
        """The places (int64, in the chunk) of the line feeds that end a record. No chunk but the last one may end with
        a quote.

        Raises BadQuote where text follows the end of a quoted field.
        """
        data = np.frombuffer(chunk, np.uint8)
        (feeds,) = (data == _LINE_FEED).nonzero()
        if self._opened is not None or b'"' in chunk:
            (quotes,) = (data == _QUOTE).nonzero()
            quotes = self._counted(data, quotes)
            inside = (quotes.searchsorted(feeds) + (self._opened is not None)) % 2 == 1
            if len(quotes) and (len(quotes) + (self._opened is not None)) % 2:
                self._opened = self._at + int(quotes[-1])
            elif len(quotes):
                self._opened = None
            feeds = feeds[~inside]
        self._at += len(chunk)
        self._before = data[-1]
        return feeds

    def finish(self) -> None:
        """Raises BadQuote where a quoted field has no end."""
        if self._opened is not None:
            raise BadQuote(self._opened, "a quoted field has no end")

    def _counted(self, data: np.ndarray, quotes: np.ndarray) -> np.ndarray:
        """The quotes that open and close fields in turn, without those that are characters."""
        before = np.concatenate([[self._before], data[:-1]]).astype(np.uint8)[quotes]
        after = np.concatenate([data[1:], [_LINE_FEED]]).astype(np.uint8)[quotes]
        begins, ends = self._begins[before], self._ends[after] | (after == _QUOTE)
        first = 0
        while True:
            opens = (np.arange(len(quotes)) + (self._opened is not None)) % 2 == 0
            doubled = np.diff(quotes, prepend=-2) == 1
            (wrong,) = (~np.where(opens, begins | doubled, ends))[first:].nonzero()
            if not len(wrong):
                return quotes
            first += int(wrong[0])
            if not opens[first]:
                raise BadQuote(self._at + int(quotes[first]), "text follows the end of a quoted field")
            quotes, begins, ends = (np.delete(values, first) for values in (quotes, begins, ends))


def chunks_of(file: BinaryIO) -> Iterator[bytes]:
    """The rest of a file in pieces, of which none but the last one ends with a quote."""
    while chunk := file.read(_CHUNK):
        while chunk.endswith(b'"') and (more := file.read(1)):
            chunk += more
        yield chunk
