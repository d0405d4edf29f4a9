"""Kinds that installed packages add: entry points of the groups `drivetrain.optimizers`, `drivetrain.tasks`, ..."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from drivetrain.spec.custom import POINTS
from drivetrain.spec.exits import Exit, Failure

OWN_PATH = "package.module:Name"
"""How a kind of the user's own is written, in messages."""


@dataclass(frozen=True)
class InstalledKind:
    """A kind by its name; `path` is `package.module:Name`, `package` the distribution with its version."""

    name: str
    path: str
    package: str


@cache
def installed_kinds(section: str) -> dict[str, InstalledKind]:
    """The kinds that packages add to a section, by name. Nothing of them is imported.

    Raises Failure(78) where two packages add one of the same name, or a name leads to no `package.module:Name`.
    """
    found: dict[str, InstalledKind] = {}
    for entry in entry_points(group=f"drivetrain.{section}s"):
        kind = InstalledKind(entry.name, entry.value, _package(entry))
        other = found.setdefault(entry.name, kind)
        if other != kind:
            cause = f"{other.package} and {kind.package} both add the {section} {entry.name!r}"
            raise Failure(Exit.BAD_RECIPE, cause, f"uninstall one, or name it by its path, such as {kind.path}")
    return found


def path_of(section: str, kind: Any) -> str:
    """The import path of a kind that is no shipped one; empty where it has none.

    A kind that a package adds goes by its path from here on: a run knows what it is made of, whoever adds it.
    """
    if not isinstance(kind, str) or section not in POINTS:
        return ""
    if re.fullmatch(r"[\w.]+:\w+", kind):
        return kind
    added = installed_kinds(section)
    return added[kind].path if kind in added else ""


def _package(entry: EntryPoint) -> str:
    if entry.dist is None:
        return "?"
    return f"{entry.dist.name} {entry.dist.version}"
