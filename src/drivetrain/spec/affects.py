"""What each field of a recipe affects: bits, cost or nothing; digest and differences follow from it."""

from __future__ import annotations

import hashlib
import json
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from drivetrain.spec.amount import Amount
from drivetrain.spec.components import ReadsScores
from drivetrain.spec.custom import Custom
from drivetrain.spec.keys import key_of
from drivetrain.spec.recipe import Recipe
from drivetrain.spec.secrets import without_secret
from drivetrain.spec.settings import Affects, Setting
from drivetrain.spec.tree import dotted

_EVALUATE = ("evaluate",)
_MAKES_SCORES = ("batch", "budget", "metrics")  # of `evaluate`
_STRENGTH: dict[Affects, int] = {"nothing": 0, "cost": 1, "bits": 2}


@cache
def settings_of(cls: type) -> Mapping[str, Setting]:
    """What each field of a settings class declares. Raises TypeError where one declares nothing."""
    found = {}
    hints = get_type_hints(cls, include_extras=True)
    for field in fields(cls):
        declared = [extra for extra in getattr(hints[field.name], "__metadata__", ()) if isinstance(extra, Setting)]
        if not declared:
            raise TypeError(f"{cls.__name__}.{field.name} does not declare what it affects")
        found[field.name] = declared[0]
    return found


Leaf = tuple[tuple, Any, Affects]


def leaves(value: Any, path: tuple = (), affects: Affects = "bits", *, digested: bool = False) -> Iterator[Leaf]:
    """Every leaf of a recipe: its path, its value, and what it affects. A part affects no more than the whole does.

    `digested`: only what digests are made of, so without `later` fields that have their default.
    """
    if isinstance(value, Custom):
        yield (*path, "kind"), value.kind, affects
        if value.weight != 1.0:
            yield (*path, "weight"), value.weight, affects
        if value.parted is not None:
            yield from leaves(value.parted, (*path, "parted"), affects, digested=digested)
        yield from leaves(value.written, path, affects, digested=digested)
    elif is_dataclass(value):
        yield from _field_leaves(value, path, affects, digested)
    elif isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from leaves(part, (*path, key), affects, digested=digested)
    elif isinstance(value, (list, tuple)) and value:
        for index, part in enumerate(value):
            yield from leaves(part, (*path, index), affects, digested=digested)
    else:
        yield path, value, affects


def _field_leaves(value: Any, path: tuple, affects: Affects, digested: bool) -> Iterator[Leaf]:
    """The leaves of settings."""
    declared = settings_of(type(value))
    decides = isinstance(value, Recipe) and bool(reads_scores(value))
    for field in fields(value):
        setting, part = declared[field.name], getattr(value, field.name)
        if digested and setting.later and part == _default(field):
            continue
        # What only costs cannot have a part that changes bits, whatever the part's own class says.
        weaker = min(affects, setting.affects, key=_STRENGTH.__getitem__)
        inner = path if setting.inline else (*path, key_of(field.name))
        found = leaves(part, inner, weaker, digested=digested)
        yield from map(_decided, found) if decides and inner == _EVALUATE else found


def _decided(leaf: Leaf) -> Leaf:
    """What becomes of a leaf of `evaluate` where learning rates follow scores: how these are made decides bits."""
    path, value, affects = leaf
    if path[1] in _MAKES_SCORES:
        return path, value, "bits"
    return path, value, affects


def reads_scores(recipe: Recipe) -> tuple[Amount, ...]:
    """The intervals at which the schedules of a recipe read scores."""
    schedules = [recipe.schedule]
    if isinstance(recipe.schedule, Mapping):
        schedules = list(recipe.schedule.values())
    found: list[Amount] = []
    for schedule in schedules:
        if isinstance(schedule, ReadsScores) and schedule.reads_scores is not None:
            found.append(schedule.reads_scores)
    return tuple(found)


def customs(value: Any, affects: Affects = "bits") -> Iterator[tuple[Custom, Affects]]:
    """The components of a recipe that are the user's own, each with what its place affects."""
    if isinstance(value, Custom):
        yield value, affects
    elif is_dataclass(value):
        declared = settings_of(type(value))
        if isinstance(value, Recipe) and reads_scores(value):
            yield from customs(value.evaluate.metrics, "bits")
        for field in fields(value):
            weaker = min(affects, declared[field.name].affects, key=_STRENGTH.__getitem__)
            yield from customs(getattr(value, field.name), weaker)
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from customs(part, affects)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from customs(part, affects)


def stronger(one: Affects, other: Affects) -> Affects:
    """What both together affect."""
    return max(one, other, key=_STRENGTH.__getitem__)


def _default(field: Field) -> Any:
    """What a field is where nobody says; MISSING where somebody must."""
    if field.default_factory is MISSING:
        return field.default
    return field.default_factory()


def bits_digest(recipe: Recipe) -> str:
    """12 hex digits over the values that affect the bits. Two recipes that have it in common are the same run."""
    chosen = {dotted(path): value for path, value, affects in leaves(recipe, digested=True) if affects == "bits"}
    return _digest(chosen)


def plan_digest(recipe: Recipe, mesh: Mapping[str, int], lanes: int) -> str:
    """12 hex digits over all that decides what a run takes: the values that affect bits or cost, the processes along
    each axis, and the lanes."""
    chosen = {dotted(path): value for path, value, affects in leaves(recipe, digested=True) if affects != "nothing"}
    return _digest({"recipe": chosen, "mesh": mesh, "lanes": lanes})


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=list).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class FieldChange:
    """A value that two recipes do not share; of a URL with a credential without that."""

    path: str
    old: Any
    new: Any
    affects: Affects

    def __str__(self) -> str:
        """As the message of a refused resume shows it."""
        return f"{self.path}: {self.old!r} -> {self.new!r}"


def differences(old: Recipe, new: Recipe) -> list[FieldChange]:
    """What changed between two recipes, in the order of the new one."""
    before: dict[str, tuple[Any, Affects]] = {dotted(path): (value, affects) for path, value, affects in leaves(old)}
    after: dict[str, tuple[Any, Affects]] = {dotted(path): (value, affects) for path, value, affects in leaves(new)}
    changed = []
    # A path that only one of them has counts as None that affects nothing there.
    for path in dict.fromkeys([*after, *before]):
        was, now = (_shown(*side.get(path, (None, "nothing"))) for side in (before, after))
        if _is_filled(path, before, after) or _is_filled(path, after, before):
            continue  # its parts are told
        if was[0] != now[0]:
            affects = was[1] if _STRENGTH[was[1]] > _STRENGTH[now[1]] else now[1]
            changed.append(FieldChange(path, was[0], now[0], affects))
    return changed


def _shown(value: Any, affects: Affects) -> tuple[Any, Affects]:
    """A value that may be told. A recipe of a version that took credentials had the same data without."""
    return (without_secret(value) if isinstance(value, str) else value), affects


def _is_filled(path: str, one: Mapping[str, tuple[Any, Affects]], other: Mapping[str, tuple[Any, Affects]]) -> bool:
    """Whether one recipe has something empty at a path, and the other has parts there."""
    if path in other or path not in one or one[path][0] not in ({}, (), []):
        return False
    return any(part.startswith((f"{path}.", f"{path}[")) for part in other)


def settings_classes(hint: Any) -> Iterator[type]:
    """The settings classes in an annotation such as `X`, `X | None`, `tuple[X, ...]`, `Annotated[X | Y, ...]`,
    `Mapping[str, X]`."""
    if get_origin(hint) is typing.Annotated:
        hint = get_args(hint)[0]
    if is_dataclass(hint) and isinstance(hint, type):
        yield hint
    elif get_origin(hint) in (types.UnionType, typing.Union, tuple, list, Mapping):
        for arg in get_args(hint):
            yield from settings_classes(arg)
