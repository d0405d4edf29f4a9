"""Documents in files: text, JSON lines, Parquet and Arrow, plain or compressed, cut into tasks.

A text file is one document. Tasks follow from the files alone, so a command that is started again cuts them the same.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from drivetrain.data.compressed import unpacked
from drivetrain.data.cuts import plain_ranges, unpacked_ranges
from drivetrain.data.inputs import Input, Kind, changed
from drivetrain.data.json_lines import HEAD, BadDocument, refuse_array, texts_in
from drivetrain.data.text_columns import Texts, text_rows
from drivetrain.spec.exits import Exit, Failure

_TASK = 2 << 20  # bytes of text in a task
_TASK_PIECES = 256
_HASHED = 1 << 30  # bytes of an input up to which its digest is taken; beyond, its time of change stands for it
_DAMAGED = (EOFError, zlib.error, lzma.LZMAError, OSError, ValueError)


@dataclass(frozen=True)
class InputPart:
    """A part of an input, of whole lines or rows where it has such.

    Plain files are read by who works on them, from `start` to `stop`; what must be read in order comes along, as
    `data`. `inside` says that it begins within a document, `open` that its last document goes on in the next piece.
    """

    number: int  # of its input
    path: str
    kind: Kind
    start: int
    stop: int
    data: bytes | Texts | None = None
    inside: bool = False
    open: bool = False

    @property
    def size(self) -> int:
        """Bytes of text."""
        if isinstance(self.data, tuple):
            return sum(len(row or b"") for row in self.data)
        return self.stop - self.start


class TokenizeJob(NamedTuple):
    """Pieces to tokenize in order, and inputs to take digests of: (number, path). `cost` is in bytes of the files."""

    pieces: tuple[InputPart, ...]
    digests: tuple[tuple[int, str], ...]
    cost: int


def tasks_left(inputs: Sequence[Input], field: str, done: int, place: tuple[int, int]) -> Iterator[TokenizeJob]:
    """The tasks after the first `done`, which ended at a `place`: an input's number, and how many rows of it.

    Files are cut again from the beginning. Of shards, none that is done is fetched again.
    """
    if inputs and inputs[0].hub:
        return tasks(inputs, field, place)
    return islice(tasks(inputs, field), done, None)


def tasks(inputs: Sequence[Input], field: str, place: tuple[int, int] = (0, 0)) -> Iterator[TokenizeJob]:
    """All tasks in order, from a place on where rows before it are left out; a pure function of the inputs' content.

    Raises Failure(65) where an input is damaged.
    """
    pieces: list[InputPart] = []
    digests: list[tuple[int, str]] = []
    size = cost = 0
    first, rows = place
    for number, source in islice(enumerate(inputs), first, None):
        for piece, spent in _pieces(number, source, field):
            if number == first and piece.start < rows:
                continue
            pieces.append(piece)
            size, cost = size + piece.size, cost + spent
            if size >= _TASK or len(pieces) >= _TASK_PIECES:
                yield TokenizeJob(tuple(pieces), tuple(digests), cost)
                pieces, digests, size, cost = [], [], 0, 0
        if source.hub is None and source.size <= _HASHED:
            digests.append((number, source.path))
        if len(digests) >= _TASK_PIECES:  # empty files have no pieces
            yield TokenizeJob(tuple(pieces), tuple(digests), cost)
            pieces, digests, size, cost = [], [], 0, 0
    if pieces or digests:
        yield TokenizeJob(tuple(pieces), tuple(digests), cost)


def documents(piece: InputPart, field: str) -> tuple[list[bytes], list[BadDocument], int]:
    """The documents of a piece, its bad lines, and how many lines or rows it has."""
    if isinstance(piece.data, tuple):
        texts: list[bytes] = []
        bad: list[BadDocument] = []
        for row, text in enumerate(piece.data):
            if text is None:
                bad.append(BadDocument(row, f"{field!r} is null"))
            else:
                texts.append(text)
        return texts, bad, len(piece.data)
    data = _range(piece) if piece.data is None else piece.data
    if piece.kind == "text":
        return [data], [], 0
    return texts_in(data, field)


def _pieces(number: int, source: Input, field: str) -> Iterator[tuple[InputPart, int]]:
    """The pieces of an input, each with its share of the file's bytes. An empty text has an empty piece."""
    none = True
    try:
        if source.kind == "jsonl":
            with unpacked(source.path, source.packed) as (_, stream):
                refuse_array(stream.read(HEAD), source.path)
        for pair in _read_pieces(number, source, field):
            none = False
            yield pair
    except _DAMAGED as error:
        cause = f"{source.path} cannot be read: {type(error).__name__}: {error}"
        raise Failure(Exit.BAD_DATA, cause, "mend it, or leave it out", file=source.path) from error
    if none and source.kind == "text":
        yield _piece(number, source, 0, 0, True, b""), source.size


def _read_pieces(number: int, source: Input, field: str) -> Iterator[tuple[InputPart, int]]:
    if source.kind in ("parquet", "arrow", "hub"):
        row = 0
        for texts, cost in text_rows(source, field):
            yield InputPart(number, source.path, source.kind, row, row + len(texts), texts), cost
            row += len(texts)
    elif source.packed:
        with unpacked(source.path, source.packed) as (raw, stream):
            before = 0
            for start, stop, data, last in unpacked_ranges(stream, source.kind):
                now = raw.tell()
                yield _piece(number, source, start, stop, last, data), now - before
                before = now
    else:
        for start, stop in plain_ranges(source):
            yield _piece(number, source, start, stop, stop == source.size, None), stop - start


def _piece(number: int, source: Input, start: int, stop: int, last: bool, data: bytes | None) -> InputPart:
    text = source.kind == "text"
    return InputPart(number, source.path, source.kind, start, stop, data, text and start > 0, text and not last)


def _range(piece: InputPart) -> bytes:
    with open(piece.path, "rb") as file:
        file.seek(piece.start)
        data = file.read(piece.stop - piece.start)
    if len(data) != piece.stop - piece.start:
        raise changed(piece.path)
    return data
