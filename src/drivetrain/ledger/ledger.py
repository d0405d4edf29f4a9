"""The ledger's file: JSON lines, each chained to the one before by a hash."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from drivetrain.spec.exits import Exit, Failure

_MARK = ',"chain":"'
_CHAIN = 32  # hex digits
_TAIL = len(_MARK) + _CHAIN + 2  # what follows a record's body in its line, before the newline


class Ledger:
    """The one writer of a ledger. Every append is one write of one line, so a killed process leaves whole records."""

    def __init__(self, descriptor: int, tail: str) -> None:
        self.tail = tail
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: Path) -> Ledger:
        """Open for appending, or create (0600).

        A torn last line is cut off, and a repair record says how many bytes went. Raises Failure(74) for any other
        damage, naming the record.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        tail = ""
        for record in read(path, torn_is_end=True):
            tail = record["chain"]
        torn = _torn_bytes(path)
        ledger = cls(descriptor, tail)
        if torn:
            os.ftruncate(descriptor, path.stat().st_size - torn)
            ledger.append({"kind": "repair", "time": time.time(), "bytes": torn})
        return ledger

    def append(self, record: Mapping[str, Any]) -> None:
        """Append a record of JSON data; floats that are not finite are written as strings."""
        self._write(json.dumps(_plain(record), separators=(",", ":"), allow_nan=False)[:-1])

    def append_step(
        self,
        *,
        time: float,
        attempt: int,
        step: int,
        start: int,
        stop: int,
        samples: int,
        losses: Mapping[str, float],
        counts: Mapping[str, int],
        norm: Mapping[str, float],
        lr: Mapping[str, float],
        seconds: float,
        wait: float,
    ) -> None:
        """Append the record of a step. Formatted by hand: it is written inside the loop, every step."""
        self._write(
            f'{{"kind":"step","time":{time!r},"attempt":{attempt},"step":{step},"start":{start},"stop":{stop},'
            f'"samples":"{samples:016x}","losses":{_floats(losses)},"counts":{_floats(counts)},"norm":{_floats(norm)},'
            f'"lr":{_floats(lr)},"seconds":{seconds:.7f},"wait":{wait:.7f}'
        )

    def sync(self) -> None:
        """Make every record durable."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Make every record durable and close the file."""
        self.sync()
        os.close(self._descriptor)

    def _write(self, body: str) -> None:
        """`body` is the record without its closing brace."""
        tail = chain(self.tail, body)
        line = f'{body}{_MARK}{tail}"}}\n'.encode()
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:
            raise Failure(
                Exit.STORAGE, f"the ledger cannot be written: {error}", "free space, then start again"
            ) from error
        if written != len(line):  # a full disk: the torn line is cut off at the next start
            raise Failure(
                Exit.STORAGE, "the ledger cannot be written: the disk is full", "free space, then start again"
            )
        self.tail = tail


def chain(previous: str, body: str) -> str:
    """The hash that follows `previous`: the start of SHA-256 over it and the record without its chain member."""
    return sha256(f"{previous}{body}".encode()).hexdigest()[:_CHAIN]


def read(path: Path, *, torn_is_end: bool = True) -> Iterator[dict[str, Any]]:
    """The records, with the chain checked.

    A last line without its newline is where a writer was cut off or still is: it ends the reading, or with
    `torn_is_end` false raises. Raises Failure(74) naming the first record that does not fit, 66 where there is no file.
    """
    previous = ""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise Failure(Exit.INPUT_MISSING, f"no ledger at {path}", "name a run directory") from None
    with file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n") and torn_is_end:
                return
            record = parse(line, previous)
            if record is None:
                raise Failure(
                    Exit.STORAGE,
                    f"{path}: record {number} does not follow from the one before: edited, dropped or damaged",
                    "restore the ledger from a copy; nothing after that record can be trusted",
                    file=str(path),
                    line=number,
                )
            previous = record["chain"]
            yield record


def parse(line: bytes, previous: str) -> dict[str, Any] | None:
    """The record of a whole line, or None where it is damaged or does not follow `previous`."""
    try:
        text = line.decode()
        body = text[: -_TAIL - 1]
        record = json.loads(text)
    except ValueError:
        return None
    if not isinstance(record, dict) or record.get("chain") != chain(previous, body):
        return None
    return record


def number(value: float | str) -> float:
    """A float as a record holds it: JSON's number, or "nan", "inf", "-inf"."""
    return float(value)


def _torn_bytes(path: Path) -> int:
    """Bytes after the last newline."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - (1 << 20)))
        return len(file.read().rpartition(b"\n")[2])


def _floats(numbers: Mapping[str, float]) -> str:
    """A JSON object of numbers."""
    return "{" + ",".join([f'"{name}":{_float(value)}' for name, value in numbers.items()]) + "}"


def _float(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'"{value}"'


def _plain(value: Any) -> Any:
    """The value with floats that are not finite as strings, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value
