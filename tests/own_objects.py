"""Tasks, sources and others of a user's own that Python gives as objects."""

import dataclasses

import torch
from torch import nn

import drivetrain


class Points(torch.utils.data.Dataset):
    """What its arguments are nobody knows afterwards."""

    def __init__(self, count: int):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        point = torch.randn(2, generator=torch.Generator().manual_seed(index))
        return point, int(point.sum() > 0)


@dataclasses.dataclass
class Listed(Points):
    """A dataclass knows its arguments."""

    count: int = 40


def point_stream(count: int, start: int, first: int = 0):
    """A stream that is a function, and begins at any item."""
    for number in range(start, count):
        yield Points(count)[first + number]


class Numbered(torch.utils.data.IterableDataset):
    """A stream that is an object."""

    def __init__(self, count: int):
        self.count = count

    def __iter__(self):
        return point_stream(self.count, 0)


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


class Wrapped(Sides):
    """Is given what no recipe can hold."""

    def __init__(self, made, **others):
        super().__init__(**others)
        self.made = made

    def networks(self):
        return {"model": self.made(self.width)}


def made(width):
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 2))


def falling(samples: int, total: int, least: float = 0.1) -> float:
    return max(least, 1 - samples / total)


class Falling:
    def __init__(self, least: float):
        self.least = least

    def factor(self, samples: int, total: int) -> float:
        return falling(samples, total, self.least)


class Collecting:
    """A callback that whoever gives it looks at afterwards."""

    def __init__(self):
        self.steps = []

    def on_step(self, record):
        self.steps.append(record.step)


class Gathering:
    """A sink."""

    def __init__(self):
        self.kinds = []

    def send(self, rows):
        self.kinds += [row.kind for row in rows]


class Right:
    """A metric without torchmetrics."""

    def __init__(self, scale):
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


class Told(Sides):
    def evaluate(self, nets, batch, metrics):
        super().evaluate(nets, batch, metrics)
        return nets["model"](batch[0]).argmax(-1), batch[1]


class Listing(torch.utils.data.IterableDataset):
    """A stream of what it is given, which nobody knows afterwards; it remembers where it is."""

    def __init__(self, samples):
        self.samples, self.at = samples, 0

    def __iter__(self):
        while self.at < len(self.samples):
            self.at += 1
            yield self.samples[self.at - 1]
