"""Steps that are made again: whether they must come to the same numbers, and whether they did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PROMISES = ("claim", "recipe", "data", "environment")
"""What two attempts must have in common for the same bits to be promised."""
NUMBERS = ("start", "stop", "samples", "counts", "losses", "norm", "lr", "skipped", "scale")
"""What a step that is made again must tell again."""


def comparable(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two attempts promise the same bits."""
    return all(one[name] == other[name] for name in PROMISES)


def unequal(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The first of a step's numbers that two records tell differently, with both; empty where there is none."""
    for name in NUMBERS:
        if one.get(name) != other.get(name):
            return f"{name}: {one.get(name)}, then {other.get(name)}"
    return ""
