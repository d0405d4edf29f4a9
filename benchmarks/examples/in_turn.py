"""Two programs in turn on a machine that others use: each runs for a moment while the other one is stopped.

So both meet the same neighbours. A step counts where it lies within one of its program's moments.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

MOMENT = 3.0  # seconds


@dataclass(frozen=True)
class Slice:
    """When a program ran, and the other did not: Unix times."""

    name: str
    start: float
    stop: float


def run_in_turn(commands: Mapping[str, Sequence[str]], folder: Path) -> list[Slice]:
    """Run programs, each of one process, to their ends; what NAME prints is in `folder`/NAME.out. Ends this program
    where one fails."""
    running: dict[str, subprocess.Popen] = {}
    slices: list[Slice] = []
    for name, command in commands.items():
        with (folder / f"{name}.out").open("w") as out, (folder / f"{name}.err").open("w") as err:
            running[name] = subprocess.Popen(command, stdout=out, stderr=err)
        running[name].send_signal(signal.SIGSTOP)
    try:
        while running:
            for name in list(running):
                start = time.time()
                if _ran(running[name]) and running.pop(name).returncode:
                    raise SystemExit(f"{name} failed:\n{(folder / f'{name}.err').read_text()[-3000:]}")
                slices.append(Slice(name, start, time.time()))
    finally:
        for process in running.values():
            process.kill()
    return slices


def _ran(process: subprocess.Popen) -> bool:
    """Let it run for a moment: whether it has ended."""
    process.send_signal(signal.SIGCONT)
    try:
        process.wait(MOMENT)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGSTOP)
        return False
    return True


def step_times(
    slices: Sequence[Slice], spans: Mapping[str, Sequence[tuple[float, float]]], few: int = 2
) -> list[tuple[float, float]]:
    """Mean seconds of a step of each of the two programs, for every two neighbouring moments in which both made at
    least `few` whole steps. `spans` are begins and ends of steps by program; the first program's mean comes first."""
    first, second = spans
    means: list[float | None] = []
    for one in slices:
        inside = [end - begin for begin, end in spans[one.name] if one.start <= begin and end <= one.stop]
        means.append(statistics.fmean(inside) if len(inside) >= few else None)
    found = []
    for (one, own), (other, next_) in pairwise(zip(slices, means, strict=True)):
        if (one.name, other.name) == (first, second) and own is not None and next_ is not None:
            found.append((own, next_))
    return found
