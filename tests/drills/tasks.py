"""Tasks that are hard on resumes."""

import torch
from torch import nn

from drivetrain import Task


class Numbers:
    """Vectors, one for each sample."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((4,), index / 64)


class Teacher(Task):
    """A teacher that follows the student in every training forward pass, as in MoCo and BYOL."""

    def networks(self):
        net = nn.ModuleDict({"student": nn.Linear(4, 4), "teacher": nn.Linear(4, 4)})
        net["teacher"].requires_grad_(False)
        return {"model": net}

    def loss(self, nets, batch):
        net = nets["model"]
        with torch.no_grad():
            net["teacher"].weight.lerp_(net["student"].weight, 0.1)
        return (net["student"](batch) - net["teacher"](batch) - 1).square().mean()


class Statistics(Task):
    """A running mean that training itself uses."""

    def networks(self):
        net = nn.Linear(4, 4)
        net.register_buffer("mean", torch.zeros(4))
        return {"model": net}

    def loss(self, nets, batch):
        net = nets["model"]
        net.mean.lerp_(batch.mean(0), 0.1)
        return (net(batch - net.mean) - 1).square().mean()


class Odd(Task):
    """A network with a buffer that no file can hold."""

    def networks(self):
        net = nn.Linear(4, 4)
        net.register_buffer("sparse", torch.eye(4).to_sparse())
        return {"model": net}

    def loss(self, nets, batch):
        return nets["model"](batch).square().mean()
