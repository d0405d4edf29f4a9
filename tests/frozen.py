"""A task of which some does not train: a pupil that is to do what its teacher does."""

import torch
from torch import nn

from guarded import Fit


class Teacher(nn.Module):
    """One layer, and beside it a table of another type: a unit that trained would have to be of one."""

    def __init__(self):
        super().__init__()
        self.layer, self.table = nn.Linear(4, 2), nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, x):
        return self.layer(x) * self.table.float()


class Taught(Fit):
    """The teacher's answers are what its pupil is trained for."""

    def networks(self):
        pupil = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        return {"pupil": pupil, "teacher": Teacher()}

    def update(self, step):
        step.minimize("pupil", self.loss)

    def loss(self, nets, batch):
        rows = batch[:, 1:]
        return (nets["pupil"](rows) - nets["teacher"](rows)).square().mean()
