"""The vocabulary in which settings classes are written: what a field affects, its bounds, its words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, StringConstraints

Affects = Literal["bits", "cost", "nothing"]


@dataclass(frozen=True)
class Setting:
    """What a field of a recipe affects, and a sentence about it.

    `later`: the field was added when there were runs already. Digests leave it out while it has its default, so that
    they stay what they were. `inline`: its keys stand among those of the section that it is in.
    """

    affects: Affects
    doc: str
    later: bool = False
    inline: bool = False


def bits(doc: str, *, later: bool = False, inline: bool = False) -> Setting:
    """A field that changes the numbers: a resume with another value stops with 76."""
    return Setting("bits", doc, later, inline)


def cost(doc: str, *, later: bool = False) -> Setting:
    """A field that changes time, memory or disk, never the samples."""
    return Setting("cost", doc, later)


def nothing(doc: str) -> Setting:
    """A field that changes neither numbers nor cost: names, sinks."""
    return Setting("nothing", doc)


Count = Annotated[int, Ge(1)]
"""A whole number of at least one."""
Whole = Annotated[int, Ge(0)]
"""A whole number of at least zero."""
Positive = Annotated[float, Gt(0)]
"""A finite number above zero."""
NonNegative = Annotated[float, Ge(0)]
"""A finite number of at least zero."""
Fraction = Annotated[float, Ge(0), Le(1)]
"""A number from zero to one."""

Duration = Positive | Annotated[str, StringConstraints(pattern=r"^(\d+d)?(\d+h)?(\d+m)?(\d+s)?$", min_length=2)]
"""Seconds, or text such as 2h30m."""
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def seconds_of(duration: float | str) -> float:
    """Seconds, from a number or from text such as 2h30m."""
    if not isinstance(duration, str):
        return duration
    parts = _DURATION.fullmatch(duration)
    assert parts is not None
    days, hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _require_regular(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    return pattern


Pattern = Annotated[str, AfterValidator(_require_regular)]
"""A regular expression."""


class Settings:
    """Base of every settings class: a frozen dataclass that refuses unknown keys and values that are not finite."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "allow_inf_nan": False}


class Component(Settings):
    """Settings of something that a recipe chooses by `kind`.

    `factory` is the import path (`package.module:name`) of what is built from them once torch is loaded.
    """

    factory: ClassVar[str]
