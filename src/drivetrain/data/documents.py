"""Documents in files: text, JSON lines and Parquet, plain or compressed, cut into tasks.

A text file is one document. Tasks follow from the files alone, so a command that is started again cuts them the same.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import hashlib
import json
import lzma
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.registry import nearest

Kind = Literal["text", "jsonl", "parquet"]

_KINDS: dict[str, Kind] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".pq": "parquet"}
_TEXT = (".txt", ".text", ".md", ".py")  # what is taken from a folder; a file that is named is text by itself
_PACKED = (".gz", ".bz2", ".xz", ".zst")
_STEP = {"text": 1 << 20, "jsonl": 2 << 20}  # bytes from one cut to the next
_TASK = 2 << 20  # bytes of text in a task
_TASK_PIECES = 256
_SEARCH = 1 << 16  # bytes after a step in which the end of a line is looked for in a text
_ROWS = 256  # of a Parquet file in a piece
_HASHED = 1 << 30  # bytes of an input up to which its digest is taken; beyond, its time of change stands for it
_LINE = re.compile(rb"\n(?=\S)")  # most tokenizers cut words here anyway
_BOM = b"\xef\xbb\xbf"
_DAMAGED = (EOFError, zlib.error, lzma.LZMAError, OSError, ValueError)


@dataclass(frozen=True)
class Input:
    """One file to read; `packed` is its compression's suffix or empty."""

    path: str
    kind: Kind
    packed: str
    size: int
    changed: int  # nanoseconds

    @property
    def identity(self) -> list[Any]:
        """What must be the same when work is taken up again."""
        return [self.path, self.kind, self.size, self.changed]


@dataclass(frozen=True)
class Piece:
    """A part of an input, of whole lines or rows for JSON lines and Parquet.

    Plain files are read by who works on them, from `start` to `stop`; what must be read in order comes along, as
    `data`. `inside` says that it begins within a document, `open` that its last document goes on in the next piece.
    """

    number: int  # of its input
    path: str
    kind: Kind
    start: int
    stop: int
    data: bytes | tuple[bytes | None, ...] | None = None
    inside: bool = False
    open: bool = False

    @property
    def size(self) -> int:
        """Bytes of text."""
        return sum(len(row or b"") for row in self.data) if isinstance(self.data, tuple) else self.stop - self.start


class Task(NamedTuple):
    """Pieces to tokenize in order, and inputs to take digests of: (number, path). `cost` is in bytes of the files."""

    pieces: tuple[Piece, ...]
    digests: tuple[tuple[int, str], ...]
    cost: int


class Bad(NamedTuple):
    """A line or row that holds no document; `line` counts from 0 within its piece."""

    line: int
    why: str


def find_inputs(given: Sequence[str], include: Sequence[str] = (), kind: Kind | None = None) -> list[Input]:
    """The files that paths, patterns and folders mean, in the order given, sorted within a pattern or a folder.

    Of a folder, the files that match `include`, or else those with a suffix that is known; hidden ones never. Raises
    Failure(66) where one is missing, 65 where one is no regular file, 64 where one's name leaves its kind open.
    """
    found = [path for one in given for path in _expanded(one, include)]
    if not found:
        hint = f"files in a folder {_wanted(include)}"
        raise Failure(Exit.INPUT_MISSING, f"no file to read in {', '.join(given)}", hint)
    return [_input(path, kind) for path in found]


def tasks(inputs: Sequence[Input], field: str) -> Iterator[Task]:
    """All tasks in order; a pure function of the inputs' content. Raises Failure(65) where one is damaged."""
    pieces: list[Piece] = []
    digests: list[tuple[int, str]] = []
    size = cost = 0
    for number, source in enumerate(inputs):
        for piece, spent in _pieces(number, source, field):
            pieces.append(piece)
            size, cost = size + piece.size, cost + spent
            if size >= _TASK or len(pieces) >= _TASK_PIECES:
                yield Task(tuple(pieces), tuple(digests), cost)
                pieces, digests, size, cost = [], [], 0, 0
        if source.size <= _HASHED:
            digests.append((number, source.path))
        if len(digests) >= _TASK_PIECES:  # empty files have no pieces
            yield Task(tuple(pieces), tuple(digests), cost)
            pieces, digests, size, cost = [], [], 0, 0
    if pieces or digests:
        yield Task(tuple(pieces), tuple(digests), cost)


def documents(piece: Piece, field: str) -> tuple[list[bytes], list[Bad], int]:
    """The documents of a piece, its bad lines, and how many lines or rows it has."""
    if isinstance(piece.data, tuple):
        bad = [Bad(row, f"{field!r} is null") for row, text in enumerate(piece.data) if text is None]
        return [text for text in piece.data if text is not None], bad, len(piece.data)
    data = piece.data if piece.data is not None else _range(piece)
    return ([data], [], 0) if piece.kind == "text" else _lines(data, field)


def file_digest(path: str | Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def find_cut(buffer: bytes, at: int, kind: Kind, ended: bool) -> int | None:
    """The first place at or after `at` (at least 1) where a piece may end; None where more bytes are needed to tell.

    For JSON lines, that is the end of a line. For texts, the end of a line that no white space follows, or, where that
    is far away, between two characters.
    """
    if kind == "jsonl":
        end = buffer.find(b"\n", at - 1) + 1
        return end or (len(buffer) if ended else None)
    if len(buffer) < at + _SEARCH + 4 and not ended:
        return None
    if found := _LINE.search(buffer, at - 1, at + _SEARCH):
        return found.end()
    if ended and len(buffer) <= at + _SEARCH:
        return len(buffer)
    return next((end for end in range(at, min(at + 4, len(buffer))) if buffer[end] & 0xC0 != 0x80), len(buffer))


def _expanded(given: str, include: Sequence[str]) -> list[str]:
    path = Path(given)
    if path.is_dir():
        return sorted(
            str(path / name)
            for name in (p.relative_to(path) for p in _walked(path))
            if not any(part.startswith(".") for part in name.parts) and _taken(name.name, include)
        )
    if not path.exists() and any(sign in given for sign in "*?["):
        return sorted(found for found in glob.glob(given, recursive=True) if not Path(found).is_dir())
    return [given]


def _walked(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise _unreadable(error) from error

    for at, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(at, name) for name in names)


def _taken(name: str, include: Sequence[str]) -> bool:
    if include:
        return any(fnmatch(name, pattern) for pattern in include)
    return _unpacked_name(name).lower().endswith((*_TEXT, *_KINDS))


def _wanted(include: Sequence[str]) -> str:
    return f"match {', '.join(include)}" if include else f"end in {', '.join((*_TEXT, *_KINDS))}, or match --include"


def _unpacked_name(name: str) -> str:
    stem, suffix = os.path.splitext(name)
    return stem if suffix in _PACKED else name


def _input(path: str, kind: Kind | None) -> Input:
    try:
        status = os.stat(path)
        with open(path, "rb") if stat.S_ISREG(status.st_mode) else open(os.devnull, "rb"):
            pass
    except OSError as error:
        raise _unreadable(error) from error
    if not stat.S_ISREG(status.st_mode):
        raise Failure(Exit.BAD_DATA, f"{path} is not a regular file", "give files, folders or patterns", file=path)
    suffix = os.path.splitext(path)[1]
    packed = suffix if suffix in _PACKED else ""
    inner = os.path.splitext(_unpacked_name(path))[1].lower()
    if inner == ".json" and kind is None:  # as text, lines of JSON would be learned with their braces and field names
        cause = f"{path}: a name in .json may be lines of JSON or one text"
        raise Failure(Exit.BAD_COMMAND, cause, "say which: --kind jsonl or --kind text", file=path)
    kind = kind or _KINDS.get(inner, "text")
    if kind == "parquet" and packed:
        raise Failure(Exit.BAD_DATA, f"{path}: Parquet is compressed inside", "decompress the file", file=path)
    return Input(path, kind, packed, status.st_size, status.st_mtime_ns)


def _unreadable(error: OSError) -> Failure:
    path = str(error.filename)
    return Failure(Exit.INPUT_MISSING, f"{path}: {error.strerror}", "mend the path, or leave it out", file=path)


def _pieces(number: int, source: Input, field: str) -> Iterator[tuple[Piece, int]]:
    """The pieces of an input, each with its share of the file's bytes. An empty text has an empty piece."""
    none = True
    try:
        for pair in _read_pieces(number, source, field):
            none = False
            yield pair
    except _DAMAGED as error:
        cause = f"{source.path} cannot be read: {type(error).__name__}: {error}"
        raise Failure(Exit.BAD_DATA, cause, "mend it, or leave it out", file=source.path) from error
    if none and source.kind == "text":
        yield _piece(number, source, 0, 0, True, b""), source.size


def _read_pieces(number: int, source: Input, field: str) -> Iterator[tuple[Piece, int]]:
    if source.kind == "parquet":
        yield from _parquet_pieces(number, source, field)
    elif source.packed:
        with _opened(source) as (raw, stream):
            before = 0
            for start, stop, data, last in _unpacked_ranges(stream, source.kind):
                now = raw.tell()
                yield _piece(number, source, start, stop, last, data), now - before
                before = now
    else:
        for start, stop in _plain_ranges(source):
            yield _piece(number, source, start, stop, stop == source.size, None), stop - start


def _piece(number: int, source: Input, start: int, stop: int, last: bool, data: bytes | None) -> Piece:
    text = source.kind == "text"
    return Piece(number, source.path, source.kind, start, stop, data, text and start > 0, text and not last)


def _plain_ranges(source: Input) -> Iterator[tuple[int, int]]:
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
        ended = at - 1 + len(window) >= source.size
        if not window or (cut := find_cut(window, 1, source.kind, ended)) is None:
            if not window:
                raise EOFError("it became shorter")
            width *= 4
            continue
        return at - 1 + cut
    return source.size


def _unpacked_ranges(stream: Any, kind: Kind) -> Iterator[tuple[int, int, bytes, bool]]:
    """The same cuts in a stream that can only be read in order: (start, stop, bytes, whether it is the last)."""
    step, start, ended, buffer = _STEP[kind], 0, False, b""
    while not ended:
        block = stream.read(step)
        ended = not block
        buffer += block
        while buffer:
            at = (start // step + 1) * step - start
            cut = len(buffer) if ended and at >= len(buffer) else None
            if at < len(buffer):
                cut = find_cut(buffer, at, kind, ended)
            if cut is None:
                break
            yield start, start + cut, buffer[:cut], ended and cut == len(buffer)
            start, buffer = start + cut, buffer[cut:]


class _opened:  # noqa: N801 - a context manager
    """The raw file of a compressed input, and the stream of its content."""

    def __init__(self, source: Input) -> None:
        self._raw = open(source.path, "rb")  # noqa: SIM115 - closed below
        self._packed = source.packed

    def __enter__(self) -> tuple[BinaryIO, Any]:
        opened: Any = {".gz": gzip.GzipFile, ".bz2": bz2.BZ2File, ".xz": lzma.LZMAFile, ".zst": _Zstandard}
        if self._packed == ".gz":
            return self._raw, gzip.GzipFile(fileobj=self._raw)
        return self._raw, opened[self._packed](self._raw)

    def __exit__(self, *_: object) -> None:
        self._raw.close()


class _Zstandard:
    """Reads frames one after the other. The library's own reader takes a file that was cut off for a whole one."""

    def __init__(self, raw: BinaryIO) -> None:
        try:
            import zstandard
        except ImportError:
            raise Failure(Exit.INPUT_MISSING, ".zst files need zstandard", "pip install 'drivetrain[data]'") from None
        self._raw, self._new, self._error = raw, zstandard.ZstdDecompressor().decompressobj, zstandard.ZstdError
        self._frame: Any = None
        self._rest = b""

    def read(self, size: int) -> bytes:
        """About `size` bytes; none at the end."""
        parts: list[bytes] = []
        while sum(map(len, parts)) < size:
            block = self._rest or self._raw.read(1 << 14)  # little, since it may become very much
            if not block:
                if self._frame is not None:
                    raise EOFError("it ends within a frame")
                break
            self._frame = self._frame or self._new()
            try:
                parts.append(self._frame.decompress(block))
            except self._error as error:
                raise EOFError(str(error)) from error
            self._rest = self._frame.unused_data if self._frame.eof else b""
            self._frame = None if self._frame.eof else self._frame
        return b"".join(parts)


def _parquet_pieces(number: int, source: Input, field: str) -> Iterator[tuple[Piece, int]]:
    try:
        from pyarrow import parquet, types
    except ImportError:
        raise Failure(Exit.INPUT_MISSING, "Parquet needs pyarrow", "pip install 'drivetrain[data]'") from None
    with parquet.ParquetFile(source.path, pre_buffer=False) as file:
        schema = file.schema_arrow
        if field not in schema.names:
            cause = f"{source.path} has no column {field!r}{nearest(field, schema.names)}"
            raise Failure(Exit.BAD_DATA, cause, "name the column of texts by --field", file=source.path)
        kind = schema.field(field).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if not any(fits(kind) for fits in (types.is_string, types.is_large_string, types.is_binary)):
            cause = f"{source.path}: column {field!r} is {kind}, no text"
            raise Failure(Exit.BAD_DATA, cause, "name the column of texts by --field", file=source.path)
        total, start = file.metadata.num_rows, 0
        for batch in file.iter_batches(_ROWS, columns=[field], use_threads=False):
            rows = tuple(text.encode() if isinstance(text, str) else text for text in batch.column(0).to_pylist())
            stop = start + len(rows)
            cost = source.size * stop // total - source.size * start // total
            yield Piece(number, source.path, "parquet", start, stop, rows), cost
            start = stop


def _range(piece: Piece) -> bytes:
    with open(piece.path, "rb") as file:
        file.seek(piece.start)
        data = file.read(piece.stop - piece.start)
    if len(data) != piece.stop - piece.start:
        raise changed(piece.path)
    return data


def changed(path: str) -> Failure:
    """An input is not what it was when the work began."""
    return Failure(Exit.BAD_DATA, f"{path} changed while it was read", "begin again when it is at rest", file=path)


def _lines(data: bytes, field: str) -> tuple[list[bytes], list[Bad], int]:
    found: list[bytes] = []
    bad: list[Bad] = []
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines):
        if not line or line.isspace():
            continue
        try:
            found.append(_text_of(line, field))
        except (ValueError, RecursionError) as error:
            bad.append(Bad(number, str(error)))
    return found, bad, len(lines)


def json_object(line: bytes) -> dict[str, Any]:
    """The object in a line of JSON. Raises ValueError, or RecursionError, where there is none."""
    value = json.loads(line.removeprefix(_BOM).decode())
    if not isinstance(value, dict):
        raise ValueError("is no JSON object")
    return value


def _text_of(line: bytes, field: str) -> bytes:
    value = json_object(line)
    if field not in value:
        raise ValueError(f"has no {field!r}{nearest(field, list(value))}")
    text = value[field]
    if not isinstance(text, str):
        raise ValueError(f"{field!r} is no text")
    return text.encode()  # a lone surrogate, which JSON can write, is no text


def parts_of(text: bytes) -> Iterable[bytes]:
    """A long document in parts, cut as a text file is, so that a tokenizer's memory has a bound."""
    step = _STEP["text"]
    if len(text) <= step + _SEARCH:  # the longest piece of a text file
        return [text]
    return [text[start:stop] for start, stop, *_ in _unpacked_ranges(_Once(text), "text")]


class _Once:
    """Bytes as a stream that gives them all at once."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, size: int) -> bytes:
        """All, then none."""
        data, self._data = self._data, b""
        return data
