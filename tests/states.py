"""Small states and their commits, for tests of what writes and reads them."""

from __future__ import annotations

from pathlib import Path

import torch

from drivetrain.checkpoint.commit import StateTree
from drivetrain.checkpoint.commits import Commit, CommitFailure, Committer
from drivetrain.checkpoint.retention import Retention


def state(value: float = 1.0) -> StateTree:
    tensors = {"networks/m/w": torch.full((8, 8), value), "optimizers/m/w/step": torch.tensor(value)}
    return StateTree(tensors, {"step": value})


def committer(run: Path, keep: int = 9, **options) -> Committer:
    return Committer(run, options.pop("lease", None), Retention(keep), **options)


def save(run: Path, *steps: int, writer: Committer | None = None, **options) -> list[Commit | CommitFailure]:
    """Commit the state of each of these steps, one after the other."""
    writer = writer or committer(run, **options)
    results = []
    for step in steps:
        writer.begin(step, state(float(step)), {"recipe": "r", "position": 8 * step})
        results.append(writer.wait())
    return results
