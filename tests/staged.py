"""A task of a user's own whose network lies on stages without a plan: blocks between a first and a last part."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from drivetrain import Dropout, Task


class Rows:
    """Rows of numbers, by their own index."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(index)
        return {"x": rng.normal(size=6).astype(np.float32), "y": rng.normal(size=2).astype(np.float32)}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.dropout = nn.Linear(8, 8), Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(torch.tanh(self.layer(x)))


class Staged(Task):
    """Means over samples, made of `inputs` and `loss_from`."""

    def networks(self):
        return {"model": nn.Sequential(nn.Linear(6, 8), Block(), Block(), Block(), nn.Linear(8, 2))}

    def inputs(self, batch):
        return (batch["x"],)

    def loss_from(self, output, batch):
        return (output - batch["y"]).square().mean(1).mean()


class Failing(Staged):
    """Its loss meets an error in the second step."""

    calls = 0

    def loss_from(self, output, batch):
        Failing.calls += output.requires_grad
        if Failing.calls > 4:
            raise ZeroDivisionError("of the user's own")
        return super().loss_from(output, batch)


class Whole(Staged):
    """Its loss is not made of `loss_from`."""

    def loss(self, nets, batch):
        return 2 * super().loss(nets, batch)


class Unsplit(Task):
    def networks(self):
        return Staged().networks()

    def loss(self, nets, batch):
        return (nets["model"](batch["x"]) - batch["y"]).square().mean()


class Elsewhere(Staged):
    """It is moved by another function than its loss."""

    def update(self, step):
        step.minimize(step.networks, lambda nets, batch: self.loss(nets, batch))


def recipe(kind: str = "Staged") -> dict:
    """Ten steps, the last of which has three samples."""
    return {
        "name": "staged",
        "task": {"kind": f"staged:{kind}"},
        "data": {
            "train": {"sources": [{"kind": "staged:Rows"}]},
            "validation": {"rows": {"kind": "staged:Rows"}},
        },
        "lanes": 2,
        "batch": {"size": 8, "micro": 2},
        "budget": {"samples": 75},
        "optimizer": {
            "kind": "adamw",
            "lr": 1e-2,
            "clip": 0.5,
            # One takes nothing of the first stage, another one nothing of the last.
            "groups": [{"match": "4", "lr": 1e-3}, {"match": "^0", "lr": 2e-3}],
        },
        "checkpoint": {"every": {"steps": 4}},
        "evaluate": {"every": {"steps": 5}, "batch": 32},
        "launch": {"threads": 1, "restarts": 0},
    }
