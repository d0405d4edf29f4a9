"""All kinds that recipes and targets can choose: shipped ones, those of packages, and where one's own go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from drivetrain.spec.custom import POINTS
from drivetrain.spec.importing.importers import IMPORTERS
from drivetrain.spec.installed import OWN_PATH, installed_kinds
from drivetrain.spec.registry import KINDS, imported

_TARGETS = "drivetrain.launch.targets.config:KINDS"


@dataclass(frozen=True)
class Kind:
    """A kind by its name, the package that it comes from, and a sentence about it."""

    name: str
    source: str
    about: str


def all_kinds() -> dict[str, list[Kind]]:
    """The kinds by section; last in each, where it may be one's own, what that is."""
    shipped: dict[str, Mapping[str, str]] = {**KINDS, "target": imported(_TARGETS), "importer": IMPORTERS}
    found = {}
    for section in dict.fromkeys([*shipped, *POINTS]):
        found[section] = list(_kinds(section, shipped.get(section, {})))
    return found


def _kinds(section: str, shipped: Mapping[str, str]) -> Iterator[Kind]:
    for name, path in shipped.items():
        about = (imported(path).__doc__ or "").strip().partition("\n")[0]
        yield Kind(name, "drivetrain", about)
    if section not in POINTS:
        return
    for kind in installed_kinds(section).values():
        yield Kind(kind.name, kind.package, kind.path)
    yield Kind(OWN_PATH, "your own", POINTS[section].wanted)
