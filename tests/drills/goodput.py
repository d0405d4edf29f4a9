"""Runs under SIGKILL at the moments of a Poisson process, and what a simulation makes of the same: its costs are those
of another run, as the ledger of that one has them."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

import paced
from drills.kills import beside, strike, workers
from drills.runs import drill, one_server
from drivetrain.ledger.run_summary import summary_of
from drivetrain.plan.run_costs import costs_of_run
from drivetrain.plan.simulation import HOUR, Cluster, Costs, End, Fault, Setting, simulate
from drivetrain.spec.exits import Exit

STEP, EVERY = 0.1, 20
"""Seconds that a step sleeps; steps from commit to commit."""
BETWEEN = 20.0
"""Mean seconds from one kill to the next."""
NOTICE = 0.03
RUNS = 200
"""Simulated runs, whose mean counts."""
CASES = ((2, 0.0), (4, 0.25), (2, 1.0))
"""Processes, and the share of kills that are of all at once."""


class Kill(NamedTuple):
    """Seconds since the run's command, and whether all processes were killed."""

    after: float
    all_died: bool


@dataclass(frozen=True)
class Compared:
    """Goodput of a real run, the mean of simulated ones under failures at the same rate with its standard deviation
    from run to run, and of those in which they came at the very moments; with all that the simulation was made of."""

    world: int
    all_at_once: float
    costs: Costs
    steps: int
    kills: list[Kill]
    seconds: float
    real: float
    at_rate: float = 0.0
    spread: float = 0.0
    at_moments: float = 0.0

    @property
    def off(self) -> float:
        """Points of goodput by which the simulation is off where failures come at the same moments."""
        return 100 * abs(self.at_moments - self.real)

    @property
    def holds(self) -> bool:
        """Within three points; at the same rate within three, or within what such runs differ by among themselves:
        when a few kills come is luck."""
        return self.off <= 3 and abs(self.at_rate - self.real) <= max(0.03, 2 * self.spread)

    def simulated(self, runs: int = RUNS) -> Compared:
        """With what a simulation says."""
        share = sum(kill.all_died for kill in self.kills) / max(1, len(self.kills))
        rate = len(self.kills) / self.seconds * HOUR
        cluster = Cluster(failures=rate, in_place=1.0, handed_over=1 - share, restarts=1000)
        setting, end = Setting(EVERY, 3, 0), End(steps=self.steps)
        found = [simulate(self.costs, cluster, setting, Random(seed), end=end).goodput for seed in range(runs)]
        same = []
        for seed in range(runs // 10):
            told = simulate(self.costs, cluster, setting, Random(seed), end=end, faults=faults(self.kills))
            same.append(told.goodput)
        return replace(
            self, at_rate=statistics.fmean(found), spread=statistics.stdev(found), at_moments=statistics.fmean(same)
        )


def faults(kills: list[Kill]) -> Iterator[Fault]:
    """The same as failures of a simulation."""
    for before, kill in pairwise([Kill(0.0, False), *kills]):
        yield Fault(kill.after - before.after, in_place=True, handed_over=not kill.all_died)


def compare(folder: Path, world: int, all_at_once: float, seconds: float, seed: int) -> Compared:
    """Train twice under kills: once for the costs, once to compare. At the same time, by processes that know nothing of
    each other: what else a machine does changes from minute to minute."""
    run, told = folder / "real", [world, all_at_once, seconds, 2 * seed]
    other = subprocess.Popen([sys.executable, "-m", "drills.goodput", folder / "costs", *map(str, told)])
    kills, took = warmly_trained(run, world, all_at_once, seconds, 2 * seed + 1)
    assert other.wait() == 0
    like = costs_of_run(folder / "costs").seconds
    # The very first start may have been killed before it could tell what it cost.
    cold = statistics.fmean(like["restart"])
    costs = Costs(**{"notice": NOTICE, "cold": cold, **like})
    summary = summary_of(run)
    return Compared(world, all_at_once, costs, len(summary.steps), kills, took, summary.goodput).simulated()


def warmly_trained(run: Path, world: int, all_at_once: float, seconds: float, seed: int) -> tuple[list[Kill], float]:
    """As `trained`, after a short run: what is loaded once is no cost of a start."""
    with one_server():
        trained(run.parent / f"warm-{run.name}", world, 0.0, 2.0, seed)
        return trained(run, world, all_at_once, seconds, seed)


def trained(run: Path, world: int, all_at_once: float, seconds: float, seed: int) -> tuple[list[Kill], float]:
    """A run of as many steps as there is time for, with its kills, and the seconds that it took."""
    recipe = paced.recipe(run.parent / "never", after=1, seconds=STEP) | {"budget": {"steps": int(seconds / STEP)}}
    recipe |= {"checkpoint": {"every": {"steps": EVERY}}}
    began = time.time()
    with _killer(run, random.Random(seed), all_at_once) as kills:
        found = drill(recipe, run, None, f"launch.processes={world}", "launch.restarts=1000")
    assert found.outcome.code is Exit.DONE, found.outcome
    return kills, time.time() - began


@contextmanager
def _killer(run: Path, chance: random.Random, all_at_once: float) -> Iterator[list[Kill]]:
    """While entered, workers of the run are killed; the list has each kill. Where nobody is there, nobody dies."""
    kills: list[Kill] = []
    over, began = threading.Event(), time.time()

    def work() -> None:
        at = began
        while True:
            at += chance.expovariate(1 / BETWEEN)
            if over.wait(max(0.0, at - time.time())):
                return
            there = workers(run)
            all_die = chance.random() < all_at_once
            victims = there if all_die or not there else [chance.choice(there)]
            if strike(victims):
                kills.append(Kill(time.time() - began, len(victims) == len(there)))

    with beside(work, over):
        yield kills


def recorded(found: Compared) -> str:
    """What a test needs to make the simulation again."""
    return json.dumps(asdict(found))


def from_record(text: str) -> Compared:
    """The comparison that `recorded` has told."""
    told = json.loads(text)
    costs = told.pop("costs")
    told["kills"] = [Kill(*kill) for kill in told["kills"]]
    return Compared(**told, costs=Costs(**{**costs, "restart": tuple(costs["restart"])}))


if __name__ == "__main__":
    path, *numbers = sys.argv[1:]
    warmly_trained(Path(path), int(numbers[0]), float(numbers[1]), float(numbers[2]), int(numbers[3]))
