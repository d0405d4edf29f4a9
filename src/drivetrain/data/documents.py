"""Documents in files: text, JSON lines, Parquet and Arrow, plain or compressed, cut into tasks.

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
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from drivetrain.data.hub import PREFIX, Hub, open_hub
from drivetrain.data.saved import import_arrow, is_saved, mapped, saved_files, slices
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.registry import nearest

Kind = Literal["text", "jsonl", "parquet", "arrow", "hub"]

_LINES_AND_TABLES: dict[str, Kind] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".pq": "parquet"}
_KINDS: dict[str, Kind] = {**_LINES_AND_TABLES, ".arrow": "arrow"}
# What is taken from a folder; a file that is named is text by itself. Arrow files within a folder may be any split, or
# what `datasets` keeps of its computations, so they are taken where they are named, or the folder's own list does.
_TAKEN = (".txt", ".text", ".md", ".py", *_LINES_AND_TABLES)
_PACKED = (".gz", ".bz2", ".xz", ".zst")
_STEP = {"text": 1 << 20, "jsonl": 2 << 20}  # bytes from one cut to the next
_TASK = 2 << 20  # bytes of text in a task
_TASK_PIECES = 256
_SEARCH = 1 << 16  # bytes after a step in which the end of a line is looked for in a text
_ROWS = 256  # of a Parquet or Arrow file in a piece
_HASHED = 1 << 30  # bytes of an input up to which its digest is taken; beyond, its time of change stands for it
_LINE = re.compile(rb"\n(?=\S)")  # most tokenizers cut words here anyway
_BOM = b"\xef\xbb\xbf"
_DAMAGED = (EOFError, zlib.error, lzma.LZMAError, OSError, ValueError)


@dataclass(frozen=True)
class Input:
    """One file to read, or a shard of a `hub` data set, whose size is 1; `packed` is the suffix of a compression."""

    path: str
    kind: Kind
    packed: str
    size: int
    changed: int  # nanoseconds
    hub: Hub | None = None
    shard: int = 0

    @property
    def identity(self) -> list[Any]:
        """What must be the same when work is taken up again."""
        return [self.path, self.kind, self.size, self.changed, *([self.hub.record] if self.hub else [])]


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
    data: bytes | tuple[bytes | None, ...] | None = None
    inside: bool = False
    open: bool = False

    @property
    def size(self) -> int:
        """Bytes of text."""
        return sum(len(row or b"") for row in self.data) if isinstance(self.data, tuple) else self.stop - self.start


class TokenizeJob(NamedTuple):
    """Pieces to tokenize in order, and inputs to take digests of: (number, path). `cost` is in bytes of the files."""

    pieces: tuple[InputPart, ...]
    digests: tuple[tuple[int, str], ...]
    cost: int


class BadDocument(NamedTuple):
    """A line or row that holds no document; `line` counts from 0 within its piece."""

    line: int
    why: str


def find_inputs(
    given: Sequence[str], include: Sequence[str] = (), kind: Kind | None = None, split: str | None = None
) -> list[Input]:
    """The files that paths, patterns and folders mean, in the order given, sorted within a pattern or a folder.

    Of a folder, the files that match `include`, or else those with a suffix that is known; hidden ones never. Where
    neither `include` nor `kind` is given, a folder that `datasets` saved means its own files; `split` says which one of
    a DatasetDict. Raises Failure(66) where one is missing, 65 where one is no regular file or a split is not chosen, 64
    where one's name leaves its kind open, or `split` is given without a saved folder.
    """
    if include or kind is not None:
        saved: frozenset[str] = frozenset()
    else:
        saved = frozenset(one for one in given if is_saved(Path(one)))
    if split is not None and not saved:
        cause = "--split chooses in a folder of several data sets that `save_to_disk` wrote, and none is given"
        raise Failure(Exit.BAD_COMMAND, cause, "leave --split out, or --include and --kind, if that is such a folder")
    found = [path for one in given for path in (_saved(one, split) if one in saved else _expanded(one, include))]
    if not found:
        hint = f"files in a folder {_wanted(include)}"
        raise Failure(Exit.INPUT_MISSING, f"no file to read in {', '.join(given)}", hint)
    return [_input(path, kind) for path in found]


def find_shards(given: Sequence[str], config: str | None = None, split: str | None = None) -> list[Input]:
    """The shards of `hub:` data sets, in order. Raises what `open_hub` does, and 64 where a file is among them."""
    if files := [one for one in given if not one.startswith(PREFIX)]:
        cause = f"{files[0]} is no {PREFIX} data set, as others are"
        raise Failure(Exit.BAD_COMMAND, cause, "prepare files and streams apart, and blend them in the recipe")
    hubs = [open_hub(one.removeprefix(PREFIX), config, split) for one in given]
    return [
        Input(f"{PREFIX}{hub.name}, {hub.split}, shard {shard} of {hub.shards}", "hub", "", 1, 0, hub, shard)
        for hub in hubs
        for shard in range(hub.shards)
    ]


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
        bad = [BadDocument(row, f"{field!r} is null") for row, text in enumerate(piece.data) if text is None]
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


def _saved(given: str, split: str | None) -> list[str]:
    return [str(path) for path in saved_files(Path(given), split, "--split")]


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
    return _unpacked_name(name).lower().endswith(_TAKEN)


def _wanted(include: Sequence[str]) -> str:
    return f"match {', '.join(include)}" if include else f"end in {', '.join(_TAKEN)}, or match --include"


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
    if kind in ("parquet", "arrow") and packed:
        cause = f"{path}: Parquet and Arrow files are not read in order, as an archive is"
        raise Failure(Exit.BAD_DATA, cause, "decompress the file", file=path)
    return Input(path, kind, packed, *_state(status))


def _unreadable(error: OSError) -> Failure:
    path = str(error.filename)
    return Failure(Exit.INPUT_MISSING, f"{path}: {error.strerror}", "mend the path, or leave it out", file=path)


def _pieces(number: int, source: Input, field: str) -> Iterator[tuple[InputPart, int]]:
    """The pieces of an input, each with its share of the file's bytes. An empty text has an empty piece."""
    none = True
    try:
        if source.kind == "jsonl":
            with _opened(source) as (_, stream):
                refuse_array(stream.read(_SEARCH), source.path)
        for pair in _read_pieces(number, source, field):
            none = False
            yield pair
    except _DAMAGED as error:
        cause = f"{source.path} cannot be read: {type(error).__name__}: {error}"
        raise Failure(Exit.BAD_DATA, cause, "mend it, or leave it out", file=source.path) from error
    if none and source.kind == "text":
        yield _piece(number, source, 0, 0, True, b""), source.size


def _read_pieces(number: int, source: Input, field: str) -> Iterator[tuple[InputPart, int]]:
    if source.kind == "parquet":
        yield from _parquet_pieces(number, source, field)
    elif source.kind == "arrow":
        yield from _arrow_pieces(number, source, field)
    elif source.hub:
        yield from _row_pieces(number, source, _streamed(source.hub, source, field))
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


def _piece(number: int, source: Input, start: int, stop: int, last: bool, data: bytes | None) -> InputPart:
    text = source.kind == "text"
    return InputPart(number, source.path, source.kind, start, stop, data, text and start > 0, text and not last)


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
    """The raw file of an input, and the stream of its content, which are one where it is not compressed."""

    def __init__(self, source: Input) -> None:
        self._raw = open(source.path, "rb")  # noqa: SIM115 - closed below
        self._packed = source.packed

    def __enter__(self) -> tuple[BinaryIO, Any]:
        opened: Any = {".bz2": bz2.BZ2File, ".xz": lzma.LZMAFile, ".zst": _Zstandard}
        if not self._packed:
            return self._raw, self._raw
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


def _parquet_pieces(number: int, source: Input, field: str) -> Iterator[tuple[InputPart, int]]:
    import_arrow()
    from pyarrow import parquet

    with parquet.ParquetFile(source.path, pre_buffer=False) as file:
        _check_texts(file.schema_arrow, field, source.path)
        batches = file.iter_batches(_ROWS, columns=[field], use_threads=False)
        yield from _row_pieces(number, source, (batch.column(0) for batch in batches), file.metadata.num_rows)


def _streamed(hub: Hub, source: Input, field: str) -> Iterator[Any]:
    for table in hub.tables(source.shard, _ROWS):
        _check_texts(table.schema, field, source.path)
        yield table.column(field)


def _arrow_pieces(number: int, source: Input, field: str) -> Iterator[tuple[InputPart, int]]:
    schema, batches = mapped(source.path)
    _check_texts(schema, field, source.path)
    total = sum(batch.num_rows for batch in batches)
    yield from _row_pieces(number, source, _validated(slices(batches, field, _ROWS)), total)


def _validated(columns: Iterable[Any]) -> Iterator[Any]:
    """Arrow reads offsets out of the file as they are: they must make sense before a text is taken from there."""
    for column in columns:
        column.validate(full=True)
        yield column


def _row_pieces(number: int, source: Input, columns: Iterable[Any], total: int = 1) -> Iterator[tuple[InputPart, int]]:
    """A piece for each of Arrow's arrays of texts, which have `total` rows; a shard's cost is that of its first row."""
    start = 0
    for column in columns:
        rows = tuple(text.encode() if isinstance(text, str) else text for text in column.to_pylist())
        stop = start + len(rows)
        cost = source.size * min(stop, total) // total - source.size * min(start, total) // total
        yield InputPart(number, source.path, source.kind, start, stop, rows), cost
        start = stop


def _check_texts(schema: Any, field: str, path: str) -> None:
    """Raises Failure(65) where a column is not there or holds no text."""
    from pyarrow import types

    if field not in schema.names:
        cause = f"{path} has no column {field!r}{nearest(field, schema.names)}"
        raise Failure(Exit.BAD_DATA, cause, "name the column of texts by --field", file=path)
    kind = schema.field(field).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if not any(fits(kind) for fits in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)):
        cause = f"{path}: column {field!r} is {kind}, no text"
        raise Failure(Exit.BAD_DATA, cause, "name the column of texts by --field", file=path)


def _range(piece: InputPart) -> bytes:
    with open(piece.path, "rb") as file:
        file.seek(piece.start)
        data = file.read(piece.stop - piece.start)
    if len(data) != piece.stop - piece.start:
        raise _changed(piece.path)
    return data


def check_unchanged(inputs: Sequence[Input]) -> None:
    """Raises Failure(65) where an input is not what it was when it was found."""
    for hub in {source.hub for source in inputs if source.hub}:
        hub.check()
    for source in inputs:
        if not source.hub and _state(os.stat(source.path)) != (source.size, source.changed):
            raise _changed(source.path)


def _state(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def _changed(path: str) -> Failure:
    """An input is not what it was when the work began."""
    return Failure(Exit.BAD_DATA, f"{path} changed while it was read", "begin again when it is at rest", file=path)


def _lines(data: bytes, field: str) -> tuple[list[bytes], list[BadDocument], int]:
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
