"""The ledger's file: JSON lines, each chained to the one before by a hash."""

from __future__ import annotations

import ctypes
import errno
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from drivetrain.ledger import records
from drivetrain.ledger.fields import plain, reader
from drivetrain.ledger.records import Record, RepairRecord, StepRecord
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import write_private

_MARK = ',"chain":"'
_CHAIN = 32  # hex digits
_TAIL = len(_MARK) + _CHAIN + 3  # bytes that follow a record's body in its line
_BLOCK = 1 << 20  # bytes that are looked through at a time
RESERVE = 1 << 20
"""Bytes of disk that a ledger has ahead, so that a disk which fills up stops commits before it stops the run."""


class LedgerFile:
    """The one writer of a ledger. Every append is one write of one line, so a killed process leaves whole records."""

    def __init__(self, path: Path, descriptor: int, tail: str, size: int = 0) -> None:
        self.tail = tail
        self._path = path.absolute()
        self._descriptor = descriptor
        self._size = size
        self._reserved = size
        self._reserve()

    @classmethod
    def open(cls, path: Path, *, anew: bool = False, each: Callable[[Record], None] | None = None) -> LedgerFile:
        """Open for appending, or create (0600); `each` is told every record that is there.

        `anew`: as a copy in its place, so that a writer of before, should it still be alive, writes to no file.

        A torn last line is cut off, and a repair record says how many bytes went. Raises Failure(74) for any other
        damage, naming the record, and where the file cannot be opened; 65 for a record of another form; 77 where the
        file is a symbolic link.
        """
        # A rename puts the copy in the old file's place: a writer that still has that one open writes to a file without
        # a name.
        if anew and path.is_file() and not path.is_symlink():
            write_private(path, path.read_bytes())
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise _cannot_open(error) from error
        tail, whole, number = "", 0, 0
        try:
            for line in lines(path):
                tail, whole, number = chain_of(line), whole + len(line), number + 1
                if each:
                    each(records.parse(json.loads(line)))
        except ValueError as error:
            os.close(descriptor)
            raise _another_form(path, number, error) from error
        except Failure:
            os.close(descriptor)
            raise
        # Where a writer was killed in its write. Nobody has read the line: readers pass over one without its end.
        torn = os.fstat(descriptor).st_size - whole
        if torn:
            os.ftruncate(descriptor, whole)
        ledger = cls(path, descriptor, tail, whole)
        if torn:
            ledger.append(RepairRecord(time=time.time(), bytes=torn).to_json())
        return ledger

    def append(self, record: Mapping[str, Any]) -> None:
        """Append a record of JSON data; floats that are not finite are written as strings."""
        self.write(*chained(self.tail, [body_of(record)]))

    def append_steps(self, attempt: int, steps: Iterable[Mapping[str, Any]]) -> None:
        """Append the records of steps with one write; each has the fields of `StepRecord` without its `attempt`.

        `samples` is a number here; `skipped`, `scale` and `weights` may be None or missing.
        """
        self.write(*chained(self.tail, [step_body(attempt, fields) for fields in steps]))

    def sync(self) -> None:
        """Make every record durable. Raises Failure(74) where that is no use: the file is not in its place any more."""
        os.fsync(self._descriptor)
        self._require_in_place()

    def close(self) -> None:
        """Make every record durable and close the file."""
        os.fsync(self._descriptor)
        # Give back what is reserved, unless somebody else has written meanwhile, whose records would go with it.
        if os.fstat(self._descriptor).st_size == self._size:
            os.ftruncate(self._descriptor, self._size)
        os.close(self._descriptor)

    def _require_in_place(self) -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            if os.path.samestat(os.fstat(self._descriptor), os.lstat(self._path)):
                return
        cause = f"{self._path} was removed or replaced while the run wrote it: its records are lost"
        hint = "put a copy, or the mirror's, in its place; or go on without what it told by --override ledger"
        raise Failure(Exit.STORAGE, cause, hint, gone=self._path.name)

    def write(self, whole: bytes, tail: str) -> None:
        """Write what `chained` made after this file's tail, all or none of it. Raises Failure(74)."""
        try:
            written = os.write(self._descriptor, whole)
            # A disk that is full takes a part. Half a record must not stand before the next one.
            if written != len(whole):
                os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise Failure(
                Exit.STORAGE, f"the ledger cannot be written: {error}", "free space, then start again"
            ) from error
        # Only after the write: one that failed leaves the chain where it was, so that it can be tried again.
        self.tail = tail
        self._size += len(whole)
        if self._size > self._reserved - RESERVE // 2:
            self._reserve()

    def _reserve(self) -> None:
        """Take room beyond the end of the file; a system that cannot, or has none, leaves things as they are."""
        if _fallocate and _fallocate(self._descriptor, _KEEP_SIZE, self._size, RESERVE) == 0:
            self._reserved = self._size + RESERVE


def chained(tail: str, bodies: Iterable[str]) -> tuple[bytes, str]:
    """The lines of records, each given without its closing brace, that follow a record whose hash is `tail`; and the
    hash of the last one."""
    lines = []
    for body in bodies:
        content = body.encode()
        tail = chain(tail, content)
        lines.append(content + ending(tail))
    return b"".join(lines), tail


def body_of(record: Mapping[str, Any]) -> str:
    """A record of JSON data, without its closing brace; floats that are not finite become strings."""
    return json.dumps(plain(record), separators=(",", ":"), allow_nan=False)[:-1]


def step_body(attempt: int, fields: Mapping[str, Any]) -> str:
    """The record of a step, without its closing brace.

    Formatted by hand: there is one in every step, and `json` takes more than twice as long.
    """
    more = ""
    if compiled := fields.get("compile"):
        more = f',"compile":{compiled:.7f}'
    if skipped := fields.get("skipped"):
        more += f',"skipped":{json.dumps(skipped)}'
    if scale := fields.get("scale"):
        more += f',"scale":{scale!r}'
    if weights := fields.get("weights"):
        more += f',"weights":{_floats(weights)}'
    return (
        f'{{"kind":"step","time":{fields["time"]!r},"attempt":{attempt},"step":{fields["step"]},'
        f'"start":{fields["start"]},"stop":{fields["stop"]},"samples":"{fields["samples"]:016x}",'
        f'"losses":{_floats(fields["losses"])},"counts":{_whole(fields["counts"])},'
        f'"norm":{_floats(fields["norm"])},"lr":{_floats(fields["lr"])},'
        f'"seconds":{fields["seconds"]:.7f},"wait":{fields["wait"]:.7f}{more}'
    )


_KEEP_SIZE = 1
_fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)  # Linux alone has it
if _fallocate:
    _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def chain(previous: str, body: bytes) -> str:
    """The hash that follows `previous`: the start of SHA-256 over it and the record without its chain member."""
    return sha256(previous.encode() + body).hexdigest()[:_CHAIN]


def read(path: Path) -> Iterator[Record]:
    """The records, with the chain checked.

    A last line without its newline is where a writer was cut off or still is: it ends the reading. Raises Failure(74)
    naming the first record that does not fit, or where the file cannot be opened, 65 naming one of another form than a
    run writes, 66 where there is no file.
    """
    number = 0
    try:
        for line in lines(path):
            number += 1
            yield records.parse(json.loads(line))
    except ValueError as error:
        raise _another_form(path, number, error) from error


def parse_line(line: bytes, previous: str) -> Record | None:
    """The record of a whole line, or None where it is damaged or does not follow `previous`.

    Raises ValueError for one of another form than a run writes.
    """
    if not follows(line, previous):
        return None
    return records.parse(json.loads(line))


def _another_form(path: Path, number: int, error: ValueError) -> Failure:
    hint = "it was changed by hand, or another version wrote it; restore it from a copy"
    return Failure(Exit.BAD_DATA, f"{path}: record {number}: {error}", hint, file=str(path), line=number)


def lines(path: Path) -> Iterator[bytes]:
    """The whole lines, whatever they tell, each checked against the one before; raises what `read` raises."""
    previous = ""
    try:
        file = path.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        raise Failure(Exit.INPUT_MISSING, f"no ledger at {path}", "name a run directory") from None
    except OSError as error:
        raise _cannot_open(error) from error
    with file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            previous = chain(previous, line[:-_TAIL])
            if not line.endswith(ending(previous)):
                raise Failure(
                    Exit.STORAGE,
                    f"{path}: record {number} does not follow from the one before: edited, dropped or damaged",
                    "restore the ledger from a copy; nothing after that record can be trusted",
                    file=str(path),
                    line=number,
                )
            yield line


def _cannot_open(error: OSError) -> Failure:
    """74; but 77 where there is a symbolic link that is not followed."""
    code = Exit.SECURITY if error.errno == errno.ELOOP else Exit.STORAGE
    return Failure(code, f"the ledger cannot be opened: {error}", "see what stands in its place")


def contains(path: Path, tail: str) -> bool:
    """Whether a ledger, which has been checked, has the record with this hash."""
    end, after = ending(tail), b""
    with path.open("rb") as file:
        stop = file.seek(0, os.SEEK_END)
        # From the end: what a commit needs is mostly near it. No record's body has such bytes, as JSON escapes quotes.
        while stop:
            start = max(0, stop - _BLOCK)
            file.seek(start)
            block = file.read(stop - start) + after
            if end in block:
                return True
            after, stop = block[: len(end) - 1], start
    return False


def follows(line: bytes, previous: str) -> bool:
    """Whether a line is whole, and its chain member is what `previous` and its body make."""
    return line.endswith(ending(chain(previous, line[:-_TAIL])))


def following(lines: Iterable[bytes], previous: str) -> tuple[int, str]:
    """How many of these lines follow `previous` one after the other, and the chain member of the last one that does.

    As `follows` for each of them, in half the time.
    """
    number, tail = 0, previous.encode()
    for line in lines:
        made = sha256(tail + line[:-_TAIL]).hexdigest()[:_CHAIN].encode()
        if line[-_TAIL:] != b',"chain":"' + made + b'"}\n':
            break
        number, tail = number + 1, made
    return number, tail.decode()


def chain_of(line: bytes) -> str:
    """The chain member of a line that was checked."""
    return line[-_CHAIN - 3 : -3].decode()


def ending(tail: str) -> bytes:
    """What follows a record's body in its line."""
    return f'{_MARK}{tail}"}}\n'.encode()


@lru_cache(maxsize=1024)
def _key(name: str) -> str:
    """A name as JSON: those of losses and networks are chosen by users."""
    return json.dumps(name)


def _whole(numbers: Mapping[str, int]) -> str:
    """A JSON object of whole numbers."""
    return "{" + ",".join([f"{_key(name)}:{value:d}" for name, value in numbers.items()]) + "}"


def _floats(numbers: Mapping[str, float]) -> str:
    """A JSON object of numbers."""
    return "{" + ",".join([f"{_key(name)}:{_float(value)}" for name, value in numbers.items()]) + "}"


def _float(value: float) -> str:
    # `float` first: numpy's own numbers have another repr.
    return repr(float(value)) if math.isfinite(value) else f'"{float(value)}"'


def told_step(fields: Mapping[str, Any]) -> StepRecord:
    """The record of a step's fields, as it is when it is read."""
    told = {**fields, "samples": f"{fields['samples']:016x}"}
    for name in ("skipped", "compile", "weights"):
        if not told.get(name):
            told.pop(name, None)
    return reader(StepRecord)(told)
