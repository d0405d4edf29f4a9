"""Runs to be shown: ledgers as the loop writes them, of some made-up numbers with planted spikes."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from drivetrain.ledger.ledger import LedgerFile

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from records import attempt, commit, evaluation

Row: TypeAlias = dict[str, Any]
SPIKES = 77_777
"""A step whose number is a multiple of this has four times the loss."""
SETS = ("cats", "dogs", "birds", "fish", "cows")
_AT_ONCE = 1000  # steps between two commits, and a write
_BEGAN = 1.79e9  # Unix time
_NETWORKS = ("generator", "discriminator", "vocoder")


def plain_row(at: int, draw: random.Random) -> Row:
    """A step of one network: about 345 bytes, seven curves."""
    return {
        "time": _BEGAN + 0.07 * at,
        "step": at,
        "start": 16 * at - 16,
        "stop": 16 * at,
        "samples": at,
        "losses": {"loss": _loss(at, draw)},
        "counts": {"samples": 16, "tokens": 2048},
        "norm": {"model": abs(draw.gauss(0.5, 0.1))},
        "lr": {"model": 0.003 * math.cos(at / 1e6)},
        "seconds": 0.066 + draw.random() * 0.004,
        "wait": 1.5e-5,
    }


def wide_row(at: int, draw: random.Random) -> Row:
    """A step of three networks with ten losses: about 775 bytes, 22 curves."""
    losses = {"loss": _loss(at, draw)}
    for number in range(1, 10):
        losses[f"part_{number}"] = draw.random()
    return plain_row(at, draw) | {
        "losses": losses,
        "counts": {"samples": 16, "tokens": 2048, "seconds": 12},
        "norm": {name: draw.random() for name in _NETWORKS},
        "lr": dict.fromkeys(_NETWORKS, 0.003 * math.cos(at / 1e6)),
        "scale": 65536.0,
    }


def _loss(at: int, draw: random.Random) -> float:
    loss = 1.2 + 4 * at**-0.35 + draw.gauss(0, 0.04)
    return 4 * loss if at % SPIKES == 0 else loss


def write(run: Path, steps: int, row: Callable[[int, random.Random], Row] = plain_row, seed: int = 0) -> Path:
    """A run of so many steps, with scores of five sets and a commit after every thousand."""
    run.mkdir(parents=True)
    (run / "resolved.json").write_text('{"recipe": {"name": "long", "optimizer": {"lr": 0.001}}, "origins": {}}')
    draw, ledger = random.Random(seed), LedgerFile.open(run / "ledger.jsonl")
    ledger.append(attempt(steps=steps))
    for begin in range(0, steps, _AT_ONCE):
        last = min(begin + _AT_ONCE, steps)
        ledger.append_steps(1, [row(at, draw) for at in range(begin + 1, last + 1)])
        at = _BEGAN + 0.07 * last
        scores = {name: {"loss": 2 - last / steps + draw.gauss(0, 0.02)} for name in SETS}
        ledger.append(evaluation(last) | {"time": at, "metrics": scores, "counts": dict.fromkeys(SETS, 9)})
        ledger.append(commit(last, at=at))
    ledger.close()
    return run


class Runs:
    """The runs of one sitting, each written when it is first asked for."""

    def __init__(self, folder: Path, steps: int, many: int, each: int) -> None:
        self.folder, self.steps, self.many, self.each = folder, steps, many, each

    def plain(self) -> Path:
        """One long run of `plain_row`."""
        return self._made(self.folder / "plain" / "long", plain_row)

    def wide(self) -> Path:
        """One long run of `wide_row`."""
        return self._made(self.folder / "wide" / "long", wide_row)

    def short(self) -> Path:
        """The folder of many short runs."""
        folder = self.folder / "many"
        for number in range(self.many):
            if not (run := folder / f"run-{number:03d}").exists():
                write(run, self.each, seed=number)
        return folder

    def _made(self, run: Path, row: Callable[[int, random.Random], Row]) -> Path:
        return run if run.exists() else write(run, self.steps, row)
