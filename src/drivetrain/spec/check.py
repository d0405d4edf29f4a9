"""Contradictions between values that are each fine: pure checks on a whole recipe, without torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from drivetrain.spec.amount import Amount
from drivetrain.spec.recipe import Recipe
from drivetrain.spec.registry import Custom
from drivetrain.spec.settings import key_of
from drivetrain.spec.tree import Path_


class Contradiction(NamedTuple):
    """A path, what is wrong there, and whether it is a refusal (77)."""

    path: Path_
    message: str
    refused: bool = False


def contradictions(recipe: Recipe) -> list[Contradiction]:
    """All that does not go together. A section that could not be read is None: what depends on it is not checked."""
    checks = (
        _name,
        _batch,
        _networks,
        _loaded,
        _exact,
        _recompute,
        _layerwise,
        _projected,
        _profile,
        _sources,
        _units,
        _landmarks,
        _best,
        _blend,
        _overlap,
    )
    return [found for check in checks for found in check(recipe)]


def _name(recipe: Recipe) -> Iterator[Contradiction]:
    if recipe.name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", recipe.name):
        message = f"{shown(recipe.name)} is refused as a file name: letters, digits, '.', '_', '-', at most 100"
        yield Contradiction(("name",), message, refused=True)
    for path in _sets(recipe):
        part, name = path[-2:]
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", str(name)):
            yield Contradiction(path, f"names of {part} sets are letters, digits, '_' and '-', at most 64")
        if part == "test" and name in recipe.data.validation:
            yield Contradiction(path, "a validation set has this name")


def _batch(recipe: Recipe) -> Iterator[Contradiction]:
    if recipe.batch is None:
        return
    sizes, lanes = recipe.batch.sizes, recipe.lanes
    processes = recipe.launch.processes if recipe.launch else 1
    named = "batch.size" if len(sizes) == 1 else "batch.size and those of batch.ramp:"
    given = f"{named} {', '.join(map(str, sizes))}"
    if recipe.batch.micro is not None and recipe.batch.micro > min(sizes):
        yield Contradiction(("batch", "micro"), f"{recipe.batch.micro} is more than {given}")
    if isinstance(lanes, int) and math.gcd(*sizes) % lanes:
        message = f"{given}: not a multiple of {lanes} lanes; lanes may be {_divisors(math.gcd(*sizes))}"
        yield Contradiction(("lanes",), message)
    shared, what = (lanes, f"{lanes} lanes") if isinstance(lanes, int) else (math.gcd(*sizes), given)
    if lanes is not None and shared % processes:
        message = f"{processes} do not share {what}; {_divisors(shared)} would"
        yield Contradiction(("launch", "processes"), message)


def _networks(recipe: Recipe) -> Iterator[Contradiction]:
    most = recipe.batch.micro if recipe.batch else None
    for name, own in (recipe.networks or {}).items():
        if most is not None and own.micro is not None and own.micro > most:
            yield Contradiction(("networks", name, "micro"), f"{own.micro} is more than batch.micro {most}")


def _loaded(recipe: Recipe) -> Iterator[Contradiction]:
    """Networks that a task does not train, but takes from another run."""
    given = recipe.init if isinstance(recipe.init, (list, tuple)) else [recipe.init] if recipe.init else []
    for name in getattr(recipe.task, "loads", ()):
        if not any(each.part == name and each.freeze is True for each in given):
            message = (
                f"the task takes its network {name} from another run: init: {{from: RUN, part: {name}, freeze: true}}"
            )
            yield Contradiction(("init",), message)


def _exact(recipe: Recipe) -> Iterator[Contradiction]:
    """What exact mode asks for, as far as it shows without networks and device."""
    if not recipe.exact:
        return
    if recipe.device == "mps":
        yield Contradiction(("device",), "exact: there are no deterministic kernels on mps")
    if recipe.compile:
        message = (
            "exact: the compiler chooses kernels by the shapes that a process has seen, other ones in other worlds"
        )
        yield Contradiction(("compile",), message)
    lanes, processes = recipe.lanes, recipe.launch.processes if recipe.launch else 1
    if isinstance(lanes, int) and lanes & (lanes - 1):
        yield Contradiction(("lanes",), f"exact: {lanes} is no power of two")
        return
    if processes & (processes - 1):
        yield Contradiction(("launch", "processes"), f"exact: {processes} is no power of two")
        return
    if recipe.batch is None or recipe.batch.micro is None or lanes is None:
        return
    known = lanes if isinstance(lanes, int) else processes
    size, micro = math.gcd(*recipe.batch.sizes), recipe.batch.micro
    if size % known == 0 and (size // known) % micro:
        what = f"{known} lanes" if isinstance(lanes, int) else f"lanes of {processes} processes"
        message = f"exact: {micro} would span {what} of {size // known} samples; {_divisors(size // known)} would not"
        yield Contradiction(("batch", "micro"), message)


def _recompute(recipe: Recipe) -> Iterator[Contradiction]:
    """Gradients that another process is to compute again, to the last bit."""
    if recipe.guard is None or recipe.guard.recompute is None:
        return
    if recipe.device == "mps":
        yield Contradiction(("guard", "recompute"), "there are no deterministic kernels on mps")
    if recipe.compile:
        message = "the compiler chooses kernels by the shapes that a process has seen: others may come to other bits"
        yield Contradiction(("guard", "recompute"), message)


def _layerwise(recipe: Recipe) -> Iterator[Contradiction]:
    """What looks at gradients before weights move, where they move within the backward pass."""
    if not any(getattr(part, "layerwise", False) for _, part in _parts(recipe.optimizer, ("optimizer",))):
        return
    own = {name: network.precision for name, network in (recipe.networks or {}).items()}
    refused: dict[tuple, bool] = {
        ("exact",): bool(recipe.exact),
        ("precision",): recipe.precision == "fp16",
        **{("networks", name, "precision"): precision == "fp16" for name, precision in own.items()},
        ("statistics",): recipe.statistics is not None,
        ("guard",): recipe.guard is not None and recipe.guard.skips,
        ("guard", "recompute"): recipe.guard is not None and recipe.guard.recompute is not None,
    }
    for path, is_set in refused.items():
        if is_set:
            yield Contradiction(path, "optimizer.layerwise moves weights before anyone has seen all gradients")


def _projected(recipe: Recipe) -> Iterator[Contradiction]:
    """What needs a matrix's whole gradient, where only its projection is summed."""
    for path, part in _parts(recipe.optimizer, ("optimizer",)):
        if getattr(part, "reduce", "whole") != "projected":
            continue
        refused: dict[tuple, bool] = {
            (*path, "update"): getattr(part, "update", "") == "scaled",
            (*path, "layerwise"): getattr(part, "layerwise", False),
            ("exact",): bool(recipe.exact),
            ("statistics", "gradients"): recipe.statistics is not None and recipe.statistics.gradients,
        }
        for other, is_set in refused.items():
            if is_set:
                yield Contradiction(other, "optimizer.reduce: projected leaves nobody the sum of whole gradients")


def _profile(recipe: Recipe) -> Iterator[Contradiction]:
    if recipe.profile is None or recipe.launch is None:
        return
    for place, rank in enumerate(recipe.profile.ranks):
        if rank >= recipe.launch.processes:
            message = f"there is no rank {rank} among {recipe.launch.processes} processes"
            yield Contradiction(("profile", "ranks", place), message)


def _sources(recipe: Recipe) -> Iterator[Contradiction]:
    if recipe.data is None:
        return
    named: dict[Path_, Any] = {("data", "train", "sources", i): s for i, s in enumerate(recipe.data.train.sources)}
    named |= _sets(recipe)
    for path, source in named.items():
        reads = getattr(recipe.task, "reads", None)
        if reads and not isinstance(source, Custom) and source is not None and source.kind not in reads:
            yield Contradiction((*path, "kind"), f"the task reads sources of kind {' or '.join(reads)}")
            continue
        without = not isinstance(source, Custom) and getattr(source, "context", 0) is None
        if without and recipe.task is not None:
            yield Contradiction(path, "needs a context (tokens in a sample), since the task gives none")
        rows = not isinstance(source, Custom) and source is not None and not hasattr(source, "context")
        if rows and getattr(recipe.task, "tokens_per_sample", None) is not None:
            message = f"the task reads tokens, and kind {getattr(source, 'kind', '')} gives rows"
            yield Contradiction((*path, "kind"), f"{message}; `drivetrain data prepare` makes tokens of them")
            continue
        kind = "documents" if isinstance(source, Custom) else getattr(source, "kind", "documents")
        if kind != "documents" and getattr(recipe.task, "needs_documents", False):
            message = f"task.documents keeps documents apart, which sources of kind {kind} do not tell"
            yield Contradiction((*path, "kind"), f"{message}; use kind documents, or leave task.documents out")


def _sets(recipe: Recipe) -> dict[Path_, Any]:
    """The sources of validation and test sets, with their paths."""
    if recipe.data is None:
        return {}
    parts = (("validation", recipe.data.validation), ("test", recipe.data.test))
    return {("data", part, name): source for part, sets in parts for name, source in sets.items()}


def _overlap(recipe: Recipe) -> Iterator[Contradiction]:
    """Parts of one file that are cut in different ways: what is trained on would also be what is scored."""
    trained = recipe.data.train.sources if recipe.data else ()
    for path, source in _sets(recipe).items():
        for other in trained:
            if not hasattr(source, "part") or _what(source) != _what(other):
                continue
            if "all" in (source.part, other.part) and source.part != other.part:
                message = f"reads part {source.part} of {shown(source.path)}, of which training reads part {other.part}"
                yield Contradiction((*path, "part"), f"{message}: they have samples in common")
            elif source.part != other.part and _cuts(source) != _cuts(other):
                message = f"cuts {shown(source.path)} in another way than training does"
                yield Contradiction(path, f"{message}: they have samples in common; give both the same split")


def _what(source: Any) -> tuple[Any, Any]:
    return getattr(source, "kind", None), getattr(source, "path", source)


def _cuts(source: Any) -> list[Any]:
    return [getattr(source, name, None) for name in ("split", "by", "key", "holdout", "subset")]


def source_names(sources: Sequence[Any]) -> list[str]:
    """What training sources are called: their names, or their places."""
    return [source.name or f"source{place}" for place, source in enumerate(sources)]


def _blend(recipe: Recipe) -> Iterator[Contradiction]:
    if recipe.data is None:
        return
    train, at = recipe.data.train, ("data", "train")
    names = source_names(train.sources)
    for place, name in enumerate(names):
        if name in names[:place]:
            yield Contradiction((*at, "sources", place), f"another source is called {name!r}")
    contexts = {getattr(source, "context", None) for source in train.sources if not isinstance(source, Custom)}
    if len(contexts) > 1:
        listed = ", ".join(sorted(map(str, contexts), key=lambda text: (len(text), text)))
        yield Contradiction((*at, "sources"), f"sources of one blend have one context, not {listed}")
    packed = {getattr(source, "kind", "") == "documents" for source in train.sources}
    if len(packed) > 1:
        yield Contradiction((*at, "sources"), "sources of kind documents blend with their own kind only")
    if not any(source.weight for source in train.sources):
        yield Contradiction((*at, "sources"), "every weight is 0")
    for place, stage in enumerate(train.stages):
        path = (*at, "stages", place, "weights")
        for unknown in sorted(stage.weights.keys() - set(names)):
            yield Contradiction((*path, unknown), f"no source is called {unknown!r}; there are {', '.join(names)}")
        if not any(stage.weights.values()):
            yield Contradiction(path, "every weight is 0")


def _units(recipe: Recipe) -> Iterator[Contradiction]:
    if recipe.task is None or getattr(recipe.task, "tokens_per_sample", None) is not None:
        return
    message = "this task's samples have no fixed number of tokens; use steps, samples or epochs"
    for path, amount in _amounts(recipe):
        if amount.tokens is not None:
            yield Contradiction((*path, "tokens"), message)


def _landmarks(recipe: Recipe) -> Iterator[Contradiction]:
    """Warm-ups and decays that do not fit into their schedule, as far as amounts in the same unit can tell."""
    for path, schedule in [*_parts(recipe.schedule, ("schedule",)), *_parts(recipe.optimizer, ("optimizer",))]:
        if not hasattr(schedule, "warmup"):
            continue
        length = getattr(schedule, "length", None)
        end, what = (recipe.budget, "budget") if length is None else (length, "length")
        if end is None:
            continue
        ((unit, total),) = end.given.items()
        warmup = schedule.warmup.given.get(unit, 0) if schedule.warmup is not None else 0
        decay = getattr(schedule, "decay", None)
        tail = decay.given.get(unit, 0) if isinstance(decay, Amount) else 0
        if warmup >= total:
            yield Contradiction((*path, "warmup"), f"a warm-up of {warmup:g} {unit} in a {what} of {total:g}")
        elif warmup + tail > total:
            message = f"a warm-up of {warmup:g} and a decay of {tail:g} {unit} in a {what} of {total:g}"
            yield Contradiction((*path, "decay"), message)


def _best(recipe: Recipe) -> Iterator[Contradiction]:
    best = recipe.checkpoint.keep_best if recipe.checkpoint else None
    patience = recipe.stop.patience if recipe.stop else None
    for path, chosen in ((("checkpoint", "keep_best"), best), (("stop", "patience"), patience)):
        if chosen is None or recipe.data is None:
            continue
        name, slash, metric = chosen.metric.partition("/")
        if not slash or not metric or name not in recipe.data.validation:
            sets = ", ".join(recipe.data.validation) or "none"
            yield Contradiction((*path, "metric"), f"is SET/METRIC with a validation set of this recipe: {sets}")


def _amounts(recipe: Recipe) -> Iterator[tuple[Path_, Amount]]:
    """Every amount of a recipe with its path."""
    yield from ((path, part) for path, part in _parts(recipe, ()) if isinstance(part, Amount))


def _parts(value: Any, path: Path_) -> Iterator[tuple[Path_, Any]]:
    """Every settings object inside a value, with its path: schedules, groups, amounts."""
    if is_dataclass(value):
        yield path, value
        for field in fields(value):
            yield from _parts(getattr(value, field.name), (*path, key_of(field.name)))
    elif isinstance(value, (dict, tuple)):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _parts(part, (*path, key))


def _divisors(number: int) -> str:
    """The smallest numbers that divide a number, in words; there are no more than 1024 lanes or processes."""
    found = [str(candidate) for candidate in range(1, min(number, 1024) + 1) if number % candidate == 0]
    return ", ".join(found[:12]) + (", ..." if len(found) > 12 else "")


def shown(value: Any) -> str:
    """A value in a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
