"""How fast a run trains: samples, tokens and model FLOPs a second, and MFU. Pure functions of records."""

from __future__ import annotations

from dataclasses import dataclass, replace

from drivetrain.ledger.records import AttemptRecord, Flops, StepRecord


@dataclass(frozen=True)
class Throughput:
    """What was trained in how many seconds, and the FLOPs that the devices' peaks would have allowed meanwhile.

    `tokens` are those that were predicted, 0 where the task counts none. FLOPs are None where they are not known.
    """

    seconds: float = 0.0
    samples: int = 0
    tokens: int = 0
    flops: float | None = 0.0
    possible: float | None = 0.0

    def __add__(self, other: Throughput) -> Throughput:
        """Both, one after the other."""
        return Throughput(
            self.seconds + other.seconds,
            self.samples + other.samples,
            self.tokens + other.tokens,
            _sum(self.flops, other.flops),
            _sum(self.possible, other.possible),
        )

    def within(self, seconds: float) -> Throughput:
        """The same work in another time, such as wall-clock time, on devices that were there all the time."""
        scale = seconds / self.seconds if self.seconds > 0 else 0.0
        return replace(self, seconds=seconds, possible=_product(self.possible, scale))

    @property
    def samples_per_second(self) -> float:
        """0 where no time has passed."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def tokens_per_second(self) -> float:
        """0 where the task counts no tokens."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def flops_per_second(self) -> float | None:
        """Model FLOPs a second on all devices together."""
        if self.flops is None or self.seconds <= 0:
            return None
        return self.flops / self.seconds

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilization (Chowdhery et al. 2022, arXiv 2204.02311, app. B), a share of the dense peak."""
        if self.flops is None or not self.possible:
            return None
        return self.flops / self.possible

    def to_json(self) -> dict[str, float | None]:
        """The rates as plain data."""
        names = ("samples_per_second", "tokens_per_second", "flops_per_second", "mfu")
        return {"seconds": self.seconds} | {name: getattr(self, name) for name in names}


_UNKNOWN = Flops(per_sample=None, peak=None)


def trained(step: StepRecord) -> bool:
    """Whether any network moved in a step."""
    skipped = step.skipped
    return not skipped or any(network not in skipped for network in step.norm)


def work(step: StepRecord) -> tuple[float, int, int]:
    """A step's seconds, with those of its data, and the samples and tokens that it trained: none where none moved."""
    seconds = step.seconds + step.wait
    if not trained(step):
        return seconds, 0, 0
    return seconds, step.stop - step.start, step.counts.get("tokens", 0)


def of_work(seconds: float, samples: int, tokens: int, attempt: AttemptRecord) -> Throughput:
    """What an attempt trained in this time."""
    flops = attempt.flops or _UNKNOWN
    possible = None if flops.peak is None else seconds * attempt.world * flops.peak
    return Throughput(seconds, samples, tokens, _product(flops.per_sample, samples), possible)


def full_rate(attempt: AttemptRecord) -> float:
    """Samples a second that would be an MFU of 1 in this attempt; 0 where it is not known."""
    flops = attempt.flops or _UNKNOWN
    if not flops.per_sample or not flops.peak:
        return 0.0
    return attempt.world * flops.peak / flops.per_sample


def _product(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _sum(one: float | None, other: float | None) -> float | None:
    # A part of which nothing is known makes the whole unknown: to leave it out would tell too little.
    if one is None or other is None:
        return None
    return one + other
