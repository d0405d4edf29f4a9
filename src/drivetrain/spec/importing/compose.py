"""From findings to the text of a recipe, which is checked as a whole before anybody writes it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.importing.findings import FILL_IN, Findings, Gap, Taken
from drivetrain.spec.importing.importers import require_sound
from drivetrain.spec.load import find, with_bases
from drivetrain.spec.parse import parse
from drivetrain.spec.recipe import Recipe
from drivetrain.spec.removal import without_removed
from drivetrain.spec.sections import Checker
from drivetrain.spec.show import as_yaml
from drivetrain.spec.text import printable
from drivetrain.spec.tree import (
    Mistake,
    Origin,
    Path_,
    RecipeMistakes,
    Tree,
    dotted,
    from_data,
    merge,
    origins_of,
    to_data,
)

_ORDER = [field.name for field in fields(Recipe)]
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
"""What a run may be called."""


@dataclass(frozen=True)
class Base:
    """The recipe that the imported settings are laid over: how the new file names it, and its tree."""

    name: str
    tree: Tree


@dataclass(frozen=True)
class Composed:
    """The text of a new recipe, and the places in it that its user still has to fill."""

    text: str
    gaps: tuple[Gap, ...]

    @property
    def filled(self) -> dict[str, Any]:
        """The recipe as plain data, with each gap's stand-in in its place: what the check has seen."""
        tree = to_data(parse(self.text, Origin("file", "the new recipe", 1), []))
        for gap in self.gaps:
            node = tree
            for part in gap.path[:-1]:
                node = node[part]
            node[gap.path[-1]] = gap.stand_in
        return tree


def base_of(onto: str, to: Path) -> Base:
    """A shipped recipe, or a file. Raises Failure(66) where there is none, 64 for a run directory, RecipeMistakes."""
    path, folder = find(onto)
    if path.name == "resolved.json":
        raise Failure(Exit.BAD_COMMAND, f"--onto {onto} is a run", "give the recipe file that it was started with")
    mistakes: list[Mistake] = []
    tree = with_bases(path, "base", (), mistakes)
    if mistakes:
        raise RecipeMistakes(mistakes)
    # A recipe looks for its base beside itself first.
    name = onto if folder is None else os.path.relpath(path, to.parent)
    return Base(name, tree)


def compose(findings: Findings, to: Path, base: Base | None) -> Composed:
    """The recipe of what was found, to be written to `to`.

    Raises Failure(65) where a value of the file is wrong in a recipe, RecipeMistakes where the base is.
    """
    gaps = tuple(_open(findings.gaps, base))
    name = to.stem if re.fullmatch(NAME, to.stem) else "imported"
    _check(findings, _tree(findings, gaps, name), to, base)
    comments: dict[str, str] = {}
    filled: list[Taken | Gap] = [*findings.taken, *gaps]
    for each in filled:
        comments[_shown_at(each)] = each.what if isinstance(each, Gap) else each.comment
    data = _data(findings, {gap.path: FILL_IN for gap in gaps}, name)
    if base is not None:
        data = {"base": base.name, **data}
    lines = [*_head(findings, to, gaps), as_yaml(data, comments), *_tail(findings)]
    return Composed("\n".join([*lines, ""]), gaps)


def _open(gaps: list[Gap], base: Base | None) -> list[Gap]:
    """The gaps that the base does not fill."""
    if base is None:
        return gaps
    there = origins_of(base.tree).keys() - {()}
    return [gap for gap in gaps if gap.settled_at not in there]


def _shown_at(each: Taken | Gap) -> str:
    """The path of the line that shows a value: a list is shown in the line of its first item."""
    path = each.path
    if isinstance(each, Taken) and isinstance(each.value, list) and each.value:
        path = (*path, 0)
    return dotted(path)


def _data(findings: Findings, gaps: Mapping[Path_, Any], name: str) -> dict[str, Any]:
    """The recipe as plain data, its sections in the order of a recipe's."""
    values: dict[Path_, Any] = {("name",): name}
    for taken in findings.taken:
        values[taken.path] = taken.value
    nested: dict[Any, Any] = {}
    for path, value in {**values, **gaps}.items():
        node = nested
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = value
    return {key: _listed(nested[key]) for key in sorted(nested, key=_ORDER.index)}


def _listed(node: Any) -> Any:
    """Mappings by place as lists."""
    if not isinstance(node, dict):
        return node
    parts = {key: _listed(node[key]) for key in sorted(node, key=lambda key: key != "kind")}
    if 0 in parts:
        return [parts[place] for place in sorted(parts)]
    return parts


def _tree(findings: Findings, gaps: tuple[Gap, ...], name: str) -> Tree:
    """The recipe with something in each gap; every value has its place in the file that was imported."""
    file, places = findings.source.name, {}
    for taken in findings.taken:
        place = Origin("file", file, taken.line) if taken.line else Origin("command line", text=taken.key)
        places[dotted(taken.path)] = str(place)
    data = _data(findings, {gap.path: gap.stand_in for gap in gaps}, name)
    return from_data(data, Origin("file", file, 1), findings.mistakes, places)


def _check(findings: Findings, tree: Tree, to: Path, base: Base | None) -> None:
    if base is not None:
        lower = base.tree
        tree = merge(lower, tree)
    try:
        Checker(without_removed(tree), to.resolve().parent, findings.mistakes).resolved()
    except RecipeMistakes as wrong:
        own = [mistake for mistake in wrong.mistakes if mistake.origin.file in (findings.source.name, "")]
        if len(own) < len(wrong.mistakes):
            raise
    require_sound(findings)


def _head(findings: Findings, to: Path, gaps: tuple[Gap, ...]) -> list[str]:
    file = printable(Path(findings.source.name).name)
    lines = [f"# Imported from {file} by `drivetrain recipe import`. Each value's comment says which key it is."]
    if gaps:
        lines.append(f"# Fill in what says {FILL_IN}: `drivetrain recipe check {printable(to.name)}` finds each.")
    return lines


def _tail(findings: Findings) -> list[str]:
    if not findings.lost:
        return []
    lines = ["", f"# Without a counterpart, by their lines in {printable(Path(findings.source.name).name)}:"]
    for told in sorted(findings.lost, key=lambda told: told.line):
        lines.append(printable(f"# {told.line:4} {told.key}: {told.why}"))
    return lines
