"""A run under failures, on paper: a discrete-event simulation of steps, commits, failures and restarts.

Pure functions of measured costs; the clock is a number, and chance is given. No torch. Time goes from one failure to
the next: what lies between, such as a thousand equal stretches from commit to commit, is one sum.

Modelled is what supervisors do today: survivors of a process hand their state over on one machine; else the newest
commit counts, or where that is damaged the one before it. Restarts without a new commit wait longer and longer. A lost
machine is replaced by a spare one, or waited for.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain, pairwise, repeat
from random import Random
from typing import NamedTuple

from drivetrain.launch import attempts
from drivetrain.launch.attempts import JobAttempt
from drivetrain.launch.restarts import Ended, GiveUp, Retry, next_start
from drivetrain.spec.exits import Exit, Outcome

HOUR = 3600.0
BUCKETS: tuple[str, ...] = ("step", "beside", "commit", "lost work", "restart", "machine")
"""What time is used for: steps that count; data and evaluations between them; standing still for commits; steps that a
failure made void, with what was beside them; detection, pauses and starts; waiting for a machine."""
_KILLED = Outcome(code=Exit.INTERNAL, cause="killed", where={"signal": "SIGKILL"})


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What parts of a run take, in seconds."""

    step: float
    """A step, in the mean."""
    spread: float = 0.0
    """Standard deviation of a step's time; steps are independent of each other."""
    beside: float = 0.0
    """What each step has beside it in the mean, and no commit: waiting for data, evaluations."""
    commit: float = 0.0
    """How long training stands still for a commit."""
    writing: float = 0.0
    """How long a commit is written beside training before it counts."""
    notice: float = 0.0
    """From the death of a process to when its supervisor knows of it."""
    restart: tuple[float, ...] = (0.0,)
    """From there to the first step on the same machine, as often as it was measured: one is drawn each time."""
    cold: float = 0.0
    """From a command to the first step, where nothing is warm: a job's start on other machines."""
    silence: float = 0.0
    """From the loss of a machine to when the others know of it."""
    queue: float = 0.0
    """What an engine takes to start a job again, once there are machines."""
    first: float = 0.0
    """By how much the first step of a start takes longer than others."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The machines of a run, and how they fail: independently of each other, and of how long they have been up."""

    nodes: int = 1
    failures: float = 0.0
    """Of one node in an hour."""
    in_place: float = 0.0
    """The share of failures that leave the machine as it was: only a process has died."""
    handed_over: float = 0.0
    """The share of these after which survivors hand their state over: on one machine only."""
    repair: float = 0.0
    """Seconds after which a lost machine, or another one for it, is there again."""
    damaged: float = 0.0
    """The share of commits that turn out to be damaged when they are loaded."""
    restarts: int = 3
    """Starts in a row without a new commit after which the supervisor gives up."""


class Setting(NamedTuple):
    """What can be chosen: steps from commit to commit, commits that are kept, machines that wait to replace others."""

    interval: int
    keep: int
    spares: int


class Fault(NamedTuple):
    """A failure, `after` so many seconds since the one before; whether the machine stays, and survivors hand over."""

    after: float
    in_place: bool
    handed_over: bool


_NEVER = Fault(math.inf, in_place=True, handed_over=False)


class End(NamedTuple):
    """When a simulation ends: once so many steps count, or so many seconds have passed. Runs of `run` steps follow each
    other in it: where no commit is left, that one begins anew and those before it count."""

    steps: float = math.inf
    seconds: float = math.inf
    run: float = math.inf


@dataclass(frozen=True)
class Simulated:
    """What came of a run. `seconds` by `BUCKETS` add up to its time. `steps` count at its end, `lost` were made in
    vain; `over` says how often no commit was left, and `loops` how often the supervisor gave up, in both of which
    somebody has started the run again."""

    seconds: Mapping[str, float]
    steps: int
    lost: int
    failures: int
    over: int
    loops: int

    @property
    def goodput(self) -> float:
        """The share of the time in which steps were made that count, as `report` has it."""
        whole = sum(self.seconds.values())
        return self.seconds["step"] / whole if whole else 0.0


def poisson(cluster: Cluster, chance: Random) -> Iterator[Fault]:
    """Failures without memory, as many as there are nodes times theirs; none where they do not fail."""
    rate = cluster.nodes * cluster.failures / HOUR
    while rate:
        in_place = chance.random() < cluster.in_place
        handed_over = in_place and cluster.nodes == 1 and chance.random() < cluster.handed_over
        yield Fault(chance.expovariate(rate), in_place, handed_over)


@dataclass
class _Machines:
    """Those that wait, and when those come back that were lost."""

    spares: int
    repair: float
    _back: list[float] = field(default_factory=list)

    def replace(self, now: float) -> float:
        """Lose one; seconds until there is another in its place."""
        while self._back and self._back[0] <= now:
            heappop(self._back)
            self.spares += 1
        heappush(self._back, now + self.repair)
        if self.spares:
            self.spares -= 1
            return 0.0
        return heappop(self._back) - now


class _Run:
    """A run while its time passes. `step` is the one that is made last, `commits` are those on the disk, `handed_over`
    is the step that survivors have left in memory."""

    def __init__(
        self, costs: Costs, cluster: Cluster, setting: Setting, chance: Random, length: float = math.inf
    ) -> None:
        self.costs, self.cluster, self.setting, self.chance, self._length = costs, cluster, setting, chance, length
        self.now = 0.0
        self.step = 0
        self.seconds = dict.fromkeys(BUCKETS, 0.0)
        self.lost = self.failures = self.over = self.loops = 0
        self._commits: deque[int] = deque(maxlen=setting.keep)
        self._handed_over = 0
        self._writing: int | None = None  # the step of the commit under way, and when it will count
        self._written = 0.0
        self._history: deque[Ended] = deque(maxlen=cluster.restarts + 2)
        self._machines = _Machines(setting.spares, cluster.repair)
        # The steps that starts went on from, of those that count, and what each step took from there on.
        self._starts: list[tuple[int, float]] = []

    def train(self, until: float, goal: float) -> None:
        """Make steps until a moment or a step; what is begun at that moment is lost."""
        if self.now + self.costs.first > until:
            self._spend("lost work", math.inf, until)
            return
        self._spend("step", self.costs.first)
        each = self._step_time(until)
        self._starts.append((self.step, each))
        while self.step < goal:
            due = self.setting.interval - self.step % self.setting.interval
            count = min(due, goal - self.step, _times(until - self.now, each + self.costs.beside))
            self._make(int(count), each)
            if self.step >= goal:
                return
            if count < due or not self._commit(until):
                self._spend("lost work", math.inf, until)
                return
            self._repeat(until, goal, each)

    def _spend(self, bucket: str, seconds: float, until: float = math.inf) -> bool:
        """Let time pass, but not beyond a moment; whether there was enough."""
        enough = self.now + seconds <= until
        if not enough:
            seconds = max(0.0, until - self.now)
        self.now += seconds
        self.seconds[bucket] += seconds
        return enough

    def _step_time(self, until: float) -> float:
        """The mean over the stretch that begins: that of many independent steps spreads less than each."""
        costs = self.costs
        if not costs.spread:
            return costs.step
        count = max(1.0, min(1e9, (until - self.now) / costs.step))
        return max(costs.step / 2, self.chance.gauss(costs.step, costs.spread / math.sqrt(count)))

    def _make(self, count: int, each: float) -> None:
        self.step += count
        self._spend("step", count * each)
        self._spend("beside", count * self.costs.beside)

    def _commit(self, until: float) -> bool:
        """Begin the commit that is due, once the one before counts; whether there was the time for it."""
        wait = self.costs.commit
        if self._writing is not None:  # training stands until it has ended
            wait += max(0.0, self._written - self.now)
        if not self._spend("commit", wait, until):
            return False
        if self._writing is not None:
            self._commits.append(self._writing)
        self._writing, self._written = self.step, self.now + self.costs.writing
        return True

    def _repeat(self, until: float, goal: float, each: float) -> None:
        """As many whole stretches from one commit's beginning to the next as there is time for: all are alike."""
        costs, interval, begun = self.costs, self.setting.interval, self.step
        work = interval * (each + costs.beside)
        stand = max(0.0, costs.writing - work) + costs.commit
        count = int(min(_times(until - self.now, work + stand), _times(goal - begun, interval) - 1))
        if count < 1:
            return
        self._make(count * interval, each)
        self._spend("commit", count * stand)
        self._commits.extend(range(max(begun, self.step - interval * self.setting.keep), self.step, interval))
        self._writing, self._written = self.step, self.now + costs.writing

    def fail(self, fault: Fault) -> list[tuple[str, float]]:
        """A failure: what is void, and what passes by bucket until training goes on."""
        self.failures += 1
        if self._writing is not None and self._written <= self.now:
            self._commits.append(self._writing)
        self._writing = None
        found = self._found(fault)
        self._back_to(found)
        costs, pause = self.costs, self._pause(found)
        if fault.in_place:
            start = costs.cold
            if self.cluster.nodes == 1:
                start = self.chance.choice(costs.restart)
            return [("restart", costs.notice + pause + start)]
        wait = self._machines.replace(self.now + costs.silence)
        return [("restart", costs.silence), ("machine", wait), ("restart", max(pause, costs.queue) + costs.cold)]

    def recover(self, parts: list[tuple[str, float]], until: float) -> bool:
        """Let what follows a failure pass; False where the next one comes before it is over."""
        return all(self._spend(bucket, seconds, until) for bucket, seconds in parts)

    def _found(self, fault: Fault) -> int:
        """The step to go on from: what survivors have left, now or before, or the newest commit that is whole; where
        there is none the run's first one."""
        if fault.handed_over:
            self._handed_over = self.step
            return self.step
        if not fault.in_place:
            self._handed_over = 0
        had = len(self._commits)
        while self._commits and self.chance.random() < self.cluster.damaged:
            self._commits.pop()
        begun = int(self.step - self.step % self._length)
        if self._commits:
            return max(begun, self._commits[-1], self._handed_over)
        self.over += had > 0 and not self._handed_over
        return max(begun, self._handed_over)

    def _back_to(self, step: int) -> None:
        """What was made after this step is void."""
        lost, end, seconds = self.step - step, self.step, 0.0
        while self._starts and end >= step:
            begin, each = self._starts[-1]
            seconds += (end - max(begin, step)) * each
            end = begin
            if begin < step:
                break
            self._starts.pop()
            seconds += self.costs.first
        self.step = step
        self.lost += lost
        for bucket, void in {"step": seconds, "beside": lost * self.costs.beside}.items():
            # Sums in another order end on other bits: no more is void than there was.
            void = min(void, self.seconds[bucket])
            self.seconds[bucket] -= void
            self.seconds["lost work"] += void

    def _pause(self, reached: int) -> float:
        """What the supervisor, or on several machines the job's runner, waits before it starts again: their own
        rules."""
        self._history.append(Ended(_KILLED, killed=True, reached=reached))
        rule = next_start if self.cluster.nodes == 1 else _next_attempt
        following = rule(list(self._history), self.cluster.restarts)
        if isinstance(following, GiveUp):
            self.loops += 1
            self._history.clear()
            return 0.0
        return following.pause


def _next_attempt(history: Sequence[Ended], most: int) -> Retry | GiveUp:
    """As `next_start`, of a job on several machines; how many retries it has in all is no matter here."""
    listed = []
    for before, last in pairwise([Ended(_KILLED, True, None), *history]):
        listed.append(JobAttempt(outcome=_KILLED, before=before.reached, reached=last.reached, began=0.0, ended=0.0))
    return attempts.following(listed, retries=len(listed), fruitless=most)


def _times(whole: float, part: float) -> float:
    """How often a part fits whole; endless where the whole is, or the part is nothing."""
    if whole == math.inf or not part:
        return math.inf
    return max(0.0, whole // part)


def simulate(
    costs: Costs,
    cluster: Cluster,
    setting: Setting,
    chance: Random,
    *,
    end: End,
    faults: Iterator[Fault] | None = None,
) -> Simulated:
    """A run from its command to its end. Failures are those of the cluster, or `faults`: each so many seconds after the
    one before, from the command on. One that comes while the run starts again ends that start."""
    faults = chain(poisson(cluster, chance) if faults is None else faults, repeat(_NEVER))
    run = _Run(costs, cluster, setting, chance, end.run)
    fault = next(faults)
    at = fault.after
    ready = run.recover([("restart", costs.cold)], min(at, end.seconds))
    while run.now < end.seconds:
        if ready:
            run.train(min(at, end.seconds), end.steps)
        if run.step >= end.steps or at >= end.seconds:
            break
        parts = run.fail(fault)
        fault = next(faults)
        at += fault.after
        ready = run.recover(parts, min(at, end.seconds))
    return Simulated(run.seconds, run.step, run.lost, run.failures, run.over, run.loops)
