"""SIGKILL at random moments, as long as there is time: the runs must end with the bits of one that nobody disturbed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from unittest import mock

import psutil

from drills.runs import WORKER, drill, leftovers, reference
from drills.stalled import WORKER as STALLED
from drills.stalled import random_stalls
from drivetrain.launch import restarts
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Exit

STEPS = 400
PAUSE = (0.02, 0.3)
"""Seconds between the start of an attempt and the next kill."""
LATER = (0.2, 1.5)
"""The same where tensors are cut. There half of the kills wait for a commit first: nobody hands over a state, and a
slow machine may make none in that time, ever."""


@dataclass
class Score:
    """`kills` were delivered in `runs` runs; `wrong` names those that did not end with the right bits.

    Seconds from each kill to the end of the first new step; steps that were lost by each.
    """

    kills: int = 0
    runs: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)
    recovery: list[float] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    lost_beside_survivors: list[int] = field(default_factory=list)


REPLICAS = [(1, ()), (2, ()), (2, ()), (4, ())]
"""Processes, and what else a run is asked for."""
CUT = [
    (2, ("parallel.shard=2",)),
    (4, ("parallel.replicate=2", "parallel.shard=2")),
    (2, ("parallel.tensor=2",)),
    (4, ("parallel.shard=2", "parallel.tensor=2")),
    (2, ("parallel.pipeline=2", "task.model.depth=2")),
    (4, ("parallel.pipeline=2", "parallel.shard=2", "task.model.depth=2")),
    (4, ("parallel.pipeline=2", "parallel.tensor=2", "task.model.depth=2")),
    (
        2,
        (
            "parallel={pipeline: 2, pipeline_schedule: interleaved, virtual_stages: 2}",
            "task.model.depth=4",
        ),
    ),
    (2, ("parallel.context=2",)),
    (4, ("parallel.context=2", "parallel.shard=2")),
    (4, ("parallel.context=2", "parallel.tensor=2")),
    (4, ("parallel.context=2", "parallel.pipeline=2", "task.model.depth=2")),
]
TABLES = [
    (1, ()),
    (2, ('embeddings.hold={".*": table}',)),
    (2, ('embeddings.hold={".*": row}',)),
    (4, ()),
]
TORCHREC = [(1, ()), *TABLES[1:3]]


def kill_at_random(
    recipe: dict,
    folder: Path,
    *,
    seed: int,
    seconds: float,
    most: int | None = None,
    stalls: bool = False,
    places: Sequence[tuple[int, tuple[str, ...]]] = REPLICAS,
) -> Score:
    """Train again and again under random kills until the time is over, or `most` kills are made; with `stalls` the run
    directory stalls again and again meanwhile, as the workers see it."""
    cut = places is not REPLICAS  # processes hold parts
    generator = random.Random(seed)
    steps = STEPS // 4 if stalls or cut else STEPS  # each takes longer
    recipe = recipe | {"budget": {"steps": steps}, "evaluate": {"every": {"steps": steps * 3 // 8}, "batch": 64}}
    expected: dict[tuple, object] = {}
    score, began = Score(), time.monotonic()
    while time.monotonic() - began < seconds and (most is None or score.kills < most):
        # Where tensors are cut nobody hands over a state: what was committed is all that a run goes on from.
        place, every = generator.choice(places), generator.choice([1, 2, 3] if cut else [2, 5, 20])
        world, layout = place
        blocking = generator.choice([True, False])
        asked = [f"launch.processes={world}", *layout, f"checkpoint.every={{steps: {every}}}", "launch.restarts=1000"]
        asked.append(f"checkpoint.blocking={'true' if blocking else 'false'}")
        if place not in expected:
            expected[place] = reference(recipe, folder / f"reference-{len(expected)}", *asked[: 1 + len(layout)])
        run = folder / f"run-{score.runs}"
        with (
            _killer(run, generator, cut=cut) as kills,
            random_stalls(run, random.Random(seed + score.runs)) if stalls else nullcontext(),
            mock.patch.multiple(restarts, PAUSE=0.05, LONGEST_PAUSE=0.5),
        ):
            found = drill(recipe, run, None, *asked, worker=STALLED if stalls else WORKER)
        score.runs += 1
        score.kills += len(kills)
        wrong = found.outcome.code is not Exit.DONE or found.trace != expected[place] or leftovers(run)
        if wrong:
            score.wrong.append(f"seed {seed}, run {score.runs - 1} {asked}: {found.outcome}")
        _measure(run, kills, score)
        if not wrong:
            shutil.rmtree(run)
    score.seconds = time.monotonic() - began
    return score


@contextmanager
def _killer(run: Path, generator: random.Random, *, cut: bool) -> Iterator[list[tuple[float, bool]]]:
    """While entered, workers of this process are killed; the list has the time of each kill, and whether all died."""
    pause = LATER if cut else PAUSE
    kills: list[tuple[float, bool]] = []
    over = threading.Event()

    def work() -> None:
        seen = 0
        while not over.wait(0.01):
            attempts = _count(run, b'"kind":"attempt"')
            if attempts <= seen:
                continue
            seen = attempts
            if cut and generator.random() < 0.5 and not _committed_anew(run, attempts, over):
                continue
            if over.wait(generator.uniform(*pause)):
                return
            pids = workers(run)
            victims = pids if generator.random() < 0.25 else pids[:1] if generator.random() < 0.5 else pids[-1:]
            if strike(victims):
                kills.append((time.time(), len(victims) == len(pids)))

    with beside(work, over):
        yield kills


def strike(victims: Sequence[int]) -> bool:
    """Kill processes; whether any was still there."""
    struck = False
    for pid in victims:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            struck = True
    return struck


@contextmanager
def beside(work: Callable[[], None], over: threading.Event) -> Iterator[None]:
    """While entered, a thread is at work that ends once this is `over`."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _committed_anew(run: Path, attempts: int, over: threading.Event) -> bool:
    """Wait until there is a commit more; False once the run is over, or was started again by itself."""
    before = _count(run, b'"kind":"commit"')
    while _count(run, b'"kind":"commit"') <= before:
        if over.wait(0.01) or _count(run, b'"kind":"attempt"') > attempts:
            return False
    return True


def workers(run: Path) -> list[int]:
    """Processes that train this run: children of the forkserver that have something of it open."""
    found = []
    for server in psutil.Process().children():
        for process in server.children():
            with suppress(psutil.Error):
                if any(file.path.startswith(str(run)) for file in process.open_files()):
                    found.append(process.pid)
    return sorted(found)


def _count(run: Path, what: bytes) -> int:
    try:
        return (run / "ledger.jsonl").read_bytes().count(what)
    except OSError:
        return 0


def _measure(run: Path, kills: list[tuple[float, bool]], score: Score) -> None:
    records = list(read(run / "ledger.jsonl"))
    starts = [i for i, record in enumerate(records) if record["kind"] == "attempt"]
    for before, after in pairwise(starts):
        struck = [kill for kill in kills if records[before]["time"] < kill[0] < records[after]["time"]]
        if not struck:
            continue
        at, all_died = struck[-1]
        made = [record["step"] for record in records[before:after] if record["kind"] == "step"]
        lost = max(0, (made[-1] if made else records[before]["from_step"]) - records[after]["from_step"])
        score.lost.append(lost)
        if not all_died:
            score.lost_beside_survivors.append(lost)
        step = next((record for record in records[after:] if record["kind"] == "step"), None)
        if step:
            score.recovery.append(step["time"] - at)
