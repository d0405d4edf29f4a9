"""A network of equal blocks that a compiler is done with in seconds, and what may be asked of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import drivetrain
from drivetrain.worker import main

WIDTH = 6


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH, eps=1e-6)
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = drivetrain.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.outer(torch.tanh(self.inner(self.norm(x)))))


class Deep(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(3))
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, x):
        x = self.second(self.first(x))
        for block in self.blocks:
            x = block(x)
        return self.last(x)


PLAN = drivetrain.ParallelPlan(
    units=("blocks.*",),
    # What `second` makes is on its way still when the first block is called.
    split={"first": "column", "second": "row", "blocks.*.inner": "column", "blocks.*.outer": "row"},
    stages=("first", "second", "blocks.*", "last"),
)


class Rows:
    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int):
        return torch.linspace(0, 1, 3) * (index / 60) + index % 7


class Fit(drivetrain.Task):
    def __init__(self, dropout: float = 0.1) -> None:
        self.dropout = dropout

    def networks(self):
        return {"model": Deep(self.dropout)}

    def parallel_plan(self, name, network):
        return PLAN

    def inputs(self, batch):
        return (batch,)

    def loss_from(self, output, batch):
        return (output - batch.mean(-1, keepdim=True)).square().mean()


class Norm:
    """What nn.RMSNorm computes, by one call; `scale` is what a mistake would make of it."""

    def __init__(self, module: nn.Module, scale: float = 1.0) -> None:
        self.module, self.scale = module, scale

    def forward(self, x):
        return F.rms_norm(x, self.module.normalized_shape, self.module.weight * self.scale, self.module.eps)


def norm(module: nn.Module):
    """The same, as a function that gives one."""
    return Norm(module).forward


def numbers(module: nn.Module):
    """No function at all."""
    return 3


class Weighted(nn.Module):
    """With a parameter that no commit would keep."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return x * self.weight


class Linears(nn.Module):
    """Blocks of torch's own class."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def recipe(**own) -> dict:
    """Six steps, of which the last has fewer samples."""
    rows = {"kind": "compiled:Rows"}
    return {
        "name": "compiled",
        "task": {"kind": "compiled:Fit"},
        "data": {"train": {"sources": [rows]}, "validation": {"rows": rows}},
        "lanes": 4,
        "batch": {"size": 8, "micro": 2},
        "budget": {"samples": 44},
        "optimizer": {"kind": "adamw", "lr": 0.01},
        "checkpoint": {"every": {"steps": 3}},
        "evaluate": {"every": {"steps": 3}, "batch": 60},
        "compile": {"scope": "block"},
        "launch": {"threads": 1},
    } | own


def warm(job, place, descriptors):
    """A worker that finds what the compiler has made in other tests, and in other sessions of them."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(sys.prefix) / "inductor")
    return main(job, place, descriptors)


def cold(job, place, descriptors):
    """A worker whose compiler finds nothing."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(job["folder"]) / "cold")
    return main(job, place, descriptors)
