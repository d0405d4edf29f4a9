"""Settings of commits and of initial weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from drivetrain.spec.amount import Amount
from drivetrain.spec.settings import Count, Pattern, Settings, bits, cost


@dataclass(frozen=True, kw_only=True)
class Best(Settings):
    """Commits that stay because their evaluation was the best."""

    metric: Annotated[str, cost("SET/METRIC, such as stdlib/bits_per_byte")]
    mode: Annotated[Literal["min", "max"], cost("whether small or large is good")] = "min"
    count: Annotated[Count, cost("how many stay")] = 1


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Settings):
    """When state is committed, and which commits are kept besides those that are pinned by hand."""

    every: Annotated[Amount | None, cost("between commits; null: only when a run ends or is stopped")] = None
    keep: Annotated[Count, cost("newest verified commits that are kept")] = 3
    keep_every: Annotated[Amount | None, cost("also keep the first commit at or after each multiple of this")] = None
    keep_best: Annotated[Best | None, cost("also keep the best by a metric")] = None
    blocking: Annotated[bool, cost("write while training waits, without a copy of the state in memory")] = False
    mirror: Annotated[str | None, cost("URL (s3://, gs://, az://, file://) that verified commits are copied to")] = None


@dataclass(frozen=True, kw_only=True)
class Init(Settings):
    """Initial weights from elsewhere. Every tensor must fit by name, shape and type, but for what is said here.

    Names are NETWORK/NAME; patterns are regular expressions that are searched for in them.
    """

    from_: Annotated[
        str,
        Field(alias="from"),
        bits("a run (its newest commit), a commit, an export, or a safetensors file"),
    ]
    part: Annotated[str | None, bits("load only this network; null: every network")] = None
    map: Annotated[
        Mapping[str, str | None], bits("beginnings of names there, and what they begin with here; null: left out")
    ] = field(default_factory=dict)
    fresh: Annotated[tuple[Pattern, ...], bits("patterns of tensors that may be missing there, and stay as drawn")] = ()
    freeze: Annotated[
        bool | tuple[Pattern, ...], bits("true: what was loaded does not train; or patterns of parameters that do not")
    ] = False


def each_init(given: Init | Sequence[Init] | None) -> Sequence[Init]:
    """What a recipe's `init` has, which may be several, or null."""
    if given is None:
        return ()
    return [given] if isinstance(given, Init) else given
