"""Settings of tables whose rows belong to keys: who is let in, and who has to go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from drivetrain.spec.amount import Amount
from drivetrain.spec.settings import Count, Settings, bits

BUCKETS = 64
"""A keyed table's rows are divided among so many buckets of keys, each of which lies whole on one rank."""


@dataclass(frozen=True, kw_only=True)
class Admit(Settings):
    """When a key gets a row of its own. Until then it has the row that all such keys of its bucket share."""

    count: Annotated[Count, bits("a key has a row from the step on that follows the one which saw it so often")] = 1
    waiting: Annotated[
        Count | None, bits("keys without a row that are counted; those seen longest ago are forgotten. null: the rows")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Evict(Settings):
    """Whose row becomes free, looked for at the end of every so many steps or samples."""

    age: Annotated[Amount | None, bits("keys that were not seen for longer than this")] = None
    least: Annotated[
        Literal["count", "recent"] | None,
        bits(
            "where a bucket is full: its keys that were seen least often, or longest ago, if others wait that are not"
        ),
    ] = None
    every: Annotated[Amount, bits("how often it is looked")] = field(default_factory=lambda: Amount(steps=100))

    def __post_init__(self) -> None:
        if self.age is None and self.least is None:
            raise ValueError("give age, least, or both")


@dataclass(frozen=True, kw_only=True)
class Keyed(Settings):
    """A table whose rows belong to keys, whole numbers from 0 to 2^63 - 1, which come and go as a run trains."""

    admit: Annotated[Admit, bits("when a key gets a row")] = field(default_factory=Admit)
    evict: Annotated[Evict | None, bits("whose row becomes free; null: nobody's, and a full table ends the run")] = None
