"""How long a run takes, and what it costs, by a throughput that is known from somewhere. No torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Work:
    """What a run has to do: its steps and samples, the model FLOPs of a sample (None: not known), and by how many
    processes."""

    steps: int
    samples: int
    flops_per_sample: float | None
    processes: int

    @property
    def flops(self) -> float | None:
        """Model FLOPs of the whole run."""
        return None if self.flops_per_sample is None else self.flops_per_sample * self.samples


@dataclass(frozen=True)
class Seconds:
    """How long a run takes, in seconds, and what that follows from."""

    source: str
    step: float
    whole: float
    samples_per_second: float
    mfu: float | None = None
    cost: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Rate:
    """What `processes` have done in a second: samples, and model FLOPs where these are known; `mfu` is the share of
    their devices' peak that this was."""

    source: str
    processes: int
    samples: float
    flops: float | None = None
    mfu: float | None = None


def at_rate(work: Work, rate: Rate, price: float | None = None) -> Seconds | None:
    """By what others have done: each process does as many FLOPs a second as theirs, or where these are not known as
    many samples. None where they have done nothing. `price` is that of an hour of a process."""
    here = work.processes / rate.processes
    if work.flops is not None and rate.flops:
        whole = work.flops / (rate.flops * here)
    elif rate.samples:
        whole = work.samples / (rate.samples * here)
    else:
        return None
    return _seconds(work, whole, rate.source, rate.mfu, price)


def at_utilization(work: Work, peak: float, mfu: float, source: str, price: float | None = None) -> Seconds | None:
    """By a share of what the devices can do at most, `peak` FLOP/s each. None where the FLOPs are not known."""
    if work.flops is None:
        return None
    whole = work.flops / (peak * mfu * work.processes)
    return _seconds(work, whole, source, mfu, price)


def _seconds(work: Work, whole: float, source: str, mfu: float | None, price: float | None) -> Seconds:
    cost = None if price is None else whole / 3600 * work.processes * price
    return Seconds(source, whole / work.steps, whole, work.samples / whole, mfu, cost)
