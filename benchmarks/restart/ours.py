"""A task whose steps take as long as they are told, for benchmarks of what is lost between them."""

import time

import torch
from torch import nn

from drivetrain import Task


class Sleepy(Task):
    """One linear layer; each micro-batch takes `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def networks(self):
        return {"model": nn.Linear(64, 64)}

    def collate(self, samples):
        return torch.stack(samples)

    def loss(self, nets, batch):
        time.sleep(self.seconds)
        return nets["model"](batch).square().mean()


class Numbers:
    """Random vectors."""

    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        return torch.full((64,), float(index) / 10_000)
