"""A task on rows, and data sets that are hard to read."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn

from drivetrain import Task


class Line(Task):
    """A line through the rows' `x`."""

    def networks(self):
        return {"model": nn.Linear(1, 1)}

    def loss(self, nets, batch):
        x = batch["x"].float()[:, None]
        return (nets["model"](x) - 2 * x).square().mean()


class Rows:
    """Forty rows; reading takes a while on one of two ranks."""

    def __init__(self, slow: float = 0.0):
        self.slow = slow if dist.is_initialized() and dist.get_rank() == 1 else 0.0

    def __len__(self):
        return 40

    def __getitem__(self, index):
        time.sleep(self.slow)
        return {"x": torch.tensor(index / 40)}


class Bad(Rows):
    """One row cannot be read; or, where a file is named, never comes until that file is there."""

    def __init__(self, row: int, hang: str = ""):
        super().__init__()
        self.row, self.hang = row, hang
        self.fingerprint = "bad"  # so that no row is looked at

    def __getitem__(self, index):
        if index == self.row:
            if not self.hang:
                raise OSError("bad sector")
            if not os.path.exists(self.hang):
                open(self.hang, "x").close()
                time.sleep(600)
        return super().__getitem__(index)


class Local(Rows):
    """Rows that are others on each rank."""

    def __init__(self):
        super().__init__()
        self.fingerprint = f"of process {os.getpid()}"
