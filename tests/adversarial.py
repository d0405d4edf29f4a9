"""Two networks against each other, as small as they can be, and what can go wrong with them."""

from __future__ import annotations

import time
from functools import partial

import torch
from torch import nn
from torch.nn.functional import softplus

import drivetrain
from drivetrain.data.order import Order
from drivetrain.ledger.derive import lineage
from drivetrain.ledger.ledger import read

__all__ = ["Gan", "Ring"]


class Ring:
    """Points on a circle, each with its number in front and a drawn latent vector behind."""

    def __init__(self, size: int = 512):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        angle = torch.tensor(index * 6.2831853 / self.size)
        return torch.cat([torch.tensor([float(index), angle.cos(), angle.sin()]), torch.randn(4)])


def network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 16), nn.LeakyReLU(0.2), nn.Linear(16, outputs))


class Gan(drivetrain.Task):
    """The non-saturating GAN (Goodfellow et al. 2014, arXiv 1406.2661) beside a reconstruction.

    `bad` are ids of samples for which the loss of that network is NaN; `trap` is where something happens on rank 0.
    """

    def __init__(self, bad: dict = {}, trap: str = "", statistics: bool = False, dropout: float = 0.0):  # noqa: B006
        self.bad, self.trap, self.statistics, self.dropout = bad, trap, statistics, dropout

    def networks(self):
        generator = network(4, 2)
        if self.statistics:
            generator.insert(1, nn.BatchNorm1d(16))
        if self.dropout:
            generator.append(nn.Dropout(self.dropout))
        return {"generator": generator, "discriminator": network(2, 1)}

    def update(self, step):
        adversarial = step.joined("discriminator")
        step.minimize("generator", partial(self.made, step, adversarial))
        if adversarial:
            step.minimize("discriminator", partial(self.judged, step))

    def made(self, step, adversarial, nets, batch):
        fakes = nets["generator"](batch[:, 3:])
        step.cache["fakes"] = fakes
        loss = (fakes - batch[:, 1:3]).square().mean()
        if adversarial:
            loss = loss + softplus(-nets["discriminator"](fakes)).mean()
        return self.spoiled("generator", loss, batch)

    def judged(self, step, nets, batch):
        judge = nets["discriminator"]
        fakes = step.cache["fakes"] if "fakes" in step.cache else nets["generator"](batch[:, 3:]).detach()
        return self.spoiled("discriminator", (softplus(-judge(batch[:, 1:3])) + softplus(judge(fakes))).mean(), batch)

    def spoiled(self, name, loss, batch):
        hit = torch.isin(batch[:, 0].long(), torch.tensor(self.bad.get(name, []), dtype=torch.long)).any()
        return loss * float("nan") if hit else loss

    def loss(self, nets, batch):
        return (nets["generator"](batch[:, 3:]) - batch[:, 1:3]).square().mean()

    def evaluate(self, nets, batch, metrics):
        if self.trap == "slow" and torch.distributed.get_rank() == 0:
            time.sleep(3)
        super().evaluate(nets, batch, metrics)

    def show(self, nets, batch, gallery):
        if self.trap == "show":
            raise ValueError("only the leader shows")


def recipe(**changes) -> dict:
    """Twelve steps: two moves of the discriminator from step 4 on for each of the generator, which is averaged."""
    base = {
        "name": "gan",
        "task": {"kind": "adversarial:Gan"},
        "data": {"train": {"sources": [{"kind": "adversarial:Ring"}]}},
        "lanes": 4,
        "batch": {"size": 16, "micro": 8},
        "budget": {"steps": 12},
        "networks": {
            "generator": {"turns": [1, 2], "average": {"decay": 0.9}},
            "discriminator": {"start": 4, "micro": 3},
        },
        "optimizer": {
            "generator": {"kind": "adamw", "lr": 2e-3, "clip": 0.5},
            "discriminator": {"kind": "sgd", "lr": 1e-2, "momentum": 0.9, "clip": 1.0},
        },
        "schedule": {
            "generator": {"kind": "cosine", "warmup": {"steps": 2}},
            "discriminator": {"kind": "linear", "warmup": {"steps": 3}, "floor": 0.1},
        },
        "checkpoint": {"every": {"steps": 5}},
        "launch": {"threads": 1},
    }
    return base | changes


def train(wanted, run, *overrides, **options):
    return drivetrain.train(wanted, overrides, run=run, progress=False, **options)


def made(run, kind="step"):
    """The records of a kind in the history that counts."""
    return [record for record in lineage(read(run / "ledger.jsonl")) if record["kind"] == kind]


def scored(**changes):
    data = recipe()["data"] | {"validation": {"ring": {"kind": "adversarial:Ring", "size": 24}}}
    return recipe(data=data, **changes)


def sample_of(step, place):
    """The sample at a place of a step."""
    at = (step - 1) * 16 + place
    return int(Order(512, 0, True).ids(at, at + 1)[0])
