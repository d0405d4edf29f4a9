"""Kinds of a user's own that tests put into recipes: optimizers and schedules."""

import abc
import math
import os
import sys
import time
from itertools import pairwise

import numpy as np
import torch


class Counting(torch.optim.Optimizer):
    """Signs of a mean gradient; counts in Python numbers, in each parameter's state and in its group, as many do."""

    def __init__(self, params, lr: float = 1e-3, weight_decay: float = 0.0, beta: float = 0.9, grow: float = 1.01):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "beta": beta, "d": 1e-2, "grow": grow})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            group["d"] = group["d"] * group["grow"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["mean"], state["age"], state["scale"], state["odd"] = (
                        torch.zeros_like(parameter),
                        0,
                        1.0,
                        False,
                    )
                state["age"] += 1
                state["scale"] *= 0.99
                state["odd"] = not state["odd"]
                state["mean"].lerp_(parameter.grad, 1 - group["beta"])
                size = group["lr"] * group["d"] * state["scale"] * (1 + 1 / (state["age"] + group["k"]))
                parameter.mul_(1 - size * group["weight_decay"])
                parameter.sub_(state["mean"].sign() * size * (2 if state["odd"] else 1))


class Listing(Counting):
    """Keeps what no commit can hold."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        for state in self.state.values():
            state["seen"] = [1, 2]


class Wrapping(Counting):
    """Keeps a copy of the weights where no commit has it; its step takes whatever there is."""

    def step(self, *arguments, **others):
        self.slow = [parameter.detach().clone() for parameter in self.param_groups[0]["params"]]
        return super().step()


class Rows(Counting):
    """Keeps less, and more, than a tensor of the parameter's shape."""

    @torch.no_grad()
    def step(self, *arguments, **others):
        super().step()
        for parameter, state in self.state.items():
            state["row"] = state.get("row", 0) + parameter.grad.sum(dim=tuple(range(1, parameter.ndim)))
            state["seen"] = None if state["age"] % 2 else torch.ones(state["age"], dtype=torch.float64)
            parameter.sub_(1e-3 * state["row"].mean() + (0 if state["seen"] is None else 1e-4))


class Deaf(torch.optim.Optimizer):
    """Takes no learning rate."""

    def __init__(self, params):
        super().__init__(params, {})

    def step(self, closure=None): ...


class Closing(torch.optim.SGD):
    """Its step needs a closure."""

    def step(self, closure):
        closure()


def saw(samples: int, total: int, period: int = 40) -> float:
    """Falls from one to zero again and again."""
    return 1 - (samples % period) / period


def not_finite(samples: int, total: int) -> float:
    return math.nan if samples > total / 2 else 1.0


class Waves:
    """A schedule with a state that follows from its arguments."""

    def __init__(self, waves: int):
        self.waves = waves

    def factor(self, samples: int, total: int) -> float:
        return (1 + math.cos(2 * math.pi * self.waves * samples / total)) / 2


class Halving:
    """Half as much for each score that was not better than the one before."""

    def factor(self, samples: int, total: int, scores: dict) -> float:
        values = [value for _, value in scores.get("dogs/loss", [])]
        worse = sum(later >= earlier for earlier, later in pairwise(values))
        return 0.5**worse


def told(samples: int, total: int, scores: dict) -> float:
    """A function that reads scores."""
    return 0.5 ** len(scores.get("dogs/loss", []))


def huge(samples: int, total: int) -> int:
    return 10**400


def helper(anything):
    """Neither a schedule nor an optimizer."""


class Plain:
    """Nothing that a recipe could choose."""


class Hearing:
    """A callback that writes down what it hears, on the leader."""

    def __init__(self, path: str):
        self.path = path

    def _note(self, text):
        with open(f"{self.path}-{os.getpid()}", "a") as file:
            file.write(f"{text}\n")

    def on_attempt(self, record):
        self._note(f"attempt {record.attempt} from {record.from_step}")

    def on_step(self, record):
        self._note(f"step {record.step} {sorted(record.losses)}")

    def on_evaluation(self, record, networks):
        self._note(f"evaluation {record.step} {sorted(record.metrics)} {sorted(networks)}")

    def on_commit(self, record):
        self._note(f"commit {record.name}")

    def on_exit(self, record):
        self._note(f"exit {record.code}")


class HearingEverywhere(Hearing):
    """On every rank."""

    every_rank = True


def on_commit(record, path: str):
    """A function is one, too."""
    with open(path, "a") as file:
        file.write(f"{record.name}\n")


class Breaking:
    def on_step(self, record):
        if record.step == 3:
            raise KeyError("of the callback's own")


class Writing:
    """A sink."""

    def __init__(self, path: str):
        self.path = path

    def open(self, about):
        self._write(f"open {about.name}")

    def send(self, rows):
        for row in rows:
            self._write(f"{row.kind} {row.step}")

    def close(self):
        self._write("close")

    def _write(self, text):
        with open(self.path, "a") as file:
            file.write(f"{text}\n")


class Meddling:
    """A callback that does not only watch."""

    def __init__(self, how: str):
        self.how = how

    def on_step(self, record, networks):
        network = networks["model"]
        parameter = next(network.parameters())
        if self.how == "mode":
            network.eval()
        elif self.how == "frozen":
            parameter.requires_grad_(False)
        elif self.how == "buffer":
            network.register_buffer("late", torch.ones(()))
        else:
            with torch.no_grad():
                parameter.add_(1)


class Scribbling:
    def on_step(self, record):
        record.losses.clear()
        record.lr["model"] = 7.0

    def on_evaluation(self, record):
        record.metrics["dogs"]["loss"] = 100.0 - record.step


class Leaving:
    def __init__(self, code: int):
        self.code = code

    def on_step(self, record):
        raise SystemExit(self.code)


class Misspelled:
    def on_step(self, record): ...

    def on_comit(self, record): ...


class Attributed:
    def __init__(self):
        self.on_gpu = False

    def on_step(self, record): ...


class Abstract(abc.ABC):
    """A schedule that lacks what it is for."""

    @abc.abstractmethod
    def factor(self, samples: int, total: int) -> float: ...


class Positional:
    def __init__(self, period, /):
        self.period = period

    def factor(self, samples: int, total: int) -> float:
        return 1.0


class Failing:
    def __init__(self, period: int = 1):
        raise LookupError("there is no such period")

    def factor(self, samples: int, total: int) -> float:
        return 1.0


class Narrow:
    def factor(self, samples: int) -> float:
        return 1.0


class Factorless:
    def factor(self, samples: int, total: int): ...


class Numpy:
    def __init__(self, kind: str = "float32"):
        self.kind = kind

    def factor(self, samples: int, total: int):
        return torch.tensor(0.5) if self.kind == "tensor" else np.float32(0.5)


class Unaware:
    """Hears steps without taking a record."""

    def on_step(self): ...


class Keyed:
    """A schedule whose arguments are called as what a recipe has beside them."""

    def __init__(self, warmup: float, every: float = 0.0, kind: str = "", arguments: float = 0.0):
        self.warmup, self.every, self.rest = warmup, every, arguments

    def factor(self, samples: int, total: int) -> float:
        return self.warmup + self.every + self.rest


class Caching(Counting):
    """Keeps what follows from its state, and says so."""

    drivetrain_caches = ("sizes",)

    def step(self, closure=None):
        super().step()
        self.sizes = [float(state["mean"].norm()) for state in self.state.values()]


class Exiting:
    """A sink that means to end the process."""

    def send(self, rows):
        sys.exit(3)


class Unclosed:
    """A sink that fails at its end."""

    def send(self, rows): ...

    def close(self):
        raise OSError("the pipe is gone")


class Sleeping:
    """A callback that never comes back."""

    def on_step(self, record):
        if record.step == 4:
            time.sleep(600)
