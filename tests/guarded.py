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


class Still(Fit):
    """Regression without statistics that lanes would share."""

    def networks(self):
        return {"model": nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))}


class Two(Fit):
    """Network `b`, with batch statistics, is used for the first time in step 2, and then in every other one."""

    def networks(self):
        return {"b": nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), "a": nn.Linear(4, 1)}

    def update(self, step):
        step.minimize("a", self.loss_of("a"))
        if step.index % 2 == 0:
            step.minimize("b", self.loss_of("b"))

    def loss_of(self, name):
        def loss(nets, batch):
            rows = batch[:, 1:]
            bad = torch.tensor(self.bad["nan"], dtype=batch.dtype)
            if nets[name].training and torch.isin(batch[:, 0], bad).any():
                rows = rows * float("nan")
            return (nets[name](rows).squeeze(1) - rows.sum(1)).square().mean()

        return loss

    def loss(self, nets, batch):
        return self.loss_of("b")(nets, batch)


class Twice(Fit):
    """One network that is moved twice in each step; the first time its loss is huge."""

    def networks(self):
        return {"model": nn.Linear(4, 1)}

    def update(self, step):
        step.minimize("model", lambda nets, batch: self.loss(nets, batch) * 1e4)
        step.minimize("model", self.loss)


class Shared(Fit):
    """Two networks that move together and have a layer in common."""

    def networks(self):
        layer = nn.Linear(4, 4)
        return {"one": nn.Sequential(layer, nn.Linear(4, 1)), "other": nn.Sequential(layer, nn.Linear(4, 1))}

    def loss(self, nets, batch):
        return sum((net(batch[:, 1:]).squeeze(1) - batch[:, 1:].sum(1)).square().mean() for net in nets.values())


class Reassigned(nn.Module):
    """A running mean that is a new tensor after each forward pass."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.out(x - self.mean)


class Plain(Fit):
    """Regression behind a running mean."""

    def networks(self):
        return {"model": Reassigned()}


class PlainTwice(Plain):
    """The second time it is moved in a step, each process has its own running mean."""

    def update(self, step):
        step.minimize("model", self.loss)
        step.minimize("model", self.loss)


class Skipping(nn.Module):
    """Repeated blocks, of which a caller may leave out the second."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)])

    def forward(self, x, skip):
        for number, block in enumerate(self.blocks):
            if not (skip and number == 1):
                x = x + block(x)
        return x.mean(1)


class Skipped(Fit):
    """Micro-batches that begin with certain samples do without a block."""

    def __init__(self, begin: list):
        super().__init__()
        self.begin = begin

    def networks(self):
        return {"model": Skipping()}

    def loss(self, nets, batch):
        made = nets["model"](batch[:, 1:], int(batch[0, 0]) in self.begin)
        return (made - batch[:, 1:].sum(1)).square().mean()
