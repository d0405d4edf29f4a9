"""What becomes of steps whose numbers are not finite or stand out: plain data, and decisions as a function of it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import median
from typing import Any, NamedTuple

from drivetrain.data.quarantine import Quarantine
from drivetrain.engine.step_result import Scalars
from drivetrain.loop.recipe import Guard as Settings
from drivetrain.loop.recipe import Spike

_NORMAL = 1.4826
"""From the median absolute deviation to the standard deviation, of a normal distribution."""
_LEAST_SPREAD = 0.01
"""Of the median: numbers that hardly vary do not make a spike of every change."""
_DELAY = 2
"""A step is judged by those that came at least so many before it: on an accelerator the last one is still under way."""


def limit(values: Sequence[float], deviations: float) -> float:
    """What a number must exceed to be a spike: median + deviations * spread, with 1.4826 * MAD as the spread.

    The median absolute deviation is not moved by the very spikes that it is there to find (Hampel 1974).
    """
    middle = median(values)
    spread = _NORMAL * median(abs(value - middle) for value in values)
    return middle + deviations * max(spread, _LEAST_SPREAD * abs(middle))


class Undone(NamedTuple):
    """A bad step, the one that the run went back to, and the samples that it has left out since."""

    step: int
    to: int
    samples: tuple[int, ...]


@dataclass(frozen=True)
class GuardState:
    """What a commit keeps of the guard: how many steps were left out (in a row, in all), its windows of (step, number)
    by name, and what was undone."""

    in_a_row: int = 0
    in_all: int = 0
    windows: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    undone: Sequence[Undone] = ()

    def to_json(self) -> dict[str, Any]:
        """For a commit."""
        windows: dict[str, list[list[float]]] = {}
        for name, pairs in self.windows.items():
            windows[name] = [list(pair) for pair in pairs]
        undone = [[step, to, list(samples)] for step, to, samples in self.undone]
        return {"in_a_row": self.in_a_row, "in_all": self.in_all, "windows": windows, "undone": undone}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> GuardState:
        """What `to_json` gave; what an older commit lacks is as at the start."""
        windows: dict[str, list[tuple[int, float]]] = {}
        for name, pairs in state.get("windows", {}).items():
            windows[name] = [(step, value) for step, value in pairs]
        undone = [Undone(step, to, tuple(samples)) for step, to, samples in state.get("undone", ())]
        return cls(state.get("in_a_row", 0), state.get("in_all", 0), windows, undone)


class Guard:
    """Remembers a window of losses and norms, how many steps were left out, and what was undone."""

    def __init__(
        self,
        settings: Settings,
        state: GuardState | None = None,
        least_scale: float = 0.0,
        undone: Iterable[Undone] = (),
    ) -> None:
        """An overflow at `least_scale` counts as gradients that are not finite: the loss scale cannot help. `undone` is
        what the ledger tells of it: the state may be older, and what is known to go wrong is not tried again."""
        state = state or GuardState()
        self.least_scale = least_scale
        self.settings = settings
        self._listed = settings.listed
        self.undone = list(dict.fromkeys([*state.undone, *undone]))  # each once: both may tell of the same
        self._begin(state)

    def _begin(self, state: GuardState) -> None:
        self.in_a_row = state.in_a_row
        self.in_all = state.in_all
        self._windows = {name: deque(pairs) for name, pairs in state.windows.items()}

    @property
    def state(self) -> GuardState:
        """What the next attempt begins with: a copy, which later steps do not change."""
        windows = {name: tuple(pairs) for name, pairs in self._windows.items()}
        return GuardState(self.in_a_row, self.in_all, windows, tuple(self.undone))

    def go_back(self, state: GuardState, undone: Undone) -> None:
        """Be as in this state of an earlier boundary, but for what was undone."""
        self.undone.append(undone)
        self._begin(state)

    def too_many(self, step: int) -> str:
        """Why this step must not be undone too, if so."""
        earlier = [undone.step for undone in self.undone if undone.step <= step]
        row, following = 1, step
        # Steps are not told apart by which samples they had: it is the place that goes wrong again.
        for before in sorted(earlier, reverse=True):  # neighbours, or the same step, undone before with other samples
            if before < following - 1:
                break
            row, following = row + 1, before
        if row > self.settings.in_a_row:
            return f"{row} steps in a row went wrong; guard.in_a_row is {self.settings.in_a_row}"
        return self._too_many_in_all(1)

    def _too_many_in_all(self, more: int = 0) -> str:
        number = self.in_all + len(self.undone) + more
        if number <= self.settings.in_all:
            return ""
        return f"{number} steps were left out or undone; guard.in_all is {self.settings.in_all}"

    @property
    def undoes_spikes(self) -> bool:
        """Whether a spike makes the run go back."""
        return self.settings.spike is not None and self.settings.spike.action == "rollback"

    @property
    def stops_at_spikes(self) -> bool:
        """Whether a spike ends the run."""
        return self.settings.spike is not None and self.settings.spike.action == "stop"

    def leaves_out(self, step: int, counts: Mapping[str, int]) -> str:
        """Why this step is not to be made: the recipe lists it, or all of its samples are in quarantine; "" where it
        is. `counts` are the step's, over all ranks."""
        if any(first <= step <= last for first, last in self._listed):
            return "listed"
        # Over all ranks: they have to leave out the same step, though one of them may have nothing to read in any case.
        if not counts["samples"]:
            return "quarantined"
        return ""

    @property
    def quarantine(self) -> Quarantine:
        """The samples that are left out."""
        # From the step after the one that was gone back to: what was made before it has seen these samples, and stays.
        later = [(undone.to + 1, undone.samples) for undone in self.undone]
        return Quarantine([(1, self.settings.quarantine), *later])

    def limits(self, step: int, call: int) -> dict[str, float]:
        """The largest loss (`loss/NAME`) and norm (`norm/NETWORK`) with which a step's `call`-th `minimize` moves."""
        if self.settings.spike is None or self.settings.spike.action != "skip":
            return {}
        return self._limits(self.settings.spike, step, call)

    def judge(self, step: int, call: int, scalars: Scalars) -> str:
        """Which numbers of a `minimize` are spikes, in words; empty for none. They enter the window."""
        if self.settings.spike is None or scalars.why in ("not finite", "overflow"):
            return ""
        # On an accelerator the step was made with limits that were found before it; these are the same, since they look
        # at nothing newer.
        limits = self._limits(self.settings.spike, step, call)
        numbers: dict[str, float] = {}
        for name, value in scalars.losses.items():
            numbers[f"loss/{name}"] = value
        for name, value in scalars.norms.items():
            numbers[f"norm/{name}"] = value
        for name, value in numbers.items():
            window = self._windows.setdefault(f"{call}/{name}", deque())
            window.append((step, value))
            while len(window) > self.settings.spike.window + _DELAY:  # the newest are not judged by yet
                window.popleft()
        beyond = []
        for name, value in numbers.items():
            if value > limits.get(name, math.inf):
                beyond.append(f"{name} {value:.4g} is above {limits[name]:.4g}")
        return ", ".join(beyond)

    def _limits(self, spike: Spike, step: int, call: int) -> dict[str, float]:
        found = {}
        for name, pairs in self._windows.items():
            number, _, what = name.partition("/")
            if int(number) != call:
                continue
            arrived = takewhile(lambda pair: pair[0] <= step - _DELAY, pairs)
            values = [value for _, value in arrived][-spike.window :]
            # Of fewer, a median says little, and the first steps of a run fall fast.
            if len(values) >= spike.window // 2:
                found[what] = limit(values, spike.deviations)
        return found

    def count(self, *, left_out: bool, moved: bool) -> str:
        """A step has been left out on account of its numbers, or something has moved, or neither: it is on the list, or
        has overflowed. Returns why there must not be more, if so."""
        if left_out:
            self.in_a_row, self.in_all = self.in_a_row + 1, self.in_all + 1
        elif moved:
            self.in_a_row = 0
        if self.in_a_row > self.settings.in_a_row:
            return f"{self.in_a_row} steps in a row were left out; guard.in_a_row is {self.settings.in_a_row}"
        return self._too_many_in_all()
