"""What a check is: a function of the place that gives figures, and what may come of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

Verdict = Literal["passed", "failed", "not applicable"]


class NotApplicableError(Exception):
    """The check has nothing to look at here; the message says why."""


class CheckFailedError(Exception):
    """What was looked at is not as it should be."""


@dataclass(frozen=True)
class Here:
    """Where checks run: `kind` is torch's word for the device, `name` its maker's, `memory` the bytes of one.

    `count` are devices, and on a CPU the processes that stand for them.
    """

    kind: str
    name: str
    count: int
    memory: int
    torch: str
    folder: Path

    @property
    def reduced(self) -> bool:
        """Whether there is no device: sizes are tiny then, and nothing is held against a target."""
        return self.kind == "cpu"

    def require_device(self, why: str) -> None:
        """Raises NotApplicableError, with the reason, where there is none."""
        if self.reduced:
            raise NotApplicableError(f"no device: {why}")


@dataclass(frozen=True)
class Found:
    """What came of a check. `why` is empty where it passed; `figures` are what was measured, by name."""

    name: str
    verdict: Verdict
    seconds: float
    why: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """All of it on one line."""
        told = ", ".join(f"{name} {_readable(value)}" for name, value in self.figures.items())
        why = f" ({self.why})" if self.why else ""
        return f"{self.name:<34} {self.verdict}{why}  {told}".rstrip() + f"  [{self.seconds:.0f} s]"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Check:
    """What `place` (package.module:function) makes of `Here` and `arguments`: figures, or it raises.

    `seconds` are its limit with devices, `reduced` without; `devices` are how many it needs. The function is imported
    where it runs: whoever lists checks needs no torch.
    """

    name: str
    place: str
    says: str
    seconds: int
    reduced: int
    devices: int = 1
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def run(self, here: Here) -> Mapping[str, Any]:
        """Its figures."""
        module, _, name = self.place.partition(":")
        return getattr(import_module(module), name)(here, **self.arguments)

    def limit(self, here: Here) -> int:
        """Seconds after which it is ended."""
        return self.reduced if here.reduced else self.seconds


def require(holds: bool, what: str) -> None:
    """Raises CheckFailedError, which says what does not hold."""
    if not holds:
        raise CheckFailedError(what)


def _readable(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} {_readable(each)}" for name, each in value.items()) + "}"
    return str(value)
