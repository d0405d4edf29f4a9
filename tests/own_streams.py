"""Streams of a user's own that tests put into recipes, and a task that takes their samples."""

import os

import torch
from torch import nn

from drivetrain import Task


class Fit(Task):
    """A line through points."""

    def networks(self):
        return {"model": nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Tanh(), nn.Linear(8, 1))}

    def loss(self, nets, batch):
        points, values = batch
        return (nets["model"](points).squeeze(1) - values).square().mean()


class Looking(Fit):
    """Wraps what it is given, and looks its samples up by their numbers."""

    def prepare(self, source, part, *, by_length=False):
        return Looked(source)


class Looked:
    fingerprint = ""

    def __init__(self, source):
        self.source = source

    def __len__(self):
        return len(self.source)

    def read(self, ids, positions):
        return self.source.read(ids, positions)


class FitRows(Fit):
    """The same of rows with x and y."""

    def collate(self, samples):
        return torch.tensor([row["x"] for row in samples]), torch.tensor([float(row["y"]) for row in samples])


def item(number, noise=0.01):
    """A point with what it draws, and its value."""
    point = torch.tensor([number * factor % 7 / 7 for factor in (1, 2, 3, 5)]) + noise * torch.randn(4)
    return point, point.sum()


def counted(count: int = 1 << 40):
    for number in range(count):
        yield item(number)


def seekable(start, count: int = 1 << 40):
    for number in range(start, count):
        yield item(number)


def parts(start, lane, lanes, ends: list = (1 << 40,)):
    """Part by part, of unequal lengths where `ends` says so."""
    for number in range(start, ends[lane % len(ends)]):
        yield item(number * lanes + lane)


class Stateful(torch.utils.data.IterableDataset):
    """Tells its state, which is more than a number: what it draws depends on what it drew."""

    def __init__(self, count: int = 1 << 40):
        self.count, self.at, self.sum = count, 0, 0

    def __iter__(self):
        while self.at < self.count:
            self.at, self.sum = self.at + 1, (self.sum * 3 + self.at) % 101
            yield item(self.sum)

    def state_dict(self):
        return {"at": self.at, "sum": self.sum}

    def load_state_dict(self, state):
        self.at, self.sum = state["at"], state["sum"]


class Spoiled(Stateful):
    """Has one sample that is no number."""

    def __iter__(self):
        for point, value in super().__iter__():
            yield point, value * (float("nan") if self.at == 90 else 1)


class Forgetful(Stateful):
    """Says that it tells its state, and leaves the half of it out: only reading from the start brings it back."""

    def load_state_dict(self, state):
        self.at = state["at"]


class Unsaid(Stateful):
    """Tells a state that no commit can hold."""

    def state_dict(self):
        return {"at": torch.tensor(self.at)}


class Beside(Stateful):
    """Draws nothing, so that it is read beside training."""

    thread_safe = True

    def __iter__(self):
        while self.at < self.count:
            self.at += 1
            point = torch.arange(4.0) * (self.at % 7)
            yield point, point.sum()


def live():
    """Never the same twice."""
    while True:
        yield item(int.from_bytes(os.urandom(2), "little"))


def moved(start):
    """Another stream in another process, though it says where it begins."""
    for number in range(start, 1 << 40):
        point = torch.full((4,), float(number + os.getpid()))
        yield point, point.sum()


def broken(count: int = 20):
    yield from counted(count)
    raise ValueError("the tape is torn")


def empty():
    yield from ()


class Rows:
    """No stream: points by number."""

    def __len__(self):
        return 40

    def __getitem__(self, number):
        return item(number)


def growing(start, path: str):
    """As many points as a file says."""
    with open(path) as file:
        count = int(file.read())
    for number in range(start, count):
        yield item(number)
