"""Tasks, sources and others of a user's own that Python gives as objects."""

import dataclasses

import torch
from mine_points import Points, Right, Sides, Told, falling  # noqa: F401 - tests find them here, too
from torch import nn


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


class Wrapped(Sides):
    """Is given what no recipe can hold."""

    def __init__(self, made, **others):
        super().__init__(**others)
        self.made = made

    def networks(self):
        return {"model": self.made(self.width)}


def made(width):
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 2))


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


class Listing(torch.utils.data.IterableDataset):
    """A stream of what it is given, which nobody knows afterwards; it remembers where it is."""

    def __init__(self, samples):
        self.samples, self.at = samples, 0

    def __iter__(self):
        while self.at < len(self.samples):
            self.at += 1
            yield self.samples[self.at - 1]
