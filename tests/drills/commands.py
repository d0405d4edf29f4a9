"""Runs that are told something all the time, and what must be so afterwards."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import nn

from conftest import run_under_supervisor, trace
from drills.runs import PRELOAD, WORKER
from drivetrain import Task
from drivetrain.launch.inbox import post
from drivetrain.ledger.ledger import read
from drivetrain.spec.commands import Command
from drivetrain.spec.exits import Exit, Outcome


class Rows:
    """Vectors with the number of their sample in front."""

    def __init__(self, first: int = 0):
        self.first = first

    def __len__(self):
        return 500

    def __getitem__(self, index):
        return torch.tensor([self.first + index, *np.random.default_rng(index).standard_normal(4)], dtype=torch.float32)


class Seen(Task):
    """Each process writes down the learning rate and a checksum of the weights that it makes each step with."""

    def __init__(self, seen: str):
        self.seen = seen

    def networks(self):
        return {"model": nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.1), nn.Linear(16, 1))}

    def loss(self, nets, batch):
        return (nets["model"](batch[:, 1:]).squeeze(1) - batch[:, 1:].sum(1)).square().mean()

    def update(self, step):
        engine = step._engine
        weights = b"".join(_whole(p).numpy().tobytes() for p in engine.networks["model"].parameters())
        with open(f"{self.seen}/{os.getpid()}", "a") as file:
            file.write(f"{step.index} {engine.network_optimizers['model'].rates['model']!r} {zlib.crc32(weights)}\n")
        time.sleep(0.002)
        super().update(step)


def _whole(parameter: torch.Tensor) -> torch.Tensor:
    """All of it, also where each process has a part."""
    whole = parameter.detach()
    return whole.full_tensor() if hasattr(whole, "full_tensor") else whole


def recipe(steps: int, processes: int, seen: Path, **parallel: int) -> dict:
    """Two sources, dropout, and everything that a command may change; the mesh is of replicas but for `parallel`."""
    sources = [
        {"name": name, "kind": "drills.commands:Rows", "first": first} for name, first in (("a", 0), ("b", 1000))
    ]
    return {
        "name": "told",
        "task": {"kind": "drills.commands:Seen", "seen": str(seen)},
        "data": {"train": {"sources": sources}, "validation": {"v": {"kind": "drills.commands:Rows"}}},
        "lanes": 4,
        "batch": {"size": 8, "micro": 2},
        "budget": {"steps": steps},
        "optimizer": {"lr": 1e-2, "clip": 1.0},
        "schedule": {"kind": "cosine", "warmup": {"steps": 2}},
        "checkpoint": {"every": {"steps": 50}},
        "evaluate": {"every": {"steps": 200}, "batch": 64},
        "parallel": parallel,
        "launch": {"threads": 1, "processes": processes, "restarts": 100},
    }


def commands(seed: int) -> Iterator[Command]:
    """Without an end; every pause is followed by a resume."""
    draw = random.Random(seed)
    while True:
        match draw.choice(("set", "set", "set", "save", "evaluate", "pause", "pin", "refused")):
            case "set":
                yield Command("set", _setting(draw))
            case "pause":
                yield Command("pause")
                yield Command("resume")
            case "refused":
                yield Command("set", draw.choice(("optimizer.lr=-1", "seed=3", "data.train.sources[name=c].weight=1")))
            case verb:
                yield Command(verb)


def _setting(draw: random.Random) -> str:
    number = draw.uniform(0.1, 2)
    return draw.choice(
        (
            f"optimizer.lr={number / 100}",
            f"optimizer.weight_decay={number / 10}",
            f"optimizer.clip={number}",
            f"schedule.floor={min(1, number / 2)}",
            f"data.train.sources[name={draw.choice('ab')}].weight={round(number, 1)}",
            f"evaluate.every.steps={draw.randint(50, 300)}",
            f"checkpoint.every.steps={draw.randint(20, 80)}",
        )
    )


class Poster:
    """Posts commands to a run while it trains, on a thread of its own; with `seen` it kills processes now and then."""

    def __init__(self, run: Path, seed: int, most: int, pause: float, seen: Path | None) -> None:
        self.posted: list[str] = []
        self._run, self._most, self._pause = run, most, pause
        self._commands, self._draw = commands(seed), random.Random(seed + 1)
        self._seen = seen
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        while not (self._run / "ledger.jsonl").is_file():
            if self._ended.wait(0.02):
                return
        while len(self.posted) < self._most and not self._ended.wait(self._draw.expovariate(1 / self._pause)):
            self.posted.append(post(self._run, next(self._commands)))
            if self._seen and self._draw.random() < 0.05:
                self._kill(self._seen)
        while not self._ended.wait(0.5):  # a pause that was the last one must end
            post(self._run, Command("resume"))

    def _kill(self, seen: Path) -> None:
        newest = max(seen.iterdir(), key=lambda path: path.stat().st_mtime, default=None)
        if newest:
            with suppress(ProcessLookupError):
                os.kill(int(newest.name), signal.SIGKILL)


def train(settings: dict, run: Path, replay: Path | None = None, override: tuple[str, ...] = ()) -> Outcome:
    """Under the real supervisor."""
    again = str(replay) if replay else None
    return run_under_supervisor(settings, run, worker=WORKER, preload=PRELOAD, override=override, replay=again)


def wrong(run: Path, seen: Path, posted: list[str]) -> list[str]:
    """What does not hold of the run that was told: ranks that differ, and commands that were lost or done twice.

    A step that is made again may differ by what the run was told in between."""
    found, made = [], {}
    fresh = [r for r in read(run / "ledger.jsonl") if r["kind"] == "command" and not r.get("replayed")]
    later = [r["step"] for r in fresh if r["verb"] == "set" and r["attempt"] > 1]
    for path in sorted(seen.iterdir()):
        for line in path.read_text().splitlines():
            step, what = line.split(" ", 1)
            made.setdefault(int(step), set()).add(what)
    for step, whats in made.items():
        if len(whats) > 1 + sum(told < step for told in later):
            found.append(f"step {step}: on several processes or attempts {', '.join(sorted(whats))}")
    codes = [r["code"] for r in read(run / "ledger.jsonl") if r["kind"] == "exit"]
    found += [f"an attempt ended with {code}" for code in codes if code == Exit.CORRUPTION_SUSPECTED]
    told = Counter(r["id"] for r in fresh)
    found += [f"command {id} stands {told[id]} times in the ledger" for id in posted if told[id] != 1]
    return found


def told_and_replayed(
    folder: Path, *, steps: int, processes: int, seed: int, most: int, pause: float, kills: bool, **parallel: int
) -> tuple[int, list[str]]:
    """How many commands a run was told, and what does not hold of it or of its replay."""
    run, seen = folder / "run", folder / "seen"
    seen.mkdir()
    settings = recipe(steps, processes, seen, **parallel)
    poster = Poster(run, seed, most, pause, seen if kills else None)
    try:
        outcome = train(settings, run)
    finally:
        poster.close()
    if outcome.code is not Exit.DONE:
        return len(poster.posted), [f"the run ended with {outcome.line()}"]
    left = sorted(path.stem for path in (run / "control").glob("*.json"))  # came after the last step
    found = wrong(run, seen, [id for id in poster.posted if id not in left])
    again = train(settings, folder / "again", replay=run)
    if again.code is not Exit.DONE:
        found.append(f"the replay ended with {again.line()}")
    elif trace(folder / "again") != trace(run):
        found.append("the replay is another run")
    return len(poster.posted), found
