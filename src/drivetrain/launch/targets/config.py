"""Which targets there are: those of a file of the user's, under those of the recipe."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain.launch.targets.recipe import ResourceSpec
from drivetrain.spec.custom import Custom, found_custom
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.installed import OWN_PATH, installed_kinds, path_of
from drivetrain.spec.registry import imported, nearest

if TYPE_CHECKING:
    from pydantic import ValidationError

KINDS: Mapping[str, str] = {
    "local": "drivetrain.launch.targets.local:LocalTarget",
    "slurm": "drivetrain.launch.targets.slurm:SlurmTarget",
    "aws-batch": "drivetrain.launch.targets.aws_batch:AwsBatchTarget",
    "sagemaker": "drivetrain.launch.targets.sagemaker:SageMakerTarget",
    "ray": "drivetrain.launch.targets.ray:RayTarget",
    "kubernetes": "drivetrain.launch.targets.kubernetes_settings:KubernetesTarget",
}
"""Settings classes of the kinds of targets."""
_ALWAYS: Mapping[str, Any] = {"local": {"kind": "local"}}


def file(environment: Mapping[str, str] = os.environ) -> Path:
    """Where a user's targets are: $DRIVETRAIN_TARGETS, or `drivetrain/targets.yaml` below $XDG_CONFIG_HOME or
    ~/.config."""
    if given := environment.get("DRIVETRAIN_TARGETS"):
        return Path(given)
    return Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "drivetrain" / "targets.yaml"


def targets(own: Mapping[str, Any], path: Path | None = None) -> dict[str, dict[str, Any]]:
    """Every target by name, as it was written: `local`, the file's, and a recipe's `own` over them, key by key.

    Raises Failure(66) for a named file that is not there, RecipeMistakes (78) for one that is no such mapping.
    """
    named = path is not None or "DRIVETRAIN_TARGETS" in os.environ
    place = path if path is not None else file()
    found = {name: dict(settings) for name, settings in _ALWAYS.items()}
    written: Mapping[str, Mapping[str, Any]] = {}
    if place.is_file():
        written = _written(place)
    elif named:
        raise Failure(Exit.INPUT_MISSING, f"no targets at {place}", "see docs/launch/index.md")
    for layer in (written, own):
        for name, settings in layer.items():
            found[name] = found.get(name, {}) | dict(settings)
    return found


def settings_of(name: str, own: Mapping[str, Any], path: Path | None = None) -> ResourceSpec:
    """The settings of one target. Raises Failure(64) where there is none of this name."""
    known = targets(own, path)
    if name not in known:
        listed = f"there are {', '.join(known)}{nearest(name, list(known))}"
        raise Failure(Exit.BAD_COMMAND, f"no target {name!r}", f"{listed}; {path or file()} has your own")
    return settings_from(name, known[name])


def settings_from(name: str, data: Mapping[str, Any]) -> ResourceSpec:
    """Checked settings of a target. Raises RecipeMistakes (78) with all that is wrong with them."""
    from pydantic import TypeAdapter, ValidationError

    cls = _class_of(name, data.get("kind"))
    # As JSON: in strict mode Python's own lists would not be taken for tuples.
    try:
        return TypeAdapter(cls).validate_json(json.dumps(dict(data)), strict=True)
    except ValidationError as error:
        raise _mistakes(name, cls, data, error) from None


def _class_of(name: str, kind: Any) -> type[ResourceSpec]:
    """The settings class of a kind: a shipped one, one that a package adds, or the user's own.

    Raises RecipeMistakes (78) for another kind, Failure(77) for a path that leads to no such class.
    """
    if isinstance(kind, str) and kind in KINDS:
        return imported(KINDS[kind])
    path = path_of("target", kind)
    if not path:
        raise _unknown(name, kind, list(dict.fromkeys([*KINDS, *installed_kinds("target")])))
    cls = found_custom(Custom(section="target", kind=path, folder=str(Path.cwd())))
    assert isinstance(cls, type)
    return cls


def build(settings: ResourceSpec) -> Any:
    """The target of these settings (a `Target`). Nothing is asked of anybody."""
    return imported(type(settings).factory)(settings)


def _written(path: Path) -> dict[str, dict[str, Any]]:
    from drivetrain.spec.parse import parse_file
    from drivetrain.spec.tree import Mistake, Origin, RecipeMistakes, to_data

    mistakes: list[Mistake] = []
    data = to_data(parse_file(path, "targets", mistakes))
    origin = Origin("targets", str(path), 1)
    for name, one in data.items():
        if not isinstance(one, dict):
            mistakes.append(Mistake((name,), "is a mapping with a kind", origin))
    if mistakes:
        raise RecipeMistakes(mistakes)
    return data


def _unknown(name: str, kind: Any, known: list[str]) -> Failure:
    from drivetrain.spec.check import shown
    from drivetrain.spec.tree import Mistake, Origin, RecipeMistakes

    text = f"is {', '.join(known)} or {OWN_PATH} (got {shown(kind)}){nearest(str(kind), known)}"
    return RecipeMistakes([Mistake((name, "kind"), text, Origin("target"))])


def _mistakes(name: str, cls: type, data: Mapping[str, Any], error: ValidationError) -> Failure:
    """All that is wrong with the settings of a target. What puts it into words is only loaded here: most have none."""
    from drivetrain.spec.messages import inside, messages
    from drivetrain.spec.tree import Mistake, Origin, RecipeMistakes

    problems: dict[Any, list[Any]] = {}
    for problem in error.errors(include_url=False):
        problems.setdefault(inside(data, problem["loc"])[0], []).append(problem)
    wrong = []
    for path, found in problems.items():
        for text in messages(cls, data, path, found):
            wrong.append(Mistake((name, *path), text, Origin("target")))
    return RecipeMistakes(wrong)
