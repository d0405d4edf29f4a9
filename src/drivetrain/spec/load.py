"""From a file, a name or a mapping to a checked recipe, with the provenance of every value."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.override import override, sets_kind
from drivetrain.spec.parse import parse_file
from drivetrain.spec.registry import nearest
from drivetrain.spec.removal import without_removed
from drivetrain.spec.sections import Checker, Resolved
from drivetrain.spec.tree import (
    Mistake,
    Origin,
    Path_,
    RecipeMistakes,
    Tree,
    TreeNode,
    Value,
    dotted,
    from_data,
    merge,
    origins_of,
    to_data,
)

__all__ = ["SHIPPED", "Resolved", "find", "load", "shipped_names"]

SHIPPED = Path(__file__).parent.parent / "recipes"
"""The folder of the recipes that come with the package."""


def load(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    folder: Path | None = None,
    origins: Mapping[str, str] | None = None,
    *,
    whole: bool = True,
) -> Resolved:
    """The recipe of a shipped name, a file (.yaml, .yml, .json), a run directory or a mapping, with overrides on top.

    `folder` is where a mapping's own modules are looked up, `origins` where its values were first written, for the
    messages about them. Unless `whole`, sections are not held against each other: on how many processes it trains is
    still to be said. Raises RecipeMistakes (78, or 77 for what is refused) with all mistakes together, Failure(66)
    where there is no such recipe, Failure(65) where a run directory's is damaged.
    """
    text, origin, given, is_run = "", "", list(overrides), False
    mistakes: list[Mistake] = []
    if isinstance(source, Mapping):
        tree: Tree = from_data(source, Origin("api"), mistakes, origins or {})
    else:
        path, folder = find(str(source))
        is_run = path.name == "resolved.json"
        if is_run:
            kept = _kept(path)
            origin, given = kept.get("source") or "", [*kept.get("given", ()), *overrides]
            tree = from_data(kept["recipe"], Origin("file", str(path), 1), mistakes, kept.get("origins") or {})
        else:
            tree, text = with_bases(path, "file", (), mistakes), path.read_text(encoding="utf-8")
            origin = str(path.resolve()) if folder else str(source)
    tree, dropped = _overridden(tree, overrides, mistakes)
    try:
        resolved = Checker(without_removed(tree), folder, mistakes).resolved(whole=whole)
    except RecipeMistakes as error:
        if not is_run or overrides:  # whose own mistakes they may be
            raise
        # Of an earlier version, which took what this one refuses.
        hint = f"its run directory gets another value as it goes on: drivetrain train {source} KEY=VALUE"
        raise RecipeMistakes(error.mistakes, hint) from error
    return replace(resolved, text=text, dropped=dropped, source=origin, given=tuple(given))


def find(source: str) -> tuple[Path, Path | None]:
    """The file that a name, a path or a run directory means, and the folder of its modules (None for a shipped one)."""
    given, shipped = Path(source), SHIPPED / f"{source}.yaml"
    is_name = re.fullmatch(r"[a-z0-9_-]+", source) is not None and shipped.is_file()
    resolved = given / "resolved.json"
    # A folder that happens to be called as a shipped recipe, such as one of GLUE's data, is not meant.
    if given.is_dir() and (resolved.is_file() or not is_name):
        if not resolved.is_file():
            raise _no_run(given)
        folder = _kept(resolved).get("folder")
        return resolved, Path(folder) if folder else None
    if given.suffix in (".yaml", ".yml", ".json") or given.is_file():
        return given, given.resolve().parent
    if not is_name:
        names = shipped_names()
        raise Failure(
            Exit.INPUT_MISSING,
            f"no recipe {source!r}{nearest(source, names)}",
            f"shipped are {', '.join(names)}; a file ends in .yaml or .json",
        )
    return shipped, None


def _no_run(folder: Path) -> Failure:
    if not (folder / "ledger.jsonl").is_file():
        return Failure(Exit.INPUT_MISSING, f"{folder} is a folder, but no run directory", "give a recipe file or a run")
    # As after a start that was refused on another machine: ledger and commits have come from the mirror before that.
    cause = f"{folder} has a ledger, but not its recipe, which a mirror does not keep"
    hint = f"go on first: drivetrain train RECIPE --run {folder}, with --override where that says 76"
    return Failure(Exit.INPUT_MISSING, cause, hint)


def shipped_names() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def _kept(path: Path) -> dict[str, Any]:
    """What a run directory keeps of its recipe."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(kept["recipe"], dict):
            return kept
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise Failure(Exit.BAD_DATA, f"{path} is damaged", "the recipe as it was given lies beside it, in recipe.yaml")


def with_bases(path: Path, layer: str, above: tuple[Path, ...], mistakes: list[Mistake]) -> Tree:
    """A file's tree over those of its `base:`; what is wrong with their texts is added to `mistakes`."""
    if path.resolve() in above:
        chain = " -> ".join(str(p) for p in (*above, path.resolve()))
        wrong = Mistake(("base",), f"recipes build on each other in a circle: {chain}", Origin(layer, str(path), 1))
        raise RecipeMistakes([*mistakes, wrong])
    tree = parse_file(path, layer, mistakes)
    bases = tree.items.get("base")
    if bases is None:
        return tree
    names = to_data(bases)
    if isinstance(bases, Value):
        names = [names]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        wrong = Mistake(("base",), "is the name or file of a recipe, or a list of them", bases.origin)
        raise RecipeMistakes([*mistakes, wrong])
    lower: Tree = TreeNode({}, tree.origin, {})
    for name in names:
        beside = path.parent / name
        try:
            base = beside if beside.is_file() else find(name)[0]
            lower = merge(lower, with_bases(base, "base", (*above, path.resolve()), mistakes))
        except RecipeMistakes:
            raise
        except Failure as failure:
            raise RecipeMistakes([*mistakes, Mistake(("base",), failure.outcome.cause, bases.origin)]) from None
    items = {key: value for key, value in tree.items.items() if key != "base"}
    return merge(lower, TreeNode(items, tree.origin, tree.keys))


def _overridden(tree: Tree, overrides: Sequence[str], mistakes: list[Mistake]) -> tuple[Tree, tuple[str, ...]]:
    """All overrides on top, kinds first, since another kind drops the old one's keys; and which of these are gone."""
    dropped: set[Path_] = set()
    for text in sorted(overrides, key=lambda text: not sets_kind(text)):
        try:
            lower, tree = tree, override(tree, text)
        except RecipeMistakes as wrong:
            mistakes += wrong.mistakes
            continue
        if sets_kind(text):
            dropped |= origins_of(lower).keys()
    dropped -= origins_of(tree).keys()
    return tree, tuple(sorted(dotted(path) for path in dropped if path[:-1] not in dropped))
