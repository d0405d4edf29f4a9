"""A task whose samples can go wrong in every way that a guard is for."""

import torch
from torch import nn

from drivetrain import Task


class Rows:
    """Vectors of noise, one for each sample, with their numbers in front."""

    def __len__(self):
        return 240

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.cat([torch.tensor([float(index)]), torch.randn(4, generator=generator)])


class Fit(Task):
    """Regression with a normalization layer and dropout; `nan`, `inf` and `spike` are the samples that go wrong."""

    def __init__(self, nan: list = (), inf: list = (), spike: list = (), always: bool = False):
        self.bad = {"nan": nan, "inf": inf, "spike": spike}
        self.always = always

    def networks(self):
        return {"model": nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))}

    def loss(self, nets, batch):
        ids, rows = batch[:, 0], batch[:, 1:]
        hit = {how: torch.isin(ids, torch.tensor(ids_, dtype=ids.dtype)).any() for how, ids_ in self.bad.items()}
        if not nets["model"].training and not self.always:
            hit = dict.fromkeys(hit, torch.tensor(False))
        if hit["nan"]:
            rows = rows * float("nan")
        loss = (nets["model"](rows).squeeze(1) - rows.sum(1)).square().mean()
        if hit["inf"]:  # a finite loss with gradients that are not
            loss = loss + (nets["model"][0].weight * 0).abs().sum().sqrt() * 0
        return loss * 1000 if hit["spike"] else loss
