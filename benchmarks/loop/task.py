"""The model that every framework trains in the loop benchmark: about half a millisecond a step on one CPU thread."""

import math

import numpy as np
import torch
from torch import nn

WIDTH, BATCH, ROWS, SEED = 64, 32, 4096, 0
LR, WARMUP, CLIP = 1e-3, 100, 1.0


def build() -> nn.Module:
    """An MLP of three layers."""
    torch.manual_seed(SEED)
    return nn.Sequential(
        nn.Linear(WIDTH, 128),
        nn.GELU(),
        nn.Linear(128, 128),
        nn.GELU(),
        nn.Linear(128, 128),
        nn.GELU(),
        nn.Linear(128, 10),
    )


def table() -> tuple[np.ndarray, np.ndarray]:
    """All samples: features float32 [ROWS, WIDTH] and classes int64 [ROWS]."""
    random = np.random.default_rng(SEED)
    return random.standard_normal((ROWS, WIDTH), dtype=np.float32), random.integers(0, 10, ROWS)


def factor(step: int, steps: int) -> float:
    """Cosine with a linear warm-up."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / max(1, steps - WARMUP)))


def loss(model: nn.Module, features: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    """Cross-entropy."""
    return nn.functional.cross_entropy(model(features), classes)
