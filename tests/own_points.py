"""What modules of a user's own have in common: points, a task that learns their sides, a metric, a schedule."""

import torch
from torch import nn

import drivetrain


class Points(torch.utils.data.Dataset):
    """Points of a plane, and which side they are on. What its arguments are nobody knows afterwards."""

    def __init__(self, count: int):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        point = torch.randn(2, generator=torch.Generator().manual_seed(index))
        return point, int(point.sum() > 0)


class Sides(drivetrain.Task):
    def __init__(self, width: int = 4, sizes: tuple = (1, 2), *, drop: float = 0.1):
        self.width, self.sizes, self.drop = width, sizes, drop

    def networks(self):
        layers = [nn.Linear(2, self.width), nn.Dropout(self.drop), nn.Linear(self.width, 2)]
        return {"model": nn.Sequential(*layers)}

    def loss(self, nets, batch):
        return nn.functional.cross_entropy(nets["model"](batch[0]), batch[1])

    def predict(self, nets, batch):
        return [{"side": side} for side in nets["model"](batch[0]).argmax(-1).tolist()]


class Told(Sides):
    """Feeds what a recipe names, and has none of its own but the loss."""

    def evaluate(self, nets, batch, metrics):
        super().evaluate(nets, batch, metrics)
        return nets["model"](batch[0]).argmax(-1), batch[1]


class Right:
    """A metric without torchmetrics."""

    def __init__(self, scale: float = 1.0):
        self.scale, self.right, self.count = scale, 0, 0

    def update(self, predicted, sides):
        self.right += int((predicted == sides).sum())
        self.count += len(sides)

    def state(self):
        return [self.right, self.count]

    def merge(self, state):
        self.right += state[0]
        self.count += state[1]

    def value(self):
        return self.scale * self.right / max(1, self.count)


def falling(samples: int, total: int, least: float = 0.1) -> float:
    return max(least, 1 - samples / total)
