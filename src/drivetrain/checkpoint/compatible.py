"""Whether a commit may be gone on from: recipe, data and environment then and now. Pure, but for what it raises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drivetrain.runtime.device import PACKAGE
from drivetrain.spec.affects import differences
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.recipe import Recipe
from drivetrain.spec.registry import nearest

BITS = ("torch", "cpu_capability", "accelerator", "threads", "code")
"""What of an environment decides bits, beside the packages that the user's own code imports."""


def deciding(environment: Mapping[str, Any]) -> dict[str, Any]:
    """What of an environment decides bits."""
    found = {name: environment[name] for name in BITS}
    return found | {name: version for name, version in environment.items() if name.startswith(PACKAGE)}


def accept_recipe(old: Recipe, new: Recipe, override: Sequence[str], where: str) -> list[str]:
    """Notes on the changes that --override accepts; Failure(76) with a diff where it does not accept all."""
    changed = [change for change in differences(old, new) if change.affects == "bits"]
    paths = [change.path for change in changed]
    refused = [change for change in changed if not accepts(override, change.path)]
    if refused:
        told = ""
        for key in override:
            if not any(accepts([key], path) for path in paths):
                told += f"; --override {key} accepts none of them{nearest(key, paths)}"
        failure = Failure(
            Exit.INCOMPATIBLE,
            f"{where} was trained with another recipe: {'; '.join(map(str, refused))}{told}",
            "take the old values, choose another --run, or accept each change by --override KEY",
        )
        failure.details = "\n".join(map(str, refused))
        raise failure
    notes = [f"accepted by --override: {change}" for change in changed]
    if any(path.startswith(("budget", "batch")) for path in paths):
        notes.append(
            "the budget changed, or how many samples its steps take: schedules that decay now end elsewhere, "
            "so the learning rate may go on from another point of its curve"
        )
    return notes


def accept_data(old: Mapping[str, str], new: Mapping[str, str], override: Sequence[str], commit: str) -> list[str]:
    """Notes on sources whose content has changed; Failure(76) where --override does not accept one."""
    notes = []
    for name, digest in new.items():
        if old.get(name, digest) != digest:
            if not accepts(override, name):
                raise Failure(
                    Exit.INCOMPATIBLE,
                    f"{name} has another content than when {commit} was made",
                    f"restore the data, or accept the change by --override {name}",
                )
            notes.append(f"accepted by --override: {name} has another content")
    return notes


def accept_ledger(lost: int, override: Sequence[str], commit: str) -> list[str]:
    """A note that the ledger lacks so many records, or more, of those that a commit was made after; Failure(76) where
    --override does not accept that."""
    if not lost:
        return []
    lacks = f"{commit} was made after a record that the ledger does not have: {lost} records or more are lost"
    if not accepts(override, "ledger"):
        raise Failure(
            Exit.INCOMPATIBLE,
            lacks,
            "restore ledger.jsonl from a copy or the mirror, or go on without what they told (commands, samples that "
            "were left out) by --override ledger",
        )
    return [f"accepted by --override: {lacks}"]


def accept_environment(old: Mapping[str, Any], new: Mapping[str, Any], strict: bool, commit: str) -> list[str]:
    """A note that from here on bits may differ from what they would have been; Failure(76) if that is not wanted."""
    changed: list[str] = []
    for name in deciding(new):
        if name in old and old[name] != new[name]:
            changed.append(f"{name.removeprefix(PACKAGE)} {old[name]} -> {new[name]}")
    if not changed:
        return []
    if strict:
        raise Failure(
            Exit.INCOMPATIBLE,
            f"{commit} was made in another environment: {'; '.join(changed)}",
            "restore the environment, or go on without --strict-env: the same samples, perhaps other roundings",
        )
    return [f"another environment than {commit}'s: {'; '.join(changed)}; bits are not comparable across this point"]


def accepts(override: Sequence[str], path: str) -> bool:
    """Whether --override names a path, or a part above it."""
    return any(path == key or path.startswith((f"{key}.", f"{key}[")) for key in override)
