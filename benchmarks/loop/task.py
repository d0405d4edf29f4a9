"""The training that every framework does in the loop benchmark: about half a millisecond a step on one CPU thread."""

import math
from itertools import pairwise

import numpy as np
import torch
from torch import nn

import drivetrain

WIDTH, BATCH, ROWS, SEED = 64, 32, 4096, 0
LR, WARMUP, CLIP = 1e-3, 100, 1.0


def build() -> nn.Module:
    """An MLP of four layers."""
    torch.manual_seed(SEED)
    sizes = [WIDTH, 128, 128, 128]
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(128, 10))


def optimizer_for(model: nn.Module) -> torch.optim.Optimizer:
    """Fused AdamW, the same for all."""
    return torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0, fused=True)


def factor(position: int, steps: int) -> float:
    """Cosine to zero with a linear warm-up, on steps made."""
    if position < WARMUP:
        return position / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (position - WARMUP) / (steps - WARMUP)))


def loss_of(model: nn.Module, features: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    """Cross-entropy."""
    return nn.functional.cross_entropy(model(features), classes)


class Rows:
    """All samples in memory: features float32 [ROWS, WIDTH], classes int64 [ROWS]."""

    def __init__(self) -> None:
        random = np.random.default_rng(SEED)
        self.features = random.standard_normal((ROWS, WIDTH), dtype=np.float32)
        self.classes = random.integers(0, 10, ROWS)
        self.order = np.random.default_rng(1).permutation(ROWS)

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch of a step: a gather of rows, the same work for all."""
        start = step * BATCH % (ROWS - BATCH)
        ids = self.order[start : start + BATCH]
        return torch.from_numpy(self.features[ids]), torch.from_numpy(self.classes[ids])


class Batches(torch.utils.data.IterableDataset):
    """Ready batches, for frameworks that want a loader."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.rows = Rows()

    def __len__(self) -> int:
        return self.steps

    def __iter__(self):
        for step in range(self.steps):
            yield self.rows.batch(step)


class RowSource:
    """The same rows as a source of drivetrain."""

    fingerprint = "generated"
    thread_safe = True

    def __init__(self) -> None:
        self.rows = Rows()

    def __len__(self) -> int:
        return ROWS

    def read(self, ids, positions):
        return self.rows.features[ids], self.rows.classes[ids]


class Classify(drivetrain.Task):
    """The same training as a task of drivetrain."""

    def networks(self):
        return {"model": build()}

    def collate(self, samples):
        return torch.from_numpy(samples[0]), torch.from_numpy(samples[1])

    def loss(self, nets, batch):
        return loss_of(nets["model"], *batch)
