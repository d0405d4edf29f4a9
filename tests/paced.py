"""A small task that takes its time until a file says otherwise, so that tests can interfere, whatever the machine."""

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from drivetrain import Task


class Noise:
    """Vectors of noise, one for each sample."""

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return torch.randn(4, generator=torch.Generator().manual_seed(index))


class Paced(Task):
    """Regression with dropout. Steps from `after` on take `seconds` while there is no file `gate`.

    Rank `victim` kills itself in step `crash`, while there is no gate.
    """

    def __init__(self, gate: str, after: int = 3, seconds: float = 0.3, crash: int = 0, victim: int = 0):
        self.gate, self.after, self.seconds, self.crash, self.victim = Path(gate), after, seconds, crash, victim

    def networks(self):
        return {"model": nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))}

    def update(self, step):
        if step.index >= self.after and not self.gate.exists():
            time.sleep(self.seconds)
            if step.index == self.crash and (dist.get_rank() if dist.is_initialized() else 0) == self.victim:
                os.kill(os.getpid(), signal.SIGKILL)
        step.minimize("model", self.loss)

    def loss(self, nets, batch):
        return (nets["model"](batch).squeeze(1) - batch.sum(1)).square().mean()


def recipe(gate: Path, **task) -> dict:
    """The recipe, of 40 steps with a commit after every tenth."""
    return {
        "name": "paced",
        "task": {"kind": "paced:Paced", "gate": str(gate), **task},
        "data": {"train": {"sources": [{"kind": "paced:Noise"}]}},
        "lanes": 4,
        "batch": {"size": 8, "micro": 2},
        "budget": {"steps": 40},
        "optimizer": {"kind": "adamw", "lr": 1e-2},
        "checkpoint": {"every": {"steps": 10}},
        "launch": {"threads": 1},
    }
