"""Goodput against the number of processes, and which setting is best: simulated, beside the formulas. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from drivetrain.plan.simulation import HOUR, Cluster, Costs, End, Setting, Simulated, simulate

FAILURES = 400
"""As many are simulated for each setting: the loss is then known to about a twentieth of itself."""
WEEK = 7 * 24 * HOUR
"""Seconds that are simulated at least, and where nothing fails."""
RUNS_LOST = 0.01
"""Runs of which nothing is left, for each that ends: so many commits are kept that there are no more."""
_FINE, _OCTAVES = 2, 3
"""Intervals that are tried: up to so many octaves from the formula's to either side, an octave in so many parts."""
_AS_GOOD = 1e-4
"""Goodput by which a setting must be better to be worth more machines or a larger disk."""


def young(commit: float, between: float) -> float:
    """Seconds of work between commits that lose least, to first order: sqrt(2 C M), for commits that training stands
    still for `commit` seconds for, and failures so many seconds `between` each other.

    J. W. Young 1974, "A first order approximation to the optimum checkpoint interval", CACM 17(9).
    """
    return math.sqrt(2 * commit * between)


def daly(commit: float, between: float) -> float:
    """The same to higher order, as `young`; M where a commit takes more than 2 M.

    J. T. Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
    Computer Systems 22(3), equation 37.
    """
    if commit >= 2 * between:
        return between
    ratio = math.sqrt(commit / (2 * between))
    return young(commit, between) * (1 + ratio / 3 + ratio**2 / 9) - commit


def expected(work: float, commit: float, restart: float, between: float) -> float:
    """The share of the time that is work that counts: of `work` seconds between commits, with failures at random that
    cost `restart` seconds, in which others may come. Daly's complete model (as `daly`, equation 20, over its work)."""
    if between == math.inf:
        return work / (work + commit)
    return work / (between * math.exp(restart / between) * math.expm1((work + commit) / between))


@dataclass(frozen=True)
class Choice:
    """A setting, and what comes of it."""

    setting: Setting
    found: Simulated

    def per_machine(self, nodes: int) -> float:
        """Goodput with spare machines counted as machines: what is paid for."""
        return self.found.goodput * nodes / (nodes + self.setting.spares)


@dataclass(frozen=True)
class Row:
    """A size of the cluster. `between` are seconds from failure to failure, `formula` the interval of `daly` in
    seconds, and `expected` what its model says of the best interval."""

    processes: int
    cluster: Cluster
    step: float
    between: float
    asked: Choice
    best: Choice
    formula: float
    expected: float


def between_failures(cluster: Cluster) -> float:
    """Mean seconds from one failure of a cluster to the next."""
    rate = cluster.nodes * cluster.failures
    return HOUR / rate if rate else math.inf


def row(processes: int, costs: Costs, cluster: Cluster, setting: Setting, steps: int, seed: int = 0) -> Row:
    """What a cluster makes of a setting, and the best setting there is for a run of so many steps."""
    tried = _Tried(costs, cluster, steps, seed)
    between = between_failures(cluster)
    keep = enough(steps * (costs.step + costs.beside) / between, cluster.damaged)
    best = tried.best(setting._replace(keep=keep))
    interval = best.setting.interval
    stands = costs.commit + interval * costs.beside  # what is no step's
    modelled = expected(interval * costs.step, stands, recovery(costs, cluster) + costs.writing, between)
    return Row(
        processes=processes,
        cluster=cluster,
        step=costs.step,
        between=between,
        asked=tried(setting),
        best=best,
        formula=daly(costs.commit, between),
        expected=modelled,
    )


def enough(failures: float, damaged: float) -> int:
    """Commits that are to be kept, so that after so many failures there is one left but for `RUNS_LOST`: each may be
    damaged, independently of the others. At least one."""
    if damaged <= 0 or not failures:
        return 1
    if damaged >= 1:
        raise ValueError("no number of commits is enough where all are damaged")
    return max(1, math.ceil(math.log(RUNS_LOST / failures) / math.log(damaged)))


def recovery(costs: Costs, cluster: Cluster) -> float:
    """Mean seconds that a restart takes where a machine is at hand."""
    here = costs.cold
    if cluster.nodes == 1:
        here = sum(costs.restart) / len(costs.restart)
    elsewhere = costs.silence + costs.queue + costs.cold
    return cluster.in_place * (costs.notice + here) + (1 - cluster.in_place) * elsewhere


class _Tried:
    """Settings that were tried on a cluster for runs of so many steps, each with the same failures, so that they differ
    by themselves only."""

    def __init__(self, costs: Costs, cluster: Cluster, steps: int, seed: int) -> None:
        self.costs, self.cluster, self._steps, self._seed = costs, cluster, steps, seed
        between = between_failures(cluster)
        # Many runs, one after the other: where failures are rare a single one would tell nothing of them.
        seconds = WEEK if between == math.inf else max(WEEK, FAILURES * between)
        self._end = End(seconds=seconds, run=steps)
        self._found: dict[Setting, Choice] = {}

    def __call__(self, setting: Setting) -> Choice:
        if setting not in self._found:
            chance = Random(self._seed)
            self._found[setting] = Choice(setting, simulate(self.costs, self.cluster, setting, chance, end=self._end))
        return self._found[setting]

    def best(self, setting: Setting) -> Choice:
        """One thing after the other: the interval, spare machines, and both again."""
        found = setting
        for _ in range(2):
            longest = max(self._steps, setting.interval)  # one that ends with the run is as long as any
            every = dict.fromkeys(min(each, longest) for each in intervals(self.costs, self.cluster, found))
            found = self._best(found._replace(interval=each) for each in every)
            found = self._best(found._replace(spares=each) for each in spare_counts(self.cluster))
        return self(found)

    def _best(self, settings: Iterable[Setting]) -> Setting:
        """The first one that none of the later ones is clearly better than."""
        best, most = None, -math.inf
        for setting in settings:
            goodput = self(setting).per_machine(self.cluster.nodes)
            if goodput > most + _AS_GOOD:
                best, most = setting, goodput
        assert best is not None
        return best


def intervals(costs: Costs, cluster: Cluster, setting: Setting) -> Sequence[int]:
    """Steps between commits that are worth trying, the longest first: around the formula's, and the one that is set."""
    between = between_failures(cluster)
    if between == math.inf:
        return [setting.interval]
    middle = max(daly(costs.commit, between), costs.commit, costs.step) / (costs.step + costs.beside)
    found = {setting.interval}
    for part in range(-_OCTAVES * _FINE, _OCTAVES * _FINE + 1):
        found.add(max(1, round(middle * 2 ** (part / _FINE))))
    return sorted(found, reverse=True)


def spare_counts(cluster: Cluster) -> Iterator[int]:
    """None, then twice as many each time, up to one for each sixteen that train."""
    yield 0
    spares = 1
    while spares <= cluster.nodes / 16:
        yield spares
        spares *= 2


def with_pulse(costs: Costs, doubling: float, measured_on: int, processes: int) -> Costs:
    """A step on so many processes, where it was measured on others: each doubling costs as many seconds. The rest of a
    step stays as it is: each process has as much to do as before."""
    step = costs.step + doubling * math.log2(processes / measured_on)
    return replace(costs, step=max(step, costs.step / 2))
