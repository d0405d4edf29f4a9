"""A task of a user's own whose samples are cut by positions: attention of its own, and a loss that adds up."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from drivetrain import Dropout, Losses, Mean, ParallelPlan, Positions, Task

LENGTH = 16


class Walks:
    """Rows of tokens, by their own index."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> np.ndarray:
        return np.random.default_rng(index).integers(0, 11, LENGTH + 1)


class Attention(nn.Module):
    positions = Positions()

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out, self.dropout = nn.Linear(8, 24), nn.Linear(8, 8), Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.into(x).unflatten(2, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        mixed = self.positions.attend(*heads).transpose(1, 2).flatten(2)
        return x + self.dropout(self.out(mixed))


class Local(Attention):
    """Its author has forgotten that positions may be elsewhere."""

    positions = None


class Net(nn.Module):
    positions = Positions()

    def __init__(self, block: type[nn.Module] = Attention) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 8), nn.Embedding(LENGTH, 8)
        self.blocks, self.head = nn.ModuleList([block(), block()]), nn.Linear(8, 11)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(self.positions.here(tokens.shape[1], tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x) * self.scale


class Sliced(Task):
    """`how`: "sum" of positions, which is right; "mean"; or one with no word of what is cut ("plain"), cut of what is
    not there ("strange") or of samples of 15 positions ("odd")."""

    def __init__(self, how: str = "sum") -> None:
        self._how = how

    def networks(self):
        return {"model": Net()}

    def parallel_plan(self, name, network):
        if self._how == "plain":
            return None
        sliced = {"tokens": 1, "targets": 2 if self._how == "strange" else 1}
        return ParallelPlan(units=("blocks.*",), context=("blocks.*",), sliced=sliced)

    def collate(self, samples):
        rows = torch.from_numpy(np.stack(samples))
        last = 15 if self._how == "odd" else LENGTH
        return {"tokens": rows[:, :last], "targets": rows[:, 1 : last + 1]}

    def counts(self, batch):
        return {"tokens": batch["targets"].numel()}

    def loss(self, nets, batch):
        logits = nets["model"](batch["tokens"]).flatten(0, 1)
        total = nn.functional.cross_entropy(logits, batch["targets"].flatten(), reduction="sum")
        return total / batch["targets"].numel() if self._how == "mean" else Losses(loss=(total, "tokens"))


class Last(Sliced):
    """Scores the last position, which one process has: it says nothing of parts, and sees whole samples."""

    def metrics(self):
        return {"hits": Mean()}

    def evaluate(self, nets, batch, metrics):
        logits = nets["model"](batch["tokens"])
        assert logits.shape[1] == LENGTH
        metrics["hits"].add(float(logits[:, -1, 3].sum()), len(logits))


class Parts(Sliced):
    """Its scores add up over parts of samples."""

    scores_parts = True

    def evaluate(self, nets, batch, metrics):
        assert batch["tokens"].shape[1] == LENGTH // nets["model"].positions.ranks
        return super().evaluate(nets, batch, metrics)


def recipe(task: str = "Sliced", **told) -> dict:
    return {
        "name": "sliced",
        "task": {"kind": f"sliced:{task}", **told},
        "data": {
            "train": {"sources": [{"kind": "sliced:Walks"}]},
            "validation": {"walks": {"kind": "sliced:Walks"}},
        },
        "lanes": 4,
        "batch": {"size": 8, "micro": 2},
        "budget": {"steps": 4},
        "optimizer": {"kind": "adamw", "lr": 1e-2, "clip": 1.0},
        "evaluate": {"every": {"steps": 2}, "batch": 50},
        "launch": {"threads": 1},
    }
