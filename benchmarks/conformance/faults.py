"""The faults. Each is made from the outside, the same for all systems, and tells in a few words what was seen."""

from __future__ import annotations

import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from judge import Ended, attempts, bits, coverage, history, repeated, tally
from systems import System
from trial import PATIENCE, MissedError, Trial

SLOW = 0.15
"""Seconds a step rests where the system needs time to react: one of them waits three seconds before it saves."""


@dataclass
class Bench:
    """One system under test: where its trials lie, and its undisturbed runs on one and on two processes."""

    system: System
    programs: Path
    folder: Path
    log: list[str] = field(default_factory=list)

    def trial(self, name: str, run: Path | None = None) -> Trial:
        return Trial(self.system, self.programs, self.folder / name, run)

    def close(self, trial: Trial) -> None:
        """End what is left of a trial, keep its log, remove its files."""
        trial.kill()
        self.log.append(f"== {trial.folder.name}\n{trial.record()}")
        shutil.rmtree(trial.folder, ignore_errors=True)

    @contextmanager
    def trying(self, name: str, run: Path | None = None) -> Iterator[Trial]:
        trial = self.trial(name, run)
        try:
            yield trial
        finally:
            self.close(trial)

    def undisturbed(self, processes: int, name: str) -> Ended:
        with self.trying(f"{name}-{processes}") as trial:
            return trial.whole(processes)

    @cached_property
    def on_one(self) -> Ended:
        return self.undisturbed(1, "undisturbed")

    @cached_property
    def on_two(self) -> Ended:
        return self.undisturbed(2, "undisturbed")

    @cached_property
    def broken_off(self) -> Trial:
        """A run on one process, killed between the fourth and the fifth checkpoint."""
        trial = self.trial("broken-off")
        trial.start(1).until(46).strike()
        return trial

    @cached_property
    def continued(self) -> Ended:
        """That run started again, with nothing damaged: what damage is judged by."""
        trial = self.broken_off.copy(self.folder / "continued")
        try:
            return trial.whole(1)
        finally:
            self.close(trial)


def reference(bench: Bench) -> str:
    seen = {}
    for processes, first in ((1, bench.on_one), (2, bench.on_two)):
        seen[processes] = bits(bench.undisturbed(processes, "again"), first)
        gap = coverage(history(attempts(first.witness)))
        if gap.lost or gap.doubled:
            seen[processes] += f", {gap.lost} samples lost, {gap.doubled} doubled"
    return seen[1] if seen[1] == seen[2] else f"on 1: {seen[1]}; on 2: {seen[2]}"


def kill(bench: Bench) -> str:
    cells = []
    for seed in range(3):
        generator = random.Random(seed)
        with bench.trying(f"kill-{seed}") as trial:
            trial.start(2).until(generator.randint(5, 55))
            time.sleep(generator.uniform(0, 0.02))
            trial.strike()
            cells.append(bits(trial.whole(2), bench.on_two))
    return tally(cells)


def kill_in_checkpoint(bench: Bench) -> str:
    cells = []
    for delay in (0.0, 0.002, 0.005):
        with bench.trying(f"kill-in-checkpoint-{delay}") as trial:
            trial.start(2).until(30)
            fresh = trial.until_written()
            time.sleep(delay)
            trial.note(f"being written: {fresh.relative_to(trial.run)}")
            trial.strike()
            cells.append(bits(trial.whole(2), bench.on_two))
    return tally(cells)


def resume(bench: Bench) -> str:
    """Killed three times: in the first epoch, just after a checkpoint at its end, in the second epoch."""
    with bench.trying("resume") as trial:
        for step in (25, 34, 46):
            trial.start(1).until(step).strike()
        return bits(trial.whole(1), bench.on_one)


def terminate(bench: Bench) -> str:
    with bench.trying("terminate") as trial:
        trial.start(2, pause=SLOW).until(25).signal_launcher(signal.SIGTERM)
        ended = trial.finish(PATIENCE)
        if ended.code is None:
            return f"**still there after {PATIENCE:g} s**; {_again(bench, trial)}"
        return f"exit {ended.code}; {_again(bench, trial)}"


def one_killed(bench: Bench) -> str:
    return _one_of_two(bench, "one-killed", signal.SIGKILL)


def one_stopped(bench: Bench) -> str:
    return _one_of_two(bench, "one-stopped", signal.SIGSTOP)


def _one_of_two(bench: Bench, name: str, number: signal.Signals) -> str:
    with bench.trying(name) as trial:
        trial.start(2).until(25)
        trial.signal_rank(1, number)
        ended = trial.finish(PATIENCE)
        if ended.code == 0:
            steps = repeated(attempts(ended.witness))
            return f"goes on by itself, {_steps(steps)} again: {bits(ended, bench.on_two)}"
        told = f"exit {ended.code}" if ended.code is not None else f"**nothing happens for {PATIENCE:g} s**"
        return f"{told}; {_again(bench, trial)}"


def _again(bench: Bench, trial: Trial) -> str:
    """The run is started again by hand."""
    ended = trial.whole(2)
    return f"started again, {_steps(repeated(attempts(ended.witness)))} again: {bits(ended, bench.on_two)}"


def _steps(counts: list[int | None]) -> str:
    total = sum(count or 0 for count in counts)
    return f"{total} step{'' if total == 1 else 's'}"


def resize(bench: Bench) -> str:
    with bench.trying("resize") as trial:
        trial.start(2).until(25).strike()
        trial.start(1).until(45).strike()
        return bits(trial.whole(2), bench.on_two)


def flip(bench: Bench) -> str:
    def damage(checkpoint: Path) -> Path:
        largest = _largest_first(checkpoint)[0]
        with largest.open("r+b") as file:
            file.seek(largest.stat().st_size // 2)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 0xFF]))
        return largest

    return _damaged(bench, "flip", damage)


def truncate(bench: Bench) -> str:
    def damage(checkpoint: Path) -> Path:
        largest = _largest_first(checkpoint)[0]
        with largest.open("r+b") as file:
            file.truncate(largest.stat().st_size // 2)
        return largest

    return _damaged(bench, "truncate", damage)


def half_deleted(bench: Bench) -> str:
    def damage(checkpoint: Path) -> Path:
        files = _largest_first(checkpoint)
        for path in files[: (len(files) + 1) // 2]:
            path.unlink()
        return files[0]

    return _damaged(bench, "half-deleted", damage)


def _damaged(bench: Bench, name: str, damage: Callable[[Path], Path]) -> str:
    sound = bench.continued
    trial = bench.broken_off.copy(bench.folder / name)
    try:
        checkpoint = bench.system.newest(trial.run)
        struck = damage(checkpoint)
        trial.note(f"{name}: {struck.relative_to(trial.run)}")
        ended = trial.whole(1)
        named = "names it" if trial.told(re.escape(checkpoint.name)) else "does not name it"
        if ended.code is None or ended.code:
            return f"stops with exit {ended.code} ({named})"
        first = attempts(ended.witness)[-1].first or 0
        if first == attempts(sound.witness)[-1].first:
            silent = ended.sha256 != sound.sha256
            return "**trains on from the damaged state and says nothing**" if silent else "no effect on the weights"
        source = f"step {first - 1}" if first > 1 else "**the beginning**"
        return f"goes back to {source} ({named}): {bits(ended, bench.on_one)}"
    finally:
        bench.close(trial)


def _largest_first(checkpoint: Path) -> list[Path]:
    files = [checkpoint] if checkpoint.is_file() else [path for path in checkpoint.rglob("*") if path.is_file()]
    return sorted(files, key=lambda path: (-path.stat().st_size, path.name))


def disk_full(bench: Bench) -> str:
    with _small_disk(bench.folder / "disk") as disk:
        if disk is None:
            return "not tried: mounting needs root"
        with bench.trying("disk-full", disk / "run") as trial:
            trial.start(1).until(15)
            _fill(disk / "filler")
            trial.note(f"disk full after step {attempts(trial.witness())[-1].last}")
            ended = trial.finish(PATIENCE)
            (disk / "filler").unlink()
            told = "cause told" if trial.told("no space left|errno 28|os error 28") else "cause not told"
            after = bits(trial.whole(1), bench.on_one)
            code = f"exit {ended.code}" if ended.code is not None else "**hangs**"
            return f"{code} ({told}); with space again: {after}"


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path | None]:
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=100m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _fill(path: Path) -> None:
    """Leave no room, down to the last page."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass


def not_a_number(bench: Bench) -> str:
    with bench.trying("not-a-number") as trial:
        ended = trial.whole(1, nan=137)
        if ended.code == 0:
            return bits(ended, bench.on_one) + ", exit 0"
        told = "told" if trial.told(r"not finite|non-?finite|\bnan\b") else "not told"
        return f"stops with exit {ended.code} (cause {told})"


@dataclass(frozen=True)
class Fault:
    """`title` is the row's name; `make` strikes and tells what was seen."""

    name: str
    title: str
    make: Callable[[Bench], str]

    def tried(self, bench: Bench) -> str:
        try:
            return self.make(bench)
        except MissedError as missed:
            bench.log.append(f"not struck: {missed}")
            return f"not struck: {missed}"


FAULTS = (
    Fault("reference", "nothing: the same run twice, on 1 and on 2 processes", reference),
    Fault("kill", "SIGKILL for all, 2 processes, three random moments", kill),
    Fault("kill-in-checkpoint", "SIGKILL for all while a checkpoint is written, three moments", kill_in_checkpoint),
    Fault("resume", "1 process, killed in steps 25, 34 and 46 of 60", resume),
    Fault("terminate", "SIGTERM for the launcher of 2 processes", terminate),
    Fault("one-killed", "SIGKILL for one process of two", one_killed),
    Fault("one-stopped", "SIGSTOP for one process of two", one_stopped),
    Fault("resize", "2 processes, then 1, then 2, killed in between", resize),
    Fault("flip", "one byte of the newest checkpoint's largest file changed", flip),
    Fault("truncate", "that file cut to half", truncate),
    Fault("half-deleted", "the larger half of the newest checkpoint's files gone", half_deleted),
    Fault("disk-full", "the disk is full from step 15 on", disk_full),
    Fault("nan", "one sample is not a number", not_a_number),
)
