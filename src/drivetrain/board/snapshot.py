"""An index on the disk: one file a run in the user's cache. It says nothing that the ledger does not, so one that is
old, damaged or of another version is passed over, and made anew."""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from drivetrain.board.columns import Column
from drivetrain.board.groups import Stretch
from drivetrain.board.index import Index
from drivetrain.board.steps import Steps
from drivetrain.ledger import records
from drivetrain.ledger.records import AttemptRecord, ExitRecord
from drivetrain.ledger.run_summary import AttemptTally
from drivetrain.spec.files import write_private

_VERSION = 1
_ALIGNED = 8  # bytes: each array begins at a multiple of it
_PLAIN = ("offset", "chain", "records", "lost", "paused", "commands")


def save(index: Index, path: Path) -> None:
    """Write the index as it is. Two boards may do so at once: each file is whole. Raises OSError."""
    with index.lock:
        arrays = _arrays(index)
        head: dict[str, Any] = {"version": _VERSION, "crc": 0}
        # Twice in parts: as one piece it would take as much memory again as the index.
        for part in map(_padded, arrays.values()):
            head["crc"] = zlib.crc32(part, head["crc"])
        head["state"] = {name: getattr(index, name) for name in _PLAIN}
        head["kinds"] = index.others.kinds
        head["stretches"] = [list(vars(stretch).values()) for stretch in index.groups.stretches]
        head["tallies"] = [_tally_told(tally) for tally in index.tallies]
        head["arrays"] = [[name, array.dtype.str, *array.shape] for name, array in arrays.items()]
        line = json.dumps(head).encode() + b"\n"
        line = line.ljust(len(line) + -len(line) % _ALIGNED)
        # Nothing waits for the disk: a file that a power cut tears has another checksum.
        write_private(path, chain([line], map(_padded, arrays.values())), durable=False)


def load(index: Index, path: Path) -> bool:
    """Fill a new index with what was saved; returns whether there was something of use."""
    try:
        data = path.read_bytes()
        end = data.index(b"\n") + 1
        head = json.loads(data[:end])
        body = memoryview(data)[end + -end % _ALIGNED :]
        if head["version"] != _VERSION or head["crc"] != zlib.crc32(body):
            return False
        arrays = _read_arrays(head["arrays"], body)
        tallies = [_tally(told) for told in head["tallies"]]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    with index.lock:
        for name in _PLAIN:
            setattr(index, name, head["state"][name])
        index.tallies, index.others.kinds = tallies, head["kinds"]
        index.groups.stretches = [Stretch(*told) for told in head["stretches"]]
        _fill(index, arrays)
    return True


def _arrays(index: Index) -> dict[str, NDArray[Any]]:
    groups = index.groups
    found = {"first": groups.first.rows, "last": groups.last.rows, "spans": groups.spans.rows}
    found |= {"spent": groups.spent.rows, "others": index.others.rows}
    found |= {f"series {name}": column.rows for name, column in groups.series.items()}
    found |= {f"points {name}": column.rows for name, column in index.others.points.items()}
    if groups.tail is not None:
        tail = groups.tail
        found |= {"tail axes": tail.axes, "tail spans": tail.spans, "tail spent": tail.spent}
        found |= {f"tail of {name}": column for name, column in tail.values.items()}
    return found


def _fill(index: Index, arrays: Mapping[str, NDArray[Any]]) -> None:
    groups = index.groups
    for name in ("first", "last", "spans", "spent"):
        setattr(groups, name, _column(arrays[name]))
    index.others.column = _column(arrays["others"])
    groups.series = {name: _column(rows) for name, rows in _below("series ", arrays).items()}
    index.others.points = {name: _column(rows) for name, rows in _below("points ", arrays).items()}
    if "tail axes" in arrays:
        values = _below("tail of ", arrays)
        groups.tail = Steps(arrays["tail axes"], arrays["tail spans"], arrays["tail spent"], values, ())


def _below(beginning: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name[len(beginning) :]: rows for name, rows in arrays.items() if name.startswith(beginning)}


def _column(rows: NDArray[Any]) -> Column:
    return Column(rows.shape[1], rows.dtype.str, rows)


def _padded(array: NDArray[Any]) -> bytes:
    data = array.tobytes()
    return data + b"\0" * (-len(data) % _ALIGNED)


def _read_arrays(told: list[list[Any]], body: memoryview) -> dict[str, NDArray[Any]]:
    found, at = {}, 0
    for name, kind, *shape in told:
        count = int(np.prod(shape))
        array = np.frombuffer(body, kind, count, at) if count else np.empty(0, kind)
        # A copy: voiding writes into the rows of other records, and memory of bytes is not for writing.
        found[name] = array.reshape(shape).copy()
        at += array.nbytes + -array.nbytes % _ALIGNED
    return found


def _tally_told(tally: AttemptTally) -> dict[str, Any]:
    return {
        "first": tally.first.to_json(),
        "exit": tally.exit.to_json() if tally.exit else None,
        "ended": tally.ended,
        "reached": tally.reached,
        "seconds": dict(tally.seconds),
    }


def _tally(told: Mapping[str, Any]) -> AttemptTally:
    made = AttemptTally(cast(AttemptRecord, records.parse(told["first"])))
    made.exit = cast(ExitRecord, records.parse(told["exit"])) if told["exit"] else None
    made.ended, made.reached = told["ended"], told["reached"]
    made.seconds = defaultdict(float, told["seconds"])
    return made
