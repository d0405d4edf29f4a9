"""Lines of a ledger's steps as columns, without an object for each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

Numbers: TypeAlias = NDArray[np.float64]

BEGIN = b'{"kind":"step",'
"""What the line of a step begins with."""
AXES: tuple[str, ...] = ("step", "samples", "tokens", "seconds", "time")
"""What curves are drawn over. Samples, tokens and seconds are those up to the step's end, in the history that counts;
seconds are those of steps and of their data; time is Unix time."""
STEP, SAMPLES, TOKENS, SECONDS, TIME = range(len(AXES))


_AT_A_TIME = 128  # lines whose objects live at once: more of them leave the processor's cache


@dataclass(frozen=True)
class Steps:
    """Some steps in the order of their records.

    `axes` is [steps, 5], by `AXES`. `spans` is [steps, 2]: where each line begins and ends in the ledger, in bytes.
    `spent` is [steps, 3]: seconds of the step, of waiting for its data, of compiling. `values` has by name [steps],
    NaN where a step has none. `skipped` are the places of steps in which a network did not move.
    """

    axes: Numbers
    spans: NDArray[np.int64]
    spent: Numbers
    values: Mapping[str, Numbers]
    skipped: Sequence[int]

    def __len__(self) -> int:
        return len(self.axes)

    def cut(self, begin: int, end: int) -> Steps:
        """Those from one place to another, copied: a few that are kept would keep the whole block."""
        rows = slice(begin, end)
        values = {name: column[rows].copy() for name, column in self.values.items()}
        return Steps(self.axes[rows].copy(), self.spans[rows].copy(), self.spent[rows].copy(), values, ())

    def of(self, name: str) -> Numbers:
        """[steps] of one name."""
        found = self.values.get(name)
        return np.full(len(self), np.nan) if found is None else found


def joined(parts: Sequence[Steps]) -> Steps:
    """Steps that come one after the other, as one."""
    if len(parts) == 1:
        return parts[0]
    skipped, begin = [], 0
    for part in parts:
        skipped += [begin + place for place in part.skipped]
        begin += len(part)
    values = {}
    for name in dict.fromkeys(name for part in parts for name in part.values):
        values[name] = np.concatenate([part.of(name) for part in parts])
    axes = np.concatenate([part.axes for part in parts])
    spans = np.concatenate([part.spans for part in parts])
    spent = np.concatenate([part.spent for part in parts])
    return Steps(axes, spans, spent, values, skipped)


def read_steps(
    lines: Sequence[bytes], spans: NDArray[np.int64], before: tuple[float, float], full_rate: float
) -> Steps:
    """The steps of these lines, one or more, which lie at `spans`. `before` are tokens and seconds up to the first of
    them; `full_rate` are the samples a second that would be an MFU of 1, 0 where that is not known.

    Raises KeyError, TypeError or ValueError where a line is no step.
    """
    parts = []
    for begin in range(0, len(lines), _AT_A_TIME):
        end = begin + _AT_A_TIME
        part = _read(lines[begin:end], spans[begin:end], before, full_rate)
        before = float(part.axes[-1, TOKENS]), float(part.axes[-1, SECONDS])
        parts.append(part)
    return joined(parts)


def _read(lines: Sequence[bytes], spans: NDArray[np.int64], before: tuple[float, float], full_rate: float) -> Steps:
    records = from_json(b"[" + b",".join(lines) + b"]", cache_strings="keys")
    spent = np.empty((len(records), 3))
    spent[:, 0] = [record["seconds"] for record in records]
    spent[:, 1] = [record["wait"] for record in records]
    spent[:, 2] = [record.get("compile") or 0.0 for record in records]
    counts = _columns([record["counts"] for record in records])
    axes = np.empty((len(records), len(AXES)))
    axes[:, STEP] = [record["step"] for record in records]
    axes[:, SAMPLES] = [record["stop"] for record in records]
    axes[:, TOKENS] = before[0] + np.cumsum(np.nan_to_num(counts.get("tokens", np.zeros(len(records)))))
    seconds = spent[:, 0] + spent[:, 1]
    axes[:, SECONDS] = before[1] + np.cumsum(seconds)
    axes[:, TIME] = [record["time"] for record in records]
    skipped = [place for place, record in enumerate(records) if "skipped" in record]
    values = _values(records)
    values |= _rates(records, counts, seconds, full_rate, skipped)
    values["step/seconds"], values["step/wait"] = spent[:, 0], spent[:, 1]
    if spent[:, 2].any():
        values["step/compile"] = spent[:, 2]
    return Steps(axes, spans, spent, values, skipped)


# Tags are those of `watch.scalars`, which makes them of a record: here there is none.
_GROUPS = (("train", "losses"), ("gradient_norm", "norm"), ("learning_rate", "lr"), ("loss_weight", "weights"))


def _values(records: Sequence[Mapping[str, Any]]) -> dict[str, Numbers]:
    found = {}
    for group, field in _GROUPS:
        parts = [record.get(field) or {} for record in records]
        for name, column in _columns(parts).items():
            found[f"{group}/{name}"] = column
    if any("scale" in record for record in records):
        found["step/loss_scale"] = _numbers([record.get("scale") for record in records])
    return found


def _rates(
    records: Sequence[Mapping[str, Any]],
    counts: Mapping[str, Numbers],
    seconds: Numbers,
    full_rate: float,
    skipped: Sequence[int],
) -> dict[str, Numbers]:
    """Units a second, and MFU. A step in which nothing moved has trained nothing."""
    moved = np.ones(len(records))
    for place in skipped:
        record = records[place]
        moved[place] = any(network not in record["skipped"] for network in record["norm"])
    found = {}
    time = np.where(seconds > 0, seconds, np.nan)
    for unit, column in counts.items():
        found[f"{unit}_per_second/all"] = column * moved / time
    if full_rate and "samples" in counts:
        found["mfu/all"] = found["samples_per_second/all"] / full_rate
    return found


def _columns(parts: Sequence[Mapping[str, Any]]) -> dict[str, Numbers]:
    """By name, [parts]; NaN where a part has none."""
    names = parts[0].keys()
    # Nearly always all have the same names: then no part is asked twice.
    if len(names) * len(parts) == sum(map(len, parts)):
        try:
            return {name: _numbers(list(map(itemgetter(name), parts))) for name in names}
        except KeyError:
            pass
    every = dict.fromkeys(name for part in parts for name in part)
    found = {}
    for name in every:
        found[name] = _numbers([part.get(name) for part in parts])
    return found


def _numbers(values: Sequence[Any]) -> Numbers:
    """None is NaN, and so is what the ledger has as a string: "nan", "inf". Raises ValueError for lists in it."""
    column = np.array(values, dtype="f8")
    if column.ndim > 1:
        raise ValueError("a list stands where a number does")
    return column
