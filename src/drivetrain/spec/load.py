"""From a file, a name or a mapping to a checked recipe, with the provenance of every value."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from drivetrain.spec.amount import Amount
from drivetrain.spec.check import contradictions
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.recipe import Recipe
from drivetrain.spec.registry import CUSTOM_SECTIONS, DEFAULT_KINDS, KINDS, SECTIONS, Custom, imported, nearest
from drivetrain.spec.tree import (
    Mistake,
    Node,
    Origin,
    Path_,
    RecipeMistakes,
    Tree,
    Value,
    dotted,
    from_data,
    merge,
    origins_of,
    override,
    parse_file,
    to_data,
)

SHIPPED = Path(__file__).parent.parent / "recipes"
"""The folder of the recipes that come with the package."""

_OPTIONAL = ("optimizer", "schedule", "evaluate", "checkpoint", "watch", "launch")
_BY_NETWORK = ("optimizer", "schedule")
_DERIVED = ("context", "vocabulary")
_SUFFIX = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


@dataclass(frozen=True)
class Resolved:
    """A checked recipe; `tree` is the same as plain JSON data, with every default.

    `folder` is where its file lies, `text` that file as it was written ("" for a mapping and for a run's own).
    """

    recipe: Recipe
    tree: dict[str, Any]
    origins: dict[str, Origin]
    folder: Path | None
    text: str = ""


def load(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    folder: Path | None = None,
    origins: Mapping[str, str] | None = None,
) -> Resolved:
    """The recipe of a shipped name, a file (.yaml, .yml, .json), a run directory or a mapping, with overrides on top.

    `folder` is where a mapping's own modules are looked up, `origins` where its values were first written, for the
    messages about them. Raises RecipeMistakes (78, or 77 for what is refused) with
    all mistakes together, Failure(66) where there is no such recipe.
    """
    text = ""
    if isinstance(source, Mapping):
        tree: Tree = from_data(source, Origin("api"))
    else:
        path, folder = find(str(source))
        if path.name == "resolved.json":
            tree = _of_run(path)
        else:
            tree, text = _with_bases(path, "file", ()), path.read_text()
    tree = _overridden(tree, overrides)
    return replace(_Checker(tree, folder, origins or {}).resolved(), text=text)


def find(source: str) -> tuple[Path, Path | None]:
    """The file that a name, a path or a run directory means, and the folder of its modules (None for a shipped one)."""
    given = Path(source)
    if given.is_dir():
        resolved = given / "resolved.json"
        if not resolved.is_file():
            raise Failure(
                Exit.INPUT_MISSING, f"{source} is a folder, but no run directory", "give a recipe file or a run"
            )
        folder = json.loads(resolved.read_text()).get("folder")
        return resolved, Path(folder) if folder else None
    if given.suffix in (".yaml", ".yml", ".json") or given.is_file():
        return given, given.resolve().parent
    shipped = SHIPPED / f"{source}.yaml"
    if not re.fullmatch(r"[a-z0-9_-]+", source) or not shipped.is_file():
        names = shipped_names()
        raise Failure(
            Exit.INPUT_MISSING,
            f"no recipe {source!r}{nearest(source, names)}",
            f"shipped are {', '.join(names)}; a file ends in .yaml or .json",
        )
    return shipped, None


def shipped_names() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def plain(value: Any) -> Any:
    """Settings as plain JSON data."""
    if isinstance(value, Custom):
        return {"kind": value.kind, **plain(value.settings)}
    if isinstance(value, Amount):
        return dict(value.given)
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value


def _with_bases(path: Path, layer: str, above: tuple[Path, ...]) -> Tree:
    """A file's tree over those of its `base:`."""
    if path.resolve() in above:
        chain = " -> ".join(str(p) for p in (*above, path.resolve()))
        raise RecipeMistakes(
            [Mistake(("base",), f"recipes build on each other in a circle: {chain}", Origin(layer, str(path), 1))]
        )
    tree = parse_file(path, layer)
    bases = tree.items.get("base")
    if bases is None:
        return tree
    names = [to_data(bases)] if isinstance(bases, Value) else to_data(bases)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RecipeMistakes([Mistake(("base",), "is the name or file of a recipe, or a list of them", bases.origin)])
    lower: Tree = Node({}, tree.origin, {})
    for name in names:
        beside = path.parent / name
        try:
            base = beside if beside.is_file() else find(name)[0]
        except Failure as failure:
            raise RecipeMistakes([Mistake(("base",), failure.outcome.cause, bases.origin)]) from None
        lower = merge(lower, _with_bases(base, "base", (*above, path.resolve())))
    items = {key: value for key, value in tree.items.items() if key != "base"}
    return merge(lower, Node(items, tree.origin, tree.keys))


def _of_run(path: Path) -> Tree:
    """The tree that a run directory keeps, its origins with it."""
    kept = json.loads(path.read_text())
    return from_data(kept["recipe"], Origin("file", str(path), 1))


def _overridden(tree: Tree, overrides: Sequence[str]) -> Tree:
    """All overrides on top; kinds first, since another kind drops the old one's keys."""
    mistakes: list[Mistake] = []
    for text in sorted(overrides, key=lambda text: not text.partition("=")[0].strip().endswith("kind")):
        try:
            tree = override(tree, text)
        except RecipeMistakes as wrong:
            mistakes += wrong.mistakes
    if mistakes:
        raise RecipeMistakes(mistakes)
    return tree


class _Checker:
    """Checks a tree section by section and gathers every mistake."""

    def __init__(self, tree: Tree, folder: Path | None, written: Mapping[str, str]) -> None:
        self._origins = origins_of(tree)
        self._written = written
        self._data = _amounts(to_data(tree))
        self._folder = folder
        self._mistakes: list[Mistake] = []
        self._derived: dict[str, Origin] = {}

    def resolved(self) -> Resolved:
        """The recipe, or RecipeMistakes with all that is wrong."""
        top = self._data | {name: self._data.get(name) or {} for name in _OPTIONAL}
        recipe = self._settings(Recipe, top, ())
        sections: dict[str, Any] = {}
        for name, value in top.items():
            if name in SECTIONS and not (name == "init" and value is None):
                sections[name] = self._settings(imported(SECTIONS[name]), value, (name,))
            elif name in _BY_NETWORK and isinstance(value, dict) and _names_networks(name, value):
                sections[name] = {net: self._component(name, part, (name, net)) for net, part in value.items()}
            elif name in KINDS:
                sections[name] = self._component(name, value, (name,))
        if sections.get("data"):
            sections["data"] = self._sources(sections["data"], sections.get("task"))
        if recipe is not None and None not in (v for k, v in sections.items() if k != "init"):
            recipe = replace(recipe, **sections)
            self._mistakes += [Mistake(p, message, self._origin(p)) for p, message in contradictions(recipe)]
        if self._mistakes:
            unique = {(m.path, m.message): m for m in self._mistakes}
            raise RecipeMistakes(
                sorted(unique.values(), key=lambda m: (m.origin.file, m.origin.line, m.origin.text)),
                Exit.SECURITY if any("refused" in m.message for m in unique.values()) else Exit.BAD_RECIPE,
            )
        assert recipe is not None
        tree = plain(recipe)
        return Resolved(recipe, tree, self._all_origins(tree), self._folder)

    def _settings(self, cls: type, data: Any, path: Path_) -> Any:
        """An instance of a settings class, or None with its mistakes noted."""
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(cls).validate_json(json.dumps(data), strict=True)
        except ValidationError as error:
            for problem in error.errors(include_url=False):
                self._mistakes.append(self._mistake(cls, data, path, problem))
        return None

    def _component(self, section: str, data: Any, path: Path_) -> Any:
        """A component by its kind, or None with its mistakes noted."""
        if not isinstance(data, dict):
            self._note(path, f"is a mapping with a kind, not {data!r}")
            return None
        kinds = KINDS[section]
        kind = data.get("kind", DEFAULT_KINDS.get(section))
        own = " or package.module:Name" if section in CUSTOM_SECTIONS else ""
        if kind is None:
            self._note(path, f"needs a kind: {', '.join(kinds)}{own}")
        elif isinstance(kind, str) and kind in kinds:
            return self._settings(imported(kinds[kind]), data, path)
        elif isinstance(kind, str) and section in CUSTOM_SECTIONS and re.fullmatch(r"[\w.]+:\w+", kind):
            settings = {
                key: value
                for key, value in data.items()
                if key not in ("kind", "name" if section == "source" else "kind")
            }
            folder = str(self._folder) if self._folder else None
            here = (*path, "kind")
            place = self._written.get(dotted(here), str(self._origin(here)))
            return Custom(kind=kind, settings=settings, folder=folder, place=f"{place}: ")
        else:
            self._note(
                (*path, "kind"),
                f"unknown kind {kind!r}{nearest(str(kind), list(kinds))}; there are {', '.join(kinds)}{own}",
            )
        return None

    def _sources(self, data: Any, task: Any) -> Any:
        """The data section with its sources as settings, and what they take from the task filled in."""
        train = tuple(
            self._source(source, ("data", "train", "sources", index), task)
            for index, source in enumerate(data.train.sources)
        )
        validation = {
            name: self._source(source, ("data", "validation", name), task) for name, source in data.validation.items()
        }
        if None in train or None in validation.values():
            return None
        return replace(data, train=replace(data.train, sources=train), validation=validation)

    def _source(self, data: Any, path: Path_, task: Any) -> Any:
        source = self._component("source", data, path)
        if source is None or isinstance(source, Custom) or task is None:
            return source
        open_fields = [name for name in _DERIVED if getattr(source, name, "") is None]
        derived = task.derive(task, source) if hasattr(task, "derive") else {}
        for name in open_fields:
            if name in derived:
                source = replace(source, **{name: derived[name]})
                self._derived[dotted((*path, name))] = Origin("derived", text=f"task.model.{name}")
        return source

    def _mistake(self, cls: type, data: Any, path: Path_, problem: Any) -> Mistake:
        """One pydantic error in our words, at the place where the recipe says so."""
        inner, value = _inside(data, problem["loc"])
        kind = problem["type"]
        at = (*path, *inner)
        if kind == "unexpected_keyword_argument":
            known = _known_keys(cls, inner[:-1])
            message = f"unknown key {inner[-1]!r}{nearest(str(inner[-1]), known)}"
        elif kind in ("missing", "missing_argument"):
            message = f"{str(problem['loc'][-1])!r} is missing"
        elif kind == "value_error":
            message = str(problem["ctx"]["error"])
        else:
            message = f"{problem['msg']} (got {value!r})"
        return Mistake(at, message, self._origin(at))

    def _note(self, path: Path_, message: str) -> None:
        self._mistakes.append(Mistake(path, message, self._origin(path)))

    def _origin(self, path: Path_) -> Origin:
        """The origin of the longest part of a path that the recipe has."""
        while path not in self._origins:
            path = path[:-1]
        return self._origins[path]

    def _all_origins(self, tree: Any, path: Path_ = ()) -> dict[str, Origin]:
        """The origin of every leaf of the resolved tree."""
        if isinstance(tree, (dict, list)) and tree:
            pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
            return {k: v for key, part in pairs for k, v in self._all_origins(part, (*path, key)).items()}
        name = dotted(path)
        return {name: self._derived.get(name) or self._origins.get(path) or Origin("default")}


def _names_networks(section: str, value: dict[str, Any]) -> bool:
    """Whether a section is a mapping by network: all values are mappings, and no key is a setting of any kind."""
    if not value or not all(isinstance(part, dict) for part in value.values()):
        return False
    known = {f.name for path in KINDS[section].values() for f in fields(imported(path))}
    return not known.intersection(value)


def _inside(data: Any, loc: Sequence[Any]) -> tuple[Path_, Any]:
    """The part of an error's location that leads into the data, and what stands there.

    The rest of a location names members of a union, which the recipe's author does not see.
    """
    path: list[Any] = []
    for part in loc:
        inside = (isinstance(data, dict) and part in data) or (
            isinstance(data, list) and isinstance(part, int) and part < len(data)
        )
        if not inside:
            break
        path.append(part)
        data = data[part]
    return tuple(path), data


def _known_keys(cls: Any, inner: Path_) -> list[str]:
    """The keys that the settings class has at a place inside it."""
    from drivetrain.spec.affects import settings_class_at

    owner = settings_class_at(cls, inner)
    return [f.name for f in fields(owner)] if owner else []


def _amounts(data: Any) -> Any:
    """The data with amounts such as `1.5B` and `1e6` as whole numbers."""
    if isinstance(data, list):
        return [_amounts(part) for part in data]
    if not isinstance(data, dict):
        return data
    if data and data.keys() <= {"steps", "samples", "tokens", "epochs"}:
        return {unit: value if unit == "epochs" else _whole(value) for unit, value in data.items()}
    return {key: _amounts(part) for key, part in data.items()}


def _whole(value: Any) -> Any:
    """A whole number from 1.5B, 500M, 10k or 1e6; anything else as it is, for validation to refuse."""
    match = re.fullmatch(r"([0-9][0-9_]*(?:\.[0-9]+)?)([kKMBT]?)", value) if isinstance(value, str) else None
    number = float(match.group(1).replace("_", "")) * _SUFFIX[match.group(2)] if match and match.group(2) else value
    return int(number) if isinstance(number, float) and number.is_integer() else value
