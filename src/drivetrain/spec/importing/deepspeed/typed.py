"""Objects that name a `type` and give it `params`: optimizers and schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drivetrain.spec.importing.findings import Gap
from drivetrain.spec.importing.rules import ABSENT, Key, Keys, Nested, Rule, To, shown

_LISTED = "is a list, one for each parameter group; here groups are the recipe's (`optimizer.groups`)"


def type_of(keys: Keys, key: Key) -> str | None:
    """The type; None, with a mistake, where there is none."""
    value = keys.value(key)
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        keys.mistake(key, f'is an object such as {{"type": ..., "params": {{...}}}}, not {shown(value)}')
        return None
    for name in value.keys() - {"type", "params"}:
        if name == "legacy_fusion":
            keys.spare((*key, name), "chooses a kernel")
        else:
            keys.lose((*key, name), f"{keys.system} has no such key here; parameters are in {key[0]}.params")
    return value["type"]


def params_of(keys: Keys, key: Key) -> dict[str, Any]:
    """The parameters; none, with a mistake, where they are no object."""
    params = (*key, "params")
    value = keys.value(params)
    if value in (ABSENT, None):
        return {}
    if not isinstance(value, dict):
        keys.mistake(params, f"is an object, not {shown(value)}")
        return {}
    return value


def take_params(keys: Keys, key: Key, rules: Mapping[str, Rule]) -> None:
    """The rules of the parameters, and of those that are left out."""
    if params_of(keys, key):
        Nested(rules).apply(keys, (*key, "params"))
        return
    for name, rule in rules.items():
        rule.apply(keys, (*key, "params", name))


def lose_all(keys: Keys, key: Key, why: str) -> None:
    """The type and each of its parameters."""
    keys.lose((*key, "type"), why)
    for name in params_of(keys, key):
        keys.lose((*key, "params", name), "belongs to that type")


def take_rate(keys: Keys, key: Key, to: str, default: float) -> None:
    """A peak learning rate."""
    if isinstance(keys.value(key), list):
        keys.lose(key, _LISTED)
        keys.findings.gaps.append(Gap(tuple(to.split(".")), "the peak learning rate", default, by=()))
        return
    To(to, default, auto="the HF Trainer's --learning_rate").apply(keys, key)
