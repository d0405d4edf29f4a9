"""CSV and TSV files as blocks of rows: stretches of a file that end where a record does."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from drivetrain.data.columns import BadValue
from drivetrain.data.csv_records import BadQuote, Quotes, chunks_of
from drivetrain.data.fingerprint import FileStamp, checksum
from drivetrain.data.rows import line_at, stretches
from drivetrain.spec.exits import Exit, Failure

ROWS, BYTES = 1 << 16, 1 << 26
"""A block ends after so many records, or with the first one that ends behind so many bytes."""
_PIECE = 1 << 20  # bytes that are parsed at a time
_BOM = b"\xef\xbb\xbf"
_LONGEST = 1 << 24  # bytes of the first line
_WIDER = ("null", "int64", "double", "string")
"""Types of columns, each of which holds what those before it hold."""
_KINDS = {"int64": "integer", "double": "number"}
_CONVERSION = re.compile(r"In CSV column #(\d+): (?:Row #(\d+): )?(.*)", re.DOTALL)
_WHOLE = re.compile(r"[+-]?[0-9]+")
_RETURN, _RETURN_UNQUOTED = re.compile(rb'"[^"]*"|\r(?!\n)'), re.compile(rb"\r(?!\n)")
_QUOTES_HINT = "double the quotes in a quoted field; `quotes: false` where they are characters like others"
_ROW_HINT = "mend the row; look at `delimiter` and `quotes`; `malformed: skip` leaves such rows out"


@dataclass(frozen=True)
class CsvFormat:
    """How a file is read: as the recipe says; the delimiter may follow from the file's name."""

    delimiter: str
    quotes: bool
    header: tuple[str, ...] | None
    nulls: tuple[str, ...]
    skip: bool

    @property
    def reading(self) -> str:
        """What decides, beside its bytes, which rows a file has."""
        return f"columns csv 1 {json.dumps([self.delimiter, self.quotes, self.header, self.nulls, self.skip])}"

    @property
    def question(self) -> str:
        """What an index is remembered by."""
        return f"{self.reading}, checksums 2"


class _Parsed(NamedTuple):
    """What a block comes to, and the numbers of the records that were left out, among those that are not blank."""

    table: Any
    bad: list[int]


def csv_index(path: str, form: CsvFormat) -> str:
    """What is kept of a file, as JSON: where its blocks end, their rows and checksums, the columns and their types,
    what was left out, the file's digest. All of it is parsed, to find damage.

    Raises Failure(65) with FILE:LINE.
    """
    seen = FileStamp.now(path)
    digest = hashlib.sha256(form.reading.encode())
    with seen.open() as file:
        header, start = _header(file, path, form)
        file.seek(0)
        digest.update(file.read(start))
        index = {"header": header, "stops": [start], "rows": [], "sums": [], "schema": dict.fromkeys(header, "null")}
        blocks = CsvBlocks(seen, index | {"digest": "", "notes": []}, form)
        lines, count = [], 0
        for data in _blocks(file, path, start, form, digest):
            begin = index["stops"][-1]
            _require_feeds(data, begin, path, form)
            parsed = blocks.parse(data, begin, None)
            for name, kind in blocks.kinds(parsed.table, data, begin).items():
                index["schema"][name] = wider(index["schema"][name], kind)
            for number in parsed.bad[: 8 - len(lines)]:
                lines.append(blocks.line(data, begin, number).rpartition(":")[2])
            count += len(parsed.bad)
            index["stops"].append(begin + len(data))
            index["rows"].append(parsed.table.num_rows)
            index["sums"].append(checksum(data))
    seen.check()
    return json.dumps(index | {"digest": digest.hexdigest(), "notes": _notes(path, lines, count)})


def _notes(path: str, lines: list[str], count: int) -> list[str]:
    if not count:
        return []
    if count > len(lines):
        lines = [*lines, "..."]
    return [f"{count} malformed rows of {path} are left out, at line {', '.join(lines)}"]


def wider(one: str, other: str) -> str:
    """The narrowest type of a column that holds both, of those there are in CSV files."""
    return max((_plain(kind) for kind in (one, other)), key=_WIDER.index)


def _plain(kind: str) -> str:
    if re.fullmatch(r"u?int\d+", kind):
        return "int64"
    if kind in ("halffloat", "float"):
        return "double"
    return kind if kind in _WIDER else "string"


class CsvBlocks:
    """One file. It is opened for each block, so no descriptor is kept."""

    def __init__(self, seen: FileStamp, index: Mapping[str, Any], form: CsvFormat) -> None:
        """`index` is what `csv_index` gives, read from JSON."""
        self.path, self.fingerprint, self.notes = seen.path, index["digest"], tuple(index["notes"])
        self.schema: Mapping[str, str] = index["schema"]
        self.rows = np.array(index["rows"], np.int64)
        self._seen, self._form = seen, form
        self._header, self._stops, self._sums = tuple(index["header"]), index["stops"], index["sums"]

    def decode(self, number: int, columns: Mapping[str, str | None]) -> Any:
        """A block as a table of these columns, each with one chunk, read as they are to be; None: as what all of the
        file's values are.

        Raises Failure(65) where it is not what it was at the first start, BadValue.
        """
        start, data = self._stops[number], self._read(number)
        if checksum(data) != self._sums[number]:
            why = "a block begins here that has other bytes than at the first start"
            raise bad_row(line_at(self.path, start), why, "restore the file")
        kinds = {name: kind or _KINDS.get(self.schema[name], "string") for name, kind in columns.items()}
        return self.parse(data, start, kinds).table

    def place(self, number: int, row: int) -> str:
        """FILE:LINE where a row of a block begins."""
        start, data = self._stops[number], self._read(number)
        if self._form.skip:
            left_out = self.parse(data, start, None).bad
            row = np.delete(np.arange(len(_records(data, self._form))), left_out)[row]
        return self.line(data, start, row)

    def line(self, data: bytes, start: int, number: int) -> str:
        """FILE:LINE where a record begins, of a block of bytes from `start` on."""
        return line_at(self.path, start + _records(data, self._form)[number][0])

    def parse(self, data: bytes, start: int, kinds: Mapping[str, str] | None) -> _Parsed:
        """The columns of a block of bytes that begin at `start`; None: all, of the types that their values have.

        Raises Failure(65) with FILE:LINE for a row that cannot be read, where these are not left out; BadValue.
        """
        if not self._form.skip:
            table, misfits = self._table(data, kinds)
            if misfits:
                number, why = misfits[0]
                raise bad_row(self.line(data, start, number), why, _ROW_HINT)
            self._require_text(table, data, start)
            return _Parsed(table, [])
        text, unreadable = _readable(data, self._form)
        table, misfits = self._table(text, kinds)
        if not misfits:
            return _Parsed(table, unreadable)
        kept = np.delete(np.arange(len(_records(data, self._form))), unreadable)
        return _Parsed(table, sorted([*unreadable, *(int(kept[number]) for number, _ in misfits)]))

    def kinds(self, table: Any, data: bytes, start: int) -> dict[str, str]:
        """The type of each column of a block that was read as what its values are. Whole numbers that are beyond 64
        bits are texts: as floats different ones would be the same."""
        kinds = {name: str(field.type) for name, field in zip(self._header, table.schema, strict=True)}
        large = [name for name, kind in kinds.items() if kind == "double" and _is_large(table.column(name))]
        if not large:
            return kinds
        texts = self.parse(data, start, dict.fromkeys(large, "string")).table
        for name in large:
            values = texts.column(name).drop_null().to_pylist()
            if all(map(_WHOLE.fullmatch, values)):
                kinds[name] = "string"
        return kinds

    def _table(self, data: bytes, kinds: Mapping[str, str] | None) -> tuple[Any, list[tuple[int, str]]]:
        """The table, and which records have another number of fields than there are columns, and how many."""
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        misfits: list[tuple[int, str]] = []

        def told(row: Any) -> str:
            why = f"it has {row.actual_columns} fields, and there are {row.expected_columns} columns"
            misfits.append((row.number - 1, why))
            return "skip" if self._form.skip else "error"

        if data.isspace() and not data.strip(b"\r\n"):
            names = self._header if kinds is None else kinds
            return pa.table({name: pa.nulls(0) for name in names}), []
        quoted = self._form.quotes and b'"' in data  # of what has none, records are found in less time
        parsing = arrow_csv.ParseOptions(
            delimiter=self._form.delimiter,
            quote_char='"' if quoted else False,
            newlines_in_values=quoted,
            invalid_row_handler=told,
        )
        conversion = self._conversion(kinds)
        conversion.check_utf8 = not data.isascii()

        def parsed(piece: int) -> Any:
            misfits.clear()
            # Without threads, which would not tell of rows by their numbers.
            reading = arrow_csv.ReadOptions(column_names=self._header, use_threads=False, block_size=piece)
            # The C library's memory, which training processes keep: Arrow's own pool gives much of it back each time,
            # and that it is new to the system costs a fifth of a block.
            pool = pa.system_memory_pool()
            table = arrow_csv.read_csv(pa.BufferReader(data), reading, parsing, conversion, pool)
            return table.combine_chunks(pool)

        try:
            return parsed(_PIECE), misfits
        except pa.ArrowInvalid as error:
            if "straddling" not in str(error):
                return self._refused(error, misfits), misfits
        try:  # a record is longer than a piece
            return parsed(len(data)), misfits
        except pa.ArrowInvalid as error:
            return self._refused(error, misfits), misfits

    def _conversion(self, kinds: Mapping[str, str] | None) -> Any:
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        types = {"integer": pa.int64(), "number": pa.float64(), "string": pa.string(), "list": pa.string()}
        columns = None
        if kinds is not None:
            columns = {name: types[kind] for name, kind in kinds.items()}
        return arrow_csv.ConvertOptions(
            column_types=columns,
            include_columns=list(columns or ()),
            null_values=list(self._form.nulls),
            strings_can_be_null=True,
        )

    def _refused(self, error: Exception, misfits: list[tuple[int, str]]) -> None:
        """Raises BadValue for what an error of the conversion says, or nothing where a row was the reason."""
        if misfits and not self._form.skip:
            return
        found = _CONVERSION.match(str(error))
        if not found:
            raise Failure(Exit.BAD_DATA, f"{self.path} cannot be read: {error}", _ROW_HINT, file=self.path) from error
        column, number, why = found.groups()
        record = int(number) - 1
        before = sum(misfit < record for misfit, _ in misfits)
        why = why.removeprefix("CSV conversion error ")
        raise BadValue(record - before, self._header[int(column)], why) from error

    def _require_text(self, table: Any, data: bytes, start: int) -> None:
        """Raises Failure(65) with FILE:LINE where a value is no UTF-8: Arrow takes its column for bytes."""
        if not any(str(kind) == "binary" for kind in table.schema.types):
            return
        try:
            data.decode()
        except UnicodeDecodeError as error:
            place = line_at(self.path, start + error.start)
            raise bad_row(place, f"it is no UTF-8: {error.reason}", _ROW_HINT) from error

    def _read(self, number: int) -> bytes:
        with self._seen.open() as file:
            return stretches(file, [(self._stops[number], self._stops[number + 1])])[0]


def _is_large(column: Any) -> bool:
    """Whether a number is beyond what a whole number of 64 bits may be."""
    numbers = np.abs(column.drop_null().to_numpy())
    return bool((numbers >= 2.0**63).any())


def bad_row(place: str, why: str, hint: str) -> Failure:
    """Failure(65) that names a line."""
    return Failure(Exit.BAD_DATA, f"{place}: {why}", hint, file=place)


def _header(file: Any, path: str, form: CsvFormat) -> tuple[tuple[str, ...], int]:
    """The columns' names, and where the rows begin. A file without a byte has no columns."""
    content = file.read(_LONGEST)
    start = len(_BOM) if content.startswith(_BOM) else 0
    if form.header is not None:
        return form.header, start
    start += len(content[start:]) - len(content[start:].lstrip(b"\r\n"))
    content = content[start:]
    if not content:
        return (), start
    stop = content.find(b"\n") + 1
    while form.quotes and stop and content.count(b'"', 0, stop) % 2:
        stop = content.find(b"\n", stop) + 1
    stop = stop or len(content)
    _require_feeds(content[:stop], start, path, form)
    try:
        lines = io.StringIO(content[:stop].decode(), newline="")
        quoting = csv.QUOTE_MINIMAL if form.quotes else csv.QUOTE_NONE
        names = next(csv.reader(lines, delimiter=form.delimiter, quoting=quoting))
    except UnicodeDecodeError as error:
        raise bad_row(f"{path}:1", f"it is no UTF-8: {error.reason}", "write the file as UTF-8") from error
    except csv.Error as error:
        raise bad_row(f"{path}:1", str(error), "the first line names the columns, or `header` does") from error
    twice = [name for place, name in enumerate(names) if name in names[:place]]
    if twice:
        raise Failure(Exit.BAD_DATA, f"{path} has two columns {twice[0]!r}", "name the columns by `header`", file=path)
    return tuple(names), start + stop


def _blocks(file: Any, path: str, start: int, form: CsvFormat, digest: Any) -> Iterator[bytes]:
    """The stretches of a file from `start` on; each chunk that was read is added to the digest."""
    quotes = Quotes(form.delimiter.encode(), start)
    held, records, size = [], 0, 0  # of the block that has not ended
    try:
        for chunk in chunks_of(file):
            digest.update(chunk)
            ends = quotes.record_ends(chunk) + 1 if form.quotes else _feeds(chunk) + 1
            at = number = 0
            while True:
                by_bytes = int(ends.searchsorted(at + BYTES - size))
                cut = min(number + ROWS - records - 1, by_bytes)
                if cut >= len(ends):
                    break
                yield b"".join([*held, chunk[at : ends[cut]]])
                held, records, size = [], 0, 0
                at, number = int(ends[cut]), cut + 1
            held.append(chunk[at:])
            records, size = records + len(ends) - number, size + len(chunk) - at
        quotes.finish()
    except BadQuote as error:
        raise bad_row(line_at(path, error.at), error.why, _QUOTES_HINT) from error
    if rest := b"".join(held):
        yield rest


def _require_feeds(data: bytes, start: int, path: str, form: CsvFormat) -> None:
    """Raises Failure(65) with FILE:LINE for a carriage return that stands alone: Arrow takes it for the end of a line,
    and nothing else here does."""
    if data.count(b"\r") == data.count(b"\r\n"):
        return
    for found in (_RETURN if form.quotes else _RETURN_UNQUOTED).finditer(data):
        if found.group() == b"\r":
            why = "a carriage return stands alone, without a line feed"
            raise bad_row(line_at(path, start + found.start()), why, "end lines with line feeds")


def _feeds(data: bytes) -> np.ndarray:
    return np.flatnonzero(np.frombuffer(data, np.uint8) == b"\n"[0])


def _ends(data: bytes, form: CsvFormat) -> np.ndarray:
    """Where the records of a stretch end: the places of their line feeds."""
    if not form.quotes:
        return _feeds(data)
    return Quotes(form.delimiter.encode()).record_ends(data)


def _records(data: bytes, form: CsvFormat) -> list[tuple[int, int]]:
    """Where the records of a block begin and end that are not blank."""
    stops = [*(_ends(data, form) + 1).tolist(), len(data)]
    spans = zip([0, *stops], stops, strict=False)
    return [(start, stop) for start, stop in spans if data[start:stop].strip(b"\r\n")]


def _readable(data: bytes, form: CsvFormat) -> tuple[bytes, list[int]]:
    """A block without the records that are no UTF-8, and their numbers."""
    try:
        data.decode()
        return data, []
    except UnicodeDecodeError:
        pass
    kept, bad = [], []
    for number, (start, stop) in enumerate(_records(data, form)):
        try:
            data[start:stop].decode()
            kept.append(data[start:stop])
        except UnicodeDecodeError:
            bad.append(number)
    return b"".join(kept), bad
