"""Contradictions between values that are each fine: pure checks on a whole recipe, without torch."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import chain
from typing import Any, NamedTuple

from drivetrain.spec.amount import Amount
from drivetrain.spec.components import (
    CountsTokens,
    Decays,
    FindsMistakes,
    FollowsScore,
    GivesTokens,
    HasBlocks,
    HasLength,
    KeepsDocuments,
    LoadsNetworks,
    MovesLayers,
    MovesParts,
    ProjectsGradients,
    ReadsKinds,
    ReadsPart,
    SharesPositions,
    SplitsLayers,
    WarmsUp,
)
from drivetrain.spec.custom import Custom
from drivetrain.spec.keys import key_of
from drivetrain.spec.mesh import MeshSizes
from drivetrain.spec.recipe import Recipe
from drivetrain.spec.secrets import secret_in
from drivetrain.spec.text import shortened
from drivetrain.spec.tree import Path_, dotted


class Contradiction(NamedTuple):
    """A path, what is wrong there, and whether it is a refusal (77)."""

    path: Path_
    message: str
    refused: bool = False


def contradictions(recipe: Recipe) -> list[Contradiction]:
    """All that does not go together. A section that could not be read is None: what depends on it is not checked."""
    # Each is asked, whatever the others found: all that is wrong is told at once.
    checks = (
        _name,
        _secrets,
        _task,
        _batch,
        _parallel,
        _sliced,
        _staged,
        _meshed,
        _divided,
        _networks,
        _loaded,
        _exact,
        _recompute,
        _compiled,
        _activations,
        _weight_types,
        _rounded,
        _layerwise,
        _projected,
        _fused_rows,
        _profile,
        _sources,
        _units,
        _landmarks,
        _best,
        _blend,
        _overlap,
    )
    found: list[Contradiction] = []
    for check in checks:
        found += check(recipe)
    return found


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


def _secrets(recipe: Recipe) -> Iterator[Contradiction]:
    """A recipe is kept in run directories, ledgers and jobs, and shown: it holds no credentials."""
    for path, text in _texts(recipe, ()):
        if found := secret_in(text):
            yield Contradiction(path, f"has {found} in a URL: recipes hold none, the environment gives it")


def _texts(value: Any, path: Path_) -> Iterator[tuple[Path_, str]]:
    """Every text inside a value, with its path."""
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, str):
        yield path, value
    elif is_dataclass(value):
        parts = [(key_of(field.name), getattr(value, field.name)) for field in fields(value)]
    elif isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, (tuple, list)):
        parts = enumerate(value)
    for key, part in parts:
        yield from _texts(part, (*path, key))


def _task(recipe: Recipe) -> Iterator[Contradiction]:
    if isinstance(recipe.task, FindsMistakes):
        for path, message in recipe.task.mistakes(recipe):
            yield Contradiction(("task", *path), message)


def _batch(recipe: Recipe) -> Iterator[Contradiction]:
    if recipe.batch is None:
        return
    sizes, lanes = recipe.batch.sizes, recipe.lanes
    mesh = _mesh(recipe)
    named = "batch.size" if len(sizes) == 1 else "batch.size and those of batch.ramp:"
    given = f"{named} {', '.join(map(str, sizes))}"
    if recipe.batch.cost is not None:
        yield from _costs(recipe)
    # The smallest of a ramp: a micro-batch larger than a step would be another size than what was asked for.
    if recipe.batch.micro is not None and recipe.batch.micro > min(sizes):
        yield Contradiction(("batch", "micro"), f"{recipe.batch.micro} is more than {given}")
    if isinstance(lanes, int) and math.gcd(*sizes) % lanes:
        message = f"{given}: not a multiple of {lanes} lanes; lanes may be {_divisors(math.gcd(*sizes))}"
        yield Contradiction(("lanes",), message)
    # `auto` chooses lanes that suit the processes, so only the batch itself can stand in their way.
    shared, what = math.gcd(*sizes), given
    if isinstance(lanes, int):
        shared, what = lanes, f"{lanes} lanes"
    if lanes is None or mesh is None or shared % mesh.data == 0:
        return
    if mesh.replicated:
        message = f"{mesh.data} do not share {what}; {_divisors(shared)} would"
        yield Contradiction(("launch", "processes"), message)
    else:
        message = f"replicate x shard are {mesh.data} processes, which do not share {what}; {_divisors(shared)} would"
        yield Contradiction(("parallel",), message)


def _mesh(recipe: Recipe) -> MeshSizes | None:
    """How the processes are laid out; None where that cannot be."""
    processes = recipe.launch.processes if recipe.launch else 1
    try:
        return recipe.parallel.sizes(processes) if recipe.parallel else None
    except ValueError:
        return None


def _parallel(recipe: Recipe) -> Iterator[Contradiction]:
    """Meshes that the processes, or the task's layers, do not make."""
    if recipe.parallel is None or recipe.launch is None:
        return
    try:
        mesh = recipe.parallel.sizes(recipe.launch.processes)
    except ValueError as error:
        yield Contradiction(("launch", "processes"), f"parallel: {error}")
        return
    if mesh.tensor == 1 or recipe.task is None or isinstance(recipe.task, Custom):
        return  # of a task of the user's own the plan tells, once it is loaded
    if not isinstance(recipe.task, SplitsLayers):
        yield Contradiction(
            ("parallel", "tensor"), f"{mesh.tensor}: the layers of this task cannot be split; use shard"
        )
        return
    for path, number in recipe.task.split_sizes.items():
        if number % mesh.tensor and (recipe.parallel.sequence or not path.endswith("context")):
            message = f"{mesh.tensor} processes do not share {path} {number}; {_divisors(number)} would"
            yield Contradiction(("parallel", "tensor"), message)


def _sliced(recipe: Recipe) -> Iterator[Contradiction]:
    """Samples that processes along `context` cannot share, or not evenly."""
    mesh, path = _mesh(recipe), ("parallel", "context")
    if mesh is None or mesh.context == 1 or recipe.task is None or isinstance(recipe.task, Custom):
        return  # of a task of the user's own the plan tells, once it is loaded
    if not isinstance(recipe.task, SharesPositions):
        yield Contradiction(path, f"{mesh.context}: the samples of this task are not cut by positions; use shard")
        return
    where, number = recipe.task.positions
    # Two stretches each, from the front and from behind; between split layers each of these ranks has a part of both.
    parts = mesh.context * math.lcm(2, mesh.tensor if recipe.parallel.sequence else 1)
    if number % parts:
        message = f"{mesh.context} processes with two stretches each do not share {where} {number}"
        yield Contradiction(path, f"{message}; a multiple of {parts} would do")


def _staged(recipe: Recipe) -> Iterator[Contradiction]:
    """Stages that the task's blocks, or a step's micro-batches, do not make."""
    mesh, parallel = _mesh(recipe), recipe.parallel
    if mesh is None or parallel is None:
        return
    if mesh.pipeline == 1:
        if parallel.virtual_stages > 1:
            message = f"{parallel.virtual_stages}: is for stages on several processes (pipeline)"
            yield Contradiction(("parallel", "virtual_stages"), message)
        return
    yield from _blocks(recipe, mesh, mesh.pipeline * parallel.virtual_stages)
    if recipe.data is not None and recipe.data.train.buckets is not None:
        message = "stages pass on messages of one shape, and buckets make batches of several; use shard or tensor"
        yield Contradiction(("data", "train", "buckets"), message)
    if parallel.pipeline_schedule in ("zero_bubble", "zbv"):
        yield from _passed_back_once(recipe, parallel.pipeline_schedule)
    if recipe.batch is not None and recipe.batch.cost is None:
        yield from _rounds(recipe.batch.sizes, recipe.batch.micro, mesh, parallel.pipeline_schedule)


def _passed_back_once(recipe: Recipe, schedule: str) -> Iterator[Contradiction]:
    """What does not go with a schedule that passes back to inputs first, and to weights later."""
    parts = f"{schedule} passes back in two parts"
    if recipe.compiled:
        yield Contradiction(("compile",), f"{parts}, and a compiled block in one; use 1f1b or interleaved")
    for path, chosen in _chosen_activations(recipe):
        if chosen == "selective" or (isinstance(chosen, Mapping) and "selective" in chosen.values()):
            yield Contradiction(path, f"selective: {parts}, and what is kept serves one; use recompute")


def _blocks(recipe: Recipe, mesh: MeshSizes, stages: int) -> Iterator[Contradiction]:
    """Tasks that have no blocks for stages, or too few; of one of the user's own its plan tells, once it is loaded."""
    if isinstance(recipe.task, HasBlocks):
        path, blocks = recipe.task.blocks
        if blocks < stages:
            message = f"{stages} stages (pipeline x virtual_stages) are more than the blocks, {path} {blocks}"
            yield Contradiction(("parallel", "pipeline"), message)
    elif recipe.task is not None and not isinstance(recipe.task, Custom):
        message = f"{mesh.pipeline}: the loss of this task is not made in two parts that stages lie between; use shard"
        yield Contradiction(("parallel", "pipeline"), message)


def _rounds(sizes: Sequence[int], micro: int | None, mesh: MeshSizes, schedule: str) -> Iterator[Contradiction]:
    """Micro-batches of a step that a schedule does not take."""
    for size in sizes:
        share = size // mesh.data
        # Without a size, one micro-batch has all of a process's share.
        passes = -(-share // (micro or max(1, share)))
        if schedule == "gpipe":
            continue
        told = f"{passes} micro-batches a step for {mesh.pipeline} processes in a pipeline"
        if passes < mesh.pipeline:
            message = f"{told} leave some idle: take at most {max(1, share // mesh.pipeline)} samples each, or gpipe"
            yield Contradiction(("batch", "micro"), message)
        elif schedule not in ("1f1b", "zbv") and passes % (passes // mesh.pipeline):
            message = f"{told} do not go round ({schedule}); a multiple of {mesh.pipeline} would, or 1f1b"
            yield Contradiction(("batch", "micro"), message)


def _chosen_activations(recipe: Recipe) -> Iterator[tuple[Path_, Any]]:
    """What is said of activations, and where."""
    # A network's own word counts in place of the recipe's, so both are looked at.
    yield ("activations",), recipe.activations
    for name, own in (recipe.networks or {}).items():
        yield ("networks", name, "activations"), own.activations


def _meshed(recipe: Recipe) -> Iterator[Contradiction]:
    """What only ranks that hold everything can do."""
    mesh = _mesh(recipe)
    if mesh is not None:
        yield from _accumulated(recipe, mesh)
    if mesh is None or mesh.replicated:
        return
    refused: dict[tuple, bool] = {
        ("exact",): bool(recipe.exact),
        ("guard", "recompute"): recipe.guard is not None and recipe.guard.recompute is not None,
        ("statistics", "gradients"): recipe.statistics is not None and recipe.statistics.gradients,
    }
    for path, part in _parts(recipe.optimizer, ("optimizer",)):
        if isinstance(part, MovesLayers):
            refused[(*path, "layerwise")] = part.layerwise
        if isinstance(part, ProjectsGradients):
            refused[(*path, "reduce")] = part.reduce == "projected"
    for path, is_set in refused.items():
        if is_set:
            yield Contradiction(path, f"is for processes that hold everything (replicate alone), not for {mesh}")
    if recipe.compiled and recipe.compiled.scope == "network":
        message = f"in a graph of a whole network nothing can gather what {mesh} shares out: use scope block"
        yield Contradiction(("compile",), message)


def _accumulated(recipe: Recipe, mesh: MeshSizes) -> Iterator[Contradiction]:
    """Who cannot sum gradients after each micro-batch."""
    if recipe.parallel is None or recipe.parallel.accumulate == "whole":
        return
    why = ""
    if mesh.shard == 1:
        why = f"{mesh} shares no gradients out; it is for shard"
    elif mesh.pipeline > 1:
        why = "the stages of a pipeline sum their gradients once, at the end of their schedule"
    elif recipe.parameters is not None and recipe.parameters.dtype == "bf16":
        why = "of bf16 weights torch rounds each sum to bf16, and only that of the last micro-batch is seen before"
    if why:
        yield Contradiction(("parallel", "accumulate"), f"parts: {why}")


def _divided(recipe: Recipe) -> Iterator[Contradiction]:
    """Optimizers that cannot move what one process holds of a tensor."""
    mesh = _mesh(recipe)
    if mesh is None or mesh.replicated:
        return
    for path, part in _parts(recipe.optimizer, ("optimizer",)):
        if not isinstance(part, MovesParts):
            continue
        if part.parts == "none":
            message = f"{part.indivisible}, and of these each process has a part ({mesh})"
            yield Contradiction((*path, "kind"), message)
        elif part.parts == "rows" and mesh.tensor > 1:
            message = f"moves parts of whole rows, and tensor {mesh.tensor} cuts columns, too; use shard"
            yield Contradiction((*path, "kind"), message)


def _costs(recipe: Recipe) -> Iterator[Contradiction]:
    """What steps of as many samples as a cost allows do not go with."""
    cost, data = ("batch", "cost"), recipe.data
    if recipe.batch.ramp:
        yield Contradiction(("batch", "ramp"), "with batch.cost the cost says how many samples a step takes")
    if data is None:
        return
    if data.train.stages:
        yield Contradiction(("data", "train", "stages"), "with batch.cost weights stay: steps are cut from one order")
    if data.train.buckets is not None:
        yield Contradiction(("data", "train", "buckets"), "with batch.cost: they deal out batches of one size")
    for place, source in enumerate(data.train.sources):
        if getattr(source, "cost", None) is None:
            where = f"data.train.sources.{place}"
            yield Contradiction(cost, f"{where} has no `cost`: which column says what a sample costs, and the most")


def _networks(recipe: Recipe) -> Iterator[Contradiction]:
    most = recipe.batch.micro if recipe.batch else None
    for name, own in (recipe.networks or {}).items():
        if most is not None and own.micro is not None and own.micro > most:
            yield Contradiction(("networks", name, "micro"), f"{own.micro} is more than batch.micro {most}")


def _loaded(recipe: Recipe) -> Iterator[Contradiction]:
    """Networks that a task does not train, but takes from another run."""
    if not isinstance(recipe.task, LoadsNetworks):
        return
    given = recipe.init or ()
    if not isinstance(given, (list, tuple)):
        given = [given]
    for name in recipe.task.loads:
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
    # `auto` chooses at least as many lanes as there are processes, so a lane is at most a process's share.
    known, what = processes, f"lanes of {processes} processes"
    if isinstance(lanes, int):
        known, what = lanes, f"{lanes} lanes"
    size, micro = math.gcd(*recipe.batch.sizes), recipe.batch.micro
    if recipe.batch.cost is None and size % known == 0 and (size // known) % micro:
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


def _compiled(recipe: Recipe) -> Iterator[Contradiction]:
    """Modes of the compiler that never ran here, or that come to other bits in another process."""
    refused = {
        "reduce-overhead": "captures graphs of a CUDA device, which never ran here, and does nothing on a CPU",
        "max-autotune": "takes the kernels that were the fastest when it tried them: a resumed run may take others",
    }
    if recipe.compiled and (why := refused.get(recipe.compiled.mode)):
        yield Contradiction(("compile", "mode"), f"{recipe.compiled.mode} {why}; leave it out")


def _activations(recipe: Recipe) -> Iterator[Contradiction]:
    """The compiler sees a whole pass, or a whole block, and what it keeps of it is its own choice."""
    if not recipe.compiled:
        return
    blocks = recipe.compiled.scope == "block"
    chosen: dict[Path_, Any] = {("activations",): recipe.activations}
    for name, own in (recipe.networks or {}).items():
        chosen["networks", name, "activations"] = own.activations or "keep"
    for path, words in chosen.items():
        if words != "keep" and not blocks:
            message = "the compiler chooses by itself what is computed again; leave one of them out, or use scope block"
            yield Contradiction(path, message)
        elif words == "selective":
            message = "a compiled block keeps what products make, as it is; use keep, or recompute for whole blocks"
            yield Contradiction(path, message)


def _weight_types(recipe: Recipe) -> Iterator[Contradiction]:
    """Roundings of weights that are not rounded, and not by chance where nothing is left to it."""
    kept = recipe.parameters
    if kept is None:
        return
    chance = kept.rounding == "stochastic"
    if kept.dtype != "bf16" and chance:
        yield Contradiction(("parameters", "rounding"), "is for parameters.dtype: bf16; fp32 is kept as it is")
    if kept.dtype != "bf16" and kept.master == "none":
        yield Contradiction(("parameters", "master"), "is for parameters.dtype: bf16; fp32 weights are the masters")
    if recipe.exact and kept.dtype == "bf16" and chance:
        yield Contradiction(("parameters", "rounding"), "exact: weights are rounded to the nearest, not by chance")


def _rounded(recipe: Recipe) -> Iterator[Contradiction]:
    """What does not go with weights in bf16."""
    if recipe.parameters is None or recipe.parameters.dtype != "bf16":
        return
    if recipe.compile:
        yield Contradiction(("compile",), "was never tried with parameters.dtype: bf16")
    precisions: dict[tuple, Any] = {("precision",): recipe.precision}
    for name, network in (recipe.networks or {}).items():
        precisions["networks", name, "precision"] = network.precision
    for path, precision in precisions.items():
        if precision not in (None, "bf16"):
            message = f"weights in bf16 (parameters.dtype) compute in bf16, not in {precision}: say bf16"
            yield Contradiction(path, message)
    for path, part in _parts(recipe.optimizer, ("optimizer",)):
        if isinstance(part, MovesLayers) and part.layerwise:
            message = "moves parameters within the backward pass, before gradients of bf16 weights are fp32 sums"
            yield Contradiction((*path, "layerwise"), message)
        if isinstance(part, MovesParts) and (part.parts != "any" or hasattr(part, "own")):
            message = "was never tried with parameters.dtype: bf16; adam, adamw, sgd, adagrad and rmsprop were"
            yield Contradiction((*path, "kind"), message)


def _layerwise(recipe: Recipe) -> Iterator[Contradiction]:
    """What looks at gradients before weights move, where they move within the backward pass."""
    optimizers = [part for _, part in _parts(recipe.optimizer, ("optimizer",)) if isinstance(part, MovesLayers)]
    if not any(optimizer.layerwise for optimizer in optimizers):
        return
    refused: dict[tuple, bool] = {
        ("exact",): bool(recipe.exact),
        ("precision",): recipe.precision == "fp16",
        ("statistics",): recipe.statistics is not None,
        ("guard",): recipe.guard is not None and recipe.guard.skips,
        ("guard", "recompute"): recipe.guard is not None and recipe.guard.recompute is not None,
    }
    for name, network in (recipe.networks or {}).items():
        refused["networks", name, "precision"] = network.precision == "fp16"
    for path, is_set in refused.items():
        if is_set:
            yield Contradiction(path, "optimizer.layerwise moves weights before anyone has seen all gradients")


def _projected(recipe: Recipe) -> Iterator[Contradiction]:
    """What needs a matrix's whole gradient, where only its projection is summed."""
    for path, part in _parts(recipe.optimizer, ("optimizer",)):
        if not isinstance(part, ProjectsGradients) or part.reduce != "projected":
            continue
        refused: dict[tuple, bool] = {
            (*path, "update"): part.update == "scaled",
            (*path, "layerwise"): part.layerwise,
            (*path, "clip"): is_dataclass(part.clip),  # by value
            ("exact",): bool(recipe.exact),
            ("statistics", "gradients"): recipe.statistics is not None and recipe.statistics.gradients,
        }
        for other, is_set in refused.items():
            if is_set:
                yield Contradiction(other, "optimizer.reduce: projected leaves nobody the sum of whole gradients")


def _fused_rows(recipe: Recipe) -> Iterator[Contradiction]:
    """What only rows of our own can do."""
    rows = recipe.embeddings
    if rows is None or rows.backend != "torchrec":
        return
    apart = "torchrec knows no row's gradient, as the sum of all samples, before the row moves"
    refused: dict[Path_, str] = {}
    if recipe.exact:
        refused[("exact",)] = "torchrec adds rows up as processes hold them, in other orders on others"
    if recipe.parameters is not None and recipe.parameters.dtype == "bf16":
        refused["parameters", "dtype"] = "torchrec keeps fp32 rows"
    if recipe.statistics is not None and recipe.statistics.gradients:
        refused["statistics", "gradients"] = apart
    for path, part in _parts(recipe.optimizer, ("optimizer",)):
        if getattr(part, "clip", None) is not None:
            refused[(*path, "clip")] = f"{apart}: set clip: null"
    for pattern, way in rows.hold.items():
        if way == "each":
            refused["embeddings", "hold", pattern] = "torchrec holds each row once: say table or row"
    refused |= _moved_by_fbgemm(rows)
    for path, message in refused.items():
        yield Contradiction(path, f"embeddings.backend: {message}; backend: own has this")


def _moved_by_fbgemm(rows: Any) -> dict[Path_, str]:
    """What fbgemm's kernels for a CPU cannot do to rows, by its place."""
    refused: dict[Path_, str] = {}
    moved: dict[Path_, Any] = {("embeddings", "optimizer"): rows.optimizer}
    for place, group in enumerate(rows.groups):
        moved["embeddings", "groups", place, "optimizer"] = group.optimizer
    for path, optimizer in moved.items():
        if not optimizer.fused:
            refused[(*path, "kind")] = "torchrec moves rows on a CPU by sgd, adagrad or rowwise_adagrad"
        elif optimizer.weight_decay:
            refused[(*path, "weight_decay")] = "torchrec does not have it for all of sgd, adagrad, rowwise_adagrad"
    return refused


def _profile(recipe: Recipe) -> Iterator[Contradiction]:
    if recipe.profile is None or recipe.launch is None:
        return
    for place, rank in enumerate(recipe.profile.ranks):
        if rank >= recipe.launch.processes:
            message = f"there is no rank {rank} among {recipe.launch.processes} processes"
            yield Contradiction(("profile", "ranks", place), message)


def _sources(recipe: Recipe) -> Iterator[Contradiction]:
    for path, source in all_sources(recipe).items():
        # What the user's own source gives shows only once it is opened.
        if source is not None and not isinstance(source, Custom):
            yield from _source(recipe.task, source, path)


def _source(task: Any, source: Any, path: Path_) -> Iterator[Contradiction]:
    """What the task cannot read of one source."""
    kind = (*path, "kind")
    if isinstance(task, ReadsKinds) and source.kind not in task.reads:
        yield Contradiction(kind, f"the task reads sources of kind {' or '.join(task.reads)}")
        return
    if isinstance(source, GivesTokens):
        if source.context is None and task is not None:
            yield Contradiction(path, "needs a context (tokens in a sample), since the task gives none")
    elif isinstance(task, CountsTokens):
        message = f"the task reads tokens, and kind {source.kind} gives rows"
        yield Contradiction(kind, f"{message}; `drivetrain data prepare` makes tokens of them")
        return
    if source.kind != "documents" and isinstance(task, KeepsDocuments) and task.needs_documents:
        message = f"task.documents keeps documents apart, which sources of kind {source.kind} do not tell"
        yield Contradiction(kind, f"{message}; use kind documents, or leave task.documents out")


def all_sources(recipe: Recipe) -> dict[Path_, Any]:
    """The settings of every source, with their paths."""
    if recipe.data is None:
        return {}
    found: dict[Path_, Any] = {}
    for place, source in enumerate(recipe.data.train.sources):
        found["data", "train", "sources", place] = source
    return found | _sets(recipe)


def _sets(recipe: Recipe) -> dict[Path_, Any]:
    """The sources of validation and test sets, with their paths."""
    if recipe.data is None:
        return {}
    found: dict[Path_, Any] = {}
    for part, sets in (("validation", recipe.data.validation), ("test", recipe.data.test)):
        for name, source in sets.items():
            found["data", part, name] = source
    return found


def _overlap(recipe: Recipe) -> Iterator[Contradiction]:
    """Parts of one file that are cut in different ways: what is trained on would also be what is scored."""
    if recipe.data is None:
        return
    trained = [source for source in recipe.data.train.sources if isinstance(source, ReadsPart)]
    for path, source in _sets(recipe).items():
        if not isinstance(source, ReadsPart):
            continue
        for other in trained:
            if (source.kind, source.path) != (other.kind, other.path):
                continue
            if "all" in (source.part, other.part) and source.part != other.part:
                message = f"reads part {source.part} of {shown(source.path)}, of which training reads part {other.part}"
                yield Contradiction((*path, "part"), f"{message}: they have samples in common")
            elif source.part != other.part and source.cut_by() != other.cut_by():
                message = f"cuts {shown(source.path)} in another way than training does"
                yield Contradiction(path, f"{message}: they have samples in common; give both the same split")


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
    contexts: set[int | None] = set()  # None: rows
    packed: set[bool] = set()
    for source in train.sources:
        packed.add(source.kind == "documents")
        if not isinstance(source, Custom):
            tokens = isinstance(source, GivesTokens)
            contexts.add(source.context if tokens else None)
    if len(contexts) > 1:
        listed = ", ".join(sorted(map(str, contexts), key=lambda text: (len(text), text)))
        yield Contradiction((*at, "sources"), f"sources of one blend have one context, not {listed}")
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
    if recipe.task is None or isinstance(recipe.task, CountsTokens):
        return
    message = "this task's samples have no fixed number of tokens; use steps, samples or epochs"
    for path, amount in amounts(recipe):
        if amount.tokens is not None:
            yield Contradiction((*path, "tokens"), message)


def _landmarks(recipe: Recipe) -> Iterator[Contradiction]:
    """Warm-ups and decays that do not fit into their schedule, as far as amounts in the same unit can tell."""
    sections = {"schedule": recipe.schedule, "optimizer": recipe.optimizer, "embeddings": recipe.embeddings}
    for path, schedule in chain.from_iterable(_parts(section, (name,)) for name, section in sections.items()):
        if not isinstance(schedule, WarmsUp):
            continue
        end, what = recipe.budget, "budget"
        if isinstance(schedule, HasLength) and schedule.length is not None:
            end, what = schedule.length, "length"
        if end is None:
            continue
        ((unit, total),) = end.given.items()
        warmup = tail = 0
        if schedule.warmup is not None:
            warmup = schedule.warmup.given.get(unit, 0)
        if isinstance(schedule, Decays) and isinstance(schedule.decay, Amount):
            tail = schedule.decay.given.get(unit, 0)
        if warmup >= total:
            yield Contradiction((*path, "warmup"), f"a warm-up of {warmup:g} {unit} in a {what} of {total:g}")
        elif warmup + tail > total:
            message = f"a warm-up of {warmup:g} and a decay of {tail:g} {unit} in a {what} of {total:g}"
            yield Contradiction((*path, "decay"), message)


def _best(recipe: Recipe) -> Iterator[Contradiction]:
    best = recipe.checkpoint.keep_best if recipe.checkpoint else None
    patience = recipe.stop.patience if recipe.stop else None
    followed: list[tuple[Path_, Any]] = [(("checkpoint", "keep_best"), best), (("stop", "patience"), patience)]
    followed += [found for found in _parts(recipe.schedule, ("schedule",)) if isinstance(found[1], FollowsScore)]
    for path, chosen in followed:
        if chosen is None or recipe.data is None:
            continue
        name, slash, metric = chosen.metric.partition("/")
        if not slash or not metric or name not in recipe.data.validation:
            sets = ", ".join(recipe.data.validation) or "none"
            yield Contradiction((*path, "metric"), f"is SET/METRIC with a validation set of this recipe: {sets}")


def stream_contradictions(recipe: Recipe, streams: Collection[Path_]) -> Iterator[Contradiction]:
    """What the recipe asks for and the sources at these paths cannot give, which are streams."""
    for path in streams:
        if path[1] != "train":
            if recipe.evaluate.budget is None:
                message = "a stream, of which nobody knows the length: evaluate.budget says how many samples are scored"
                yield Contradiction(path, message)
            continue
        what = f"{dotted(path)} is a stream"
        for at, amount in amounts(recipe):
            if amount.epochs is not None:
                yield Contradiction((*at, "epochs"), f"{what}, of which nobody knows the length; use steps or samples")
        if recipe.data.train.workers:
            message = f"{what}, which one process reads in its order; with `thread_safe = True` it is read ahead"
            yield Contradiction(("data", "train", "workers"), message)
        if recipe.data.train.buckets:
            yield Contradiction(("data", "train", "buckets"), f"{what}, whose samples have an order of their own")
        if recipe.guard.recompute and recipe.launch.processes > 1:
            message = f"{what}, and no process can read again what another one has read"
            yield Contradiction(("guard", "recompute"), message)


def amounts(recipe: Recipe) -> Iterator[tuple[Path_, Amount]]:
    """Every amount of a recipe with its path."""
    for path, part in _parts(recipe, ()):
        if isinstance(part, Amount):
            yield path, part


def _parts(value: Any, path: Path_) -> Iterator[tuple[Path_, Any]]:
    """Every settings object inside a value, with its path: schedules, groups, amounts."""
    if is_dataclass(value):
        yield path, value
        for field in fields(value):
            yield from _parts(getattr(value, field.name), (*path, key_of(field.name)))
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _parts(part, (*path, key))
    elif isinstance(value, tuple):
        for place, part in enumerate(value):
            yield from _parts(part, (*path, place))


def _divisors(number: int) -> str:
    """The smallest numbers that divide a number, in words; there are no more than 1024 lanes or processes."""
    found: list[str] = []
    for candidate in range(1, min(number, 1024) + 1):
        if number % candidate == 0:
            found.append(str(candidate))
    if len(found) > 12:
        found[12:] = ["..."]
    return ", ".join(found)


def shown(value: Any) -> str:
    """A value in a message, cut where it is long."""
    return shortened(repr(value), 60)
