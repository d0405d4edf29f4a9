"""Small runs that checks make: recipes on random tokens, training in processes of their own, what is compared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from accelerator.check import Here, require
from accelerator.tasks import KILL
from drivetrain.checkpoint.inspection import difference
from drivetrain.ledger.derive import lineage
from drivetrain.ledger.ledger import read
from drivetrain.ledger.records import StepRecord

TINY = {"vocabulary": 256, "width": 64, "depth": 2, "heads": 4, "kv_heads": 2, "context": 32}
SMALL = {"vocabulary": 4096, "width": 512, "depth": 4, "heads": 8, "kv_heads": 4, "context": 256}
DECODER = "accelerator.tasks:Decoder"
_TOKENS = 1_000_000
_TRAIN = "import json, sys, drivetrain; drivetrain.train(json.load(open(sys.argv[1])), run=sys.argv[2], progress=False)"


def model(here: Here) -> dict[str, Any]:
    """The decoder of checks that are not about speed."""
    return dict(TINY if here.reduced else SMALL)


def recipe(here: Here, shape: Mapping[str, Any], **changed: Any) -> dict[str, Any]:
    """A decoder of this shape on random tokens, 4 lanes and 12 steps, on the device that is here."""
    tokens = here.folder / f"tokens-{shape['vocabulary']}.bin"
    if not tokens.exists():
        np.random.default_rng(0).integers(0, shape["vocabulary"], _TOKENS, dtype=np.uint16).tofile(tokens)
    source = {"kind": "tokens", "path": str(tokens), "context": shape["context"], "vocabulary": shape["vocabulary"]}
    return {
        "name": "accelerator",
        "device": here.kind,
        "task": {"kind": "language_model", "model": {"kind": "llama", **shape}},
        "data": {"train": {"sources": [source]}},
        "lanes": 4,
        "batch": {"size": 8, "micro": 2},
        "budget": {"steps": 12},
        "optimizer": {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.1, "clip": 1.0},
        "checkpoint": {"every": {"steps": 4}},
        "launch": {"threads": 1},
        "watch": {"tensorboard": False},
    } | changed


def train(made: Mapping[str, Any], run: Path) -> Path:
    """Train in this process, or where the recipe asks for several, beside it."""
    import drivetrain

    return drivetrain.train(made, run=run, progress=False).run


def train_killed(made: Mapping[str, Any], run: Path, step: int, rank: int) -> Path:
    """The same, where a rank's process ends by SIGKILL in this step, once.

    Several processes have a supervisor, which starts them again. One that is alone is started again here.
    """
    marker = run.with_suffix(".kill")
    marker.write_text("")
    file = run.with_suffix(".json")
    file.write_text(json.dumps(made))
    settings = os.environ | {KILL: json.dumps({"marker": str(marker), "step": step, "rank": rank})}
    command = [sys.executable, "-c", _TRAIN, str(file), str(run)]
    code = subprocess.run(command, env=settings).returncode
    require(not marker.exists(), f"no process was killed in step {step}: the run ended with {code}")
    if code == -signal.SIGKILL:
        code = subprocess.run(command, env=settings).returncode
    require(code == 0, f"the run that was killed in step {step} ended with {code}")
    return run


def steps(run: Path) -> list[StepRecord]:
    """The records of all steps that count."""
    return [record for record in lineage(read(run / "ledger.jsonl")) if isinstance(record, StepRecord)]


def losses(run: Path) -> list[float]:
    """Of each step, its first one."""
    return [next(iter(record.losses.values())) for record in steps(run)]


def require_same_bits(first: Path, second: Path) -> int:
    """How many tensors are the same bits. Raises CheckFailedError where one is not, or a loss."""
    apart = difference(first, second)
    for name, how in apart.tensors.items():
        require(False, f"{second.name} has other bits than {first.name}: {name} {how}")
    require(losses(first) == losses(second), f"{second.name} has other losses than {first.name}")
    return apart.equal


def furthest(first: Sequence[float], second: Sequence[float]) -> float:
    """The largest difference of two curves of losses, as a part of the loss."""
    return max(abs(one - other) / abs(one) for one, other in zip(first, second, strict=True))
