"""What a recipe names, built: its inputs, its task, its networks."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from drivetrain.checkpoint.initial import freeze
from drivetrain.checkpoint.recipe import each_init
from drivetrain.data.buckets import ONE_BATCH, reading_order
from drivetrain.data.costs import cost_batches
from drivetrain.data.geometry import choose_lanes
from drivetrain.data.opening import open_source
from drivetrain.data.source import ENDLESS, Source
from drivetrain.data.stream import StreamSource
from drivetrain.engine.activations import recompute_activations
from drivetrain.engine.average import Averages
from drivetrain.engine.compiled import compile_blocks, compile_network
from drivetrain.engine.cuttable import require_apart
from drivetrain.engine.drawing import INITIAL_WEIGHTS, draw, fill_buffers
from drivetrain.engine.engine import Engine
from drivetrain.engine.exact import require_lanes_apart
from drivetrain.engine.execution import Execution
from drivetrain.engine.kernels import replace_modules
from drivetrain.engine.memory import to_empty
from drivetrain.engine.narrow import masters_of, narrow, widen_gradients
from drivetrain.engine.parallel_plan import derived
from drivetrain.engine.placement import Placement, placed
from drivetrain.engine.recipe import Average, Network, scale_of
from drivetrain.engine.recompute import require_alone
from drivetrain.engine.scaler import Scaler
from drivetrain.engine.tables.build import build_tables, draw_tables, moved_alone, movers_of
from drivetrain.engine.tables.tables import Tables
from drivetrain.loop.evaluation import Evaluator, ShownSamples, ValidationSet
from drivetrain.loop.lane_metrics import MetricSets
from drivetrain.loop.metric_states import holds_states
from drivetrain.loop.metrics import LossMeans
from drivetrain.loop.task import Part, Task
from drivetrain.loop.tuning import row_rates_of, still_of
from drivetrain.optim.masters import Masters
from drivetrain.optim.network_optimizer import NetworkOptimizer
from drivetrain.optim.recipe import Optimizer, OwnOptimizer
from drivetrain.optim.rows import HalfRows, Stretches
from drivetrain.optim.schedules import Horizon
from drivetrain.runtime.group import Group
from drivetrain.runtime.heartbeat import Heartbeat
from drivetrain.runtime.mesh import Mesh
from drivetrain.runtime.mistakes import returned
from drivetrain.runtime.mix import mix
from drivetrain.runtime.seeds import seed_generators
from drivetrain.spec.amount import Scale
from drivetrain.spec.check import source_names, stream_contradictions
from drivetrain.spec.components import FollowsScore
from drivetrain.spec.custom import Custom, build_custom
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.recipe import Activations, Recipe
from drivetrain.spec.registry import imported
from drivetrain.spec.text import printable, shortened
from drivetrain.spec.tree import Path_, dotted

_NETWORK_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True)
class Inputs:
    """Everything that a run reads, opened."""

    train: Mapping[str, Source]
    validation: Mapping[str, Source]
    test: Mapping[str, Source]

    @property
    def notes(self) -> list[str]:
        """What sources have left out, by place in the recipe."""
        found = []
        for place, source in self._placed.items():
            for note in getattr(source, "notes", ()):
                found.append(f"{place}: {note}")
        return found

    @property
    def digests(self) -> dict[str, str]:
        """Content digests by place in the recipe."""
        return {place: source.fingerprint for place, source in self._placed.items()}

    @property
    def _placed(self) -> dict[str, Source]:
        """Every source by its place in the recipe."""
        placed = {}
        for number, source in enumerate(self.train.values()):
            placed[f"data.train.sources[{number}]"] = source
        for name, source in self.validation.items():
            placed[f"data.validation.{name}"] = source
        for name, source in self.test.items():
            placed[f"data.test.{name}"] = source
        return placed

    def sets(self, recipe: Recipe, lanes: int, most: int | None = None) -> dict[str, list[ValidationSet]]:
        """The validation and test sets, cut as evaluation wants them, or at most so many samples of each.

        `lanes` are those of `ValidationSet`.
        """
        batch = evaluation_batch(recipe, lanes)
        sets = {}
        for part, sources in (("validation", self.validation), ("test", self.test)):
            sets[part] = [ValidationSet(name, source, batch, most, lanes) for name, source in sources.items()]
        return sets

    def finals(self, recipe: Recipe, lanes: int) -> dict[str, list[ValidationSet]]:
        """What is scored once the run is done: test sets, and validation sets that evaluations score in part."""
        sets, most = self.sets(recipe, lanes), most_scored(recipe)
        if most is None or not recipe.evaluate.full_at_end:
            return {"test": sets["test"]}
        in_part = [each for each in sets["validation"] if each.size > most]
        return {"validation": in_part, "test": sets["test"]}


def open_inputs(recipe: Recipe, run: Path, task: Task, *, by_text: bool = False) -> Inputs:
    """Open training, validation and test sources and let the task prepare them; content digests of files are kept in
    the run directory. `by_text` as in `open_source`.

    Raises Failure(78) where the recipe, or the task, asks for what a stream cannot give.
    """
    cache, data = run / "sources.json", recipe.data
    named = dict(zip(source_names(data.train.sources), data.train.sources, strict=True))
    parts: tuple[tuple[Part, Mapping[str, Any]], ...] = (
        ("train", named),
        ("validation", data.validation),
        ("test", data.test),
    )
    opened: dict[str, dict[str, Source]] = {part: {} for part, _ in parts}
    for part, sources in parts:
        by_length = part == "train" and data.train.buckets is not None
        for place, (name, settings) in enumerate(sources.items()):
            path = ("data", "train", "sources", place) if part == "train" else ("data", part, name)
            source = open_source(settings, recipe.seed, cache, by_text=by_text)
            if isinstance(source, StreamSource):
                source = _streamed(source, recipe, task, path)
            source = task.prepare(source, part, by_length=by_length)
            # A task of the user's own may have wrapped a stream: that shows only here.
            if part == "train" and len(source) >= ENDLESS and not isinstance(source, StreamSource):
                raise _looked_up(path)
            opened[part][name] = source
    return Inputs(**opened)


def _streamed(stream: StreamSource, recipe: Recipe, task: Task, path: Path_) -> Source:
    """A stream as it is trained on or, to score it, its first samples: kept in memory, so that each evaluation scores
    the same ones."""
    # A task that encodes rows as they are read needs no numbers.
    looks_up = not isinstance(recipe.task, Custom) and type(task).prepare is not Task.prepare
    if looks_up and not hasattr(stream, "encoded"):
        raise _looked_up(path)
    for wrong in stream_contradictions(recipe, [path]):
        raise Failure(Exit.BAD_RECIPE, f"{dotted(wrong.path)}: {wrong.message}", "mend the recipe")
    if path[1] == "train":
        return stream
    most = most_scored(recipe)
    assert most is not None, "the recipe has a budget for evaluations"
    return stream.first_samples(most)


def _looked_up(path: Path_) -> Failure:
    cause = f"{dotted(path)}: it is a stream, and this task looks samples up by their numbers"
    return Failure(Exit.BAD_RECIPE, cause, "give a source that has a length")


def digests_beside(old: Mapping[str, str], inputs: Inputs, recipe: Recipe, run: Path, task: Task) -> dict[str, str]:
    """The inputs' digests, to be held beside those that a run had before: made as older versions did, where these are
    the ones it had."""
    digests = inputs.digests
    if all(old.get(place, digest) == digest for place, digest in digests.items()):
        return digests
    before = open_inputs(recipe, run, task, by_text=True).digests
    return digests | {place: digest for place, digest in before.items() if digest == old.get(place)}


def most_scored(recipe: Recipe) -> int | None:
    """How many samples of each set an evaluation scores at most; None: all."""
    return recipe.evaluate.most(_tokens_per_sample(recipe))


def evaluation_batch(recipe: Recipe, lanes: int) -> int:
    """How many samples are scored at a time."""
    return recipe.evaluate.batch or recipe.batch.micro or max(1, recipe.batch.size // lanes)


def first_lanes(recipe: Recipe, world: int) -> int:
    """The recipe's lanes; `auto` are those that fit so many processes at the first start. Raises as `choose_lanes`."""
    if recipe.lanes != "auto":
        return recipe.lanes
    batch, exact = recipe.batch, recipe.exact
    whole = batch.micro if exact and batch.micro else 1  # samples that stay together
    return choose_lanes(math.gcd(*batch.sizes) // whole, world, apart=exact)


def run_scale(recipe: Recipe, sources: Mapping[str, Source], lanes: int) -> Scale:
    """What steps, tokens and epochs of a run are in samples, where it trains on these sources. Raises as `scale_of` and
    `cost_batches`."""
    batch = recipe.batch
    scale = scale_of(batch, _tokens_per_sample(recipe), sum(map(len, sources.values())))
    if batch.cost is None:
        return scale
    _, order = reading_order(recipe.data.train, sources, recipe.seed, replace(scale, batches=ONE_BATCH), 1)
    return replace(scale, batches=cost_batches(batch.size, batch.cost, lanes, sources, order))


def _tokens_per_sample(recipe: Recipe) -> int | None:
    """None for a task that reads no tokens, or not as many in each sample."""
    return getattr(recipe.task, "tokens_per_sample", None)


def only_training(recipe: Recipe) -> Recipe:
    """The recipe without its validation and test sets."""
    return replace(recipe, data=replace(recipe.data, validation={}, test={}))


def build_task(recipe: Recipe) -> Task:
    """The recipe's task: a shipped one from its settings, a user's own from its arguments."""
    if isinstance(recipe.task, Custom):
        return build_custom(recipe.task)
    return imported(recipe.task.factory)(recipe.task)


def require_metrics(recipe: Recipe, task: Task) -> None:
    """Raises Failure(78) where the recipe decides by a metric that the task does not have, or has metrics that the task
    feeds nothing, and what `MetricSets.fresh` raises. What is called by what was computed, such as losses, is not known
    yet."""
    if recipe.evaluate.metrics and type(task).evaluate is Task.evaluate:
        names = ", ".join(f"evaluate.metrics.{name}" for name in recipe.evaluate.metrics)
        cause = f"the task {type(task).__name__} has no evaluate, which {names} would be fed by"
        raise Failure(Exit.BAD_RECIPE, cause, "write one that returns the arguments of `update`, as a tuple")
    MetricSets(task, recipe.evaluate.metrics).fresh(torch.device("cpu"))
    if _named_late(recipe, task):
        return
    there = task.metrics()
    for place, chosen in deciding_metrics(recipe).items():
        _require_metric(place, chosen, there)


def require_scores(recipe: Recipe, task: Task, evaluator: Evaluator, sets: Sequence[ValidationSet]) -> None:
    """The same where metrics are called by what was computed: a few samples are scored for it, as they are where the
    recipe has metrics, which the task has to feed. Every rank calls it."""
    deciding = deciding_metrics(recipe)
    if not _named_late(recipe, task) or not (deciding or recipe.evaluate.metrics):
        return
    by_name = {each.name: each for each in sets}
    there = {name: evaluator.metrics_of(each) for name, each in by_name.items()}
    for place, chosen in deciding.items():
        # Nothing, where its first samples have no loss: then the first evaluation tells.
        if found := there[chosen.partition("/")[0]]:
            _require_metric(place, chosen, found)


def _named_late(recipe: Recipe, task: Task) -> bool:
    """Whether what metrics are called shows only once they are computed: losses, and numbers of one metric by name."""
    made = task.metrics()
    return bool(recipe.evaluate.metrics) or isinstance(made, LossMeans) or any(map(holds_states, made.values()))


def shown_samples(recipe: Recipe, task: Task, inputs: Inputs, lanes: int) -> ShownSamples | None:
    """The first samples of the first validation set or, where there is none, of the first training source without those
    in quarantine. None where the task shows nothing."""
    if type(task).show is Task.show:
        return None
    sets = inputs.sets(recipe, lanes, most_scored(recipe))
    count = evaluation_batch(recipe, lanes) if task.shown is None else task.shown
    if sets["validation"]:
        first = sets["validation"][0]
        return ShownSamples(first.source, np.arange(min(count, first.size), dtype=np.int64))
    source = next(iter(inputs.train.values()))
    if isinstance(source, StreamSource):  # read where training reads, it would begin again each time
        source = source.first_samples(count + len(recipe.guard.quarantine))
    ids = np.setdiff1d(np.arange(min(count + len(recipe.guard.quarantine), len(source))), recipe.guard.quarantine)
    return ShownSamples(source, ids[:count].astype(np.int64))


def deciding_metrics(recipe: Recipe) -> dict[str, str]:
    """SET/METRIC by which something is decided, by its place in the recipe."""
    chosen = {"checkpoint.keep_best": recipe.checkpoint.keep_best, "stop.patience": recipe.stop.patience}
    by_network = recipe.schedule if isinstance(recipe.schedule, Mapping) else {"": recipe.schedule}
    for network, schedule in by_network.items():
        chosen[f"schedule.{network}".rstrip(".")] = schedule
    return {place: settings.metric for place, settings in chosen.items() if isinstance(settings, FollowsScore)}


def _require_metric(place: str, chosen: str, there: Collection[str]) -> None:
    name = chosen.partition("/")[2]
    if name not in there:
        cause = f"{place}.metric: the task has no metric {name!r}"
        raise Failure(Exit.BAD_RECIPE, cause, f"there are {', '.join(there) or 'none'}")


def require_loss(recipe: Recipe, task: Task) -> None:
    """Raises Failure(78) where a step, or the sets to score, need a loss and the task has none."""
    kind = type(task)
    if kind.loss is not Task.loss or kind.loss_from is not Task.loss_from:
        return
    if kind.update is Task.update:
        raise Failure(Exit.BAD_RECIPE, f"the task {kind.__name__} has no loss", "write one, or an update without it")
    if (recipe.data.validation or recipe.data.test) and kind.evaluate is Task.evaluate:
        cause = f"the task {kind.__name__} has no evaluate, and no loss, by which validation and test sets are scored"
        raise Failure(Exit.BAD_RECIPE, cause, "write one of them, or take the sets out")


def require_split(recipe: Recipe, task: Task, networks: Mapping[str, nn.Module]) -> None:
    """Raises Failure(78) where stages of a network cannot lie between the two parts of the task's loss."""
    kind = type(task)
    missing = [name for name in ("inputs", "loss_from") if getattr(kind, name) is getattr(Task, name)]
    if missing:
        cause = f"parallel.pipeline: the task {kind.__name__} has no {' and no '.join(missing)}"
        hint = "write inputs(batch) and loss_from(output, batch) in place of loss; or use shard or tensor"
        raise Failure(Exit.BAD_RECIPE, cause, hint)
    if _writer(kind, "loss") is not Task and not issubclass(_writer(kind, "loss_from"), _writer(kind, "loss")):
        cause = f"parallel.pipeline: {_writer(kind, 'loss').__name__} has a loss that is not made of its loss_from"
        raise Failure(Exit.BAD_RECIPE, cause, "write loss_from in place of loss; or use shard or tensor")
    if len(networks) > 1:
        cause = f"parallel.pipeline: stages are of one network, and the task has {', '.join(networks)}"
        raise Failure(Exit.BAD_RECIPE, cause, "use shard or tensor")
    if any(isinstance(optimizer, OwnOptimizer) for optimizer in _optimizers(recipe)):
        cause = "parallel.pipeline: an optimizer of your own keeps what each stage would have of its own"
        raise Failure(Exit.BAD_RECIPE, cause, "choose a shipped optimizer; or use shard or tensor")


def _require_cuttable(recipe: Recipe, task: Task, networks: Mapping[str, nn.Module], mesh: Mesh) -> None:
    """Raises Failure(78) where networks were to lie on stages, or samples to be cut by positions, and the task has not
    what that takes."""
    if mesh.sizes.pipeline > 1:
        require_split(recipe, task, networks)
    if mesh.sizes.context > 1 and len(networks) > 1:
        cause = f"parallel.context: samples are cut for one network, and the task has {', '.join(networks)}"
        raise Failure(Exit.BAD_RECIPE, cause, "use shard")


def _writer(kind: type, method: str) -> type:
    """The class that has written a method."""
    return next(each for each in kind.__mro__ if method in vars(each))


def build_networks(task: Task, recipe: Recipe, device: torch.device, *, drawn: bool = True) -> dict[str, nn.Module]:
    """The task's networks on the device of a process that holds everything and trains nothing: its tables are our own,
    whoever moves them in training. `drawn`, and what it raises, as for `build_on_mesh`."""
    at_rest = replace(recipe, embeddings=replace(recipe.embeddings, backend="own"))
    return dict(build_on_mesh(task, at_rest, Mesh(Group(), device=device), drawn=drawn).networks)


class BuiltNetworks(NamedTuple):
    """A task's networks, and what this rank holds of them."""

    networks: dict[str, nn.Module]
    placement: Placement


def build_on_mesh(task: Task, recipe: Recipe, mesh: Mesh, *, drawn: bool = True) -> BuiltNetworks:
    """The task's networks, laid out over the mesh, their initial weights drawn from the recipe's seed. Every rank calls
    it. Without `drawn`, networks whose tensors are filled one by one wait for those of a commit.

    Raises Failure(78) where a network's name is no identifier, where a plan does not fit its network or the mesh, 70
    where the task gives no networks with parameters.
    """
    # Drawn on the CPU whatever the device is: the same seed is the same weights everywhere.
    seed_generators(torch.device("cpu"), mix(recipe.seed, INITIAL_WEIGHTS))
    with torch.device("meta") if task.build_on_meta else nullcontext():
        networks = dict(_made_networks(task))
    if not mesh.replicated:
        require_apart(networks)
        _stop_frozen(recipe, networks)
    _choose_kernels(recipe, networks)
    _require_cuttable(recipe, task, networks, mesh)
    tables = _tables_of(task, recipe, networks, mesh, drawn=drawn)
    for name, network in networks.items():
        if not _NETWORK_NAME.fullmatch(name):
            raise Failure(Exit.BAD_RECIPE, f"the task names a network {name!r}", "use letters, digits and _")
        if recipe.parameters.dtype == "bf16":
            narrow(network)
        _prepare(task, recipe, name, network, mesh)
        _give_memory(network, mesh.device, built_on_meta=task.build_on_meta)
        network.train()
        if not mesh.replicated:
            _settle(network)
        if recipe.parameters.dtype == "bf16":
            widen_gradients(network, sharded=not mesh.replicated and mesh.sizes.summed > 1)
        if recipe.compiled and recipe.compiled.scope == "network":
            compile_network(network, recipe.compiled)
    placement = placed(networks, mesh, tables)
    if task.build_on_meta and drawn:
        draw(networks, placement, recipe.seed)
    elif task.build_on_meta:
        fill_buffers(networks, recipe.seed)
    return BuiltNetworks(networks, placement)


def _choose_kernels(recipe: Recipe, networks: Mapping[str, nn.Module]) -> None:
    """What computes the networks' modules, and how the compiler chooses among what it may make."""
    if recipe.compile:
        # Also a switch of the compiler, which then takes no kernel that differs from run to run.
        torch.use_deterministic_algorithms(True, warn_only=True)
    if recipe.kernels:
        replace_modules(networks, recipe.kernels)


def _give_memory(network: nn.Module, device: torch.device, *, built_on_meta: bool) -> None:
    """Have a network lie on a device. One that lies there is left alone: fake tensors cannot be moved."""
    if built_on_meta:
        to_empty(network, device)
    elif any(tensor.device != device for tensor in chain(network.parameters(), network.buffers())):
        network.to(device)


def _tables_of(
    task: Task, recipe: Recipe, networks: Mapping[str, nn.Module], mesh: Mesh, *, drawn: bool
) -> Tables | None:
    """The networks' tables, shared out. Raises Failure(78) where they are to do what tables cannot."""
    dtype = torch.bfloat16 if recipe.parameters.dtype == "bf16" else torch.float32
    tables = build_tables(networks, recipe.embeddings, mesh.data, recipe.seed, dtype, exact=recipe.exact)
    if tables:
        _require_plain(recipe, mesh, built_on_meta=task.build_on_meta)
        if drawn:
            draw_tables(tables, recipe.seed)
    return tables


def _require_plain(recipe: Recipe, mesh: Mesh, *, built_on_meta: bool) -> None:
    micro = [name for name, own in recipe.networks.items() if own.micro is not None]
    layerwise = [optimizer for optimizer in _optimizers(recipe) if optimizer.layerwise]
    refused = {
        "guard.recompute": recipe.guard.recompute is not None,
        "statistics.gradients": recipe.statistics is not None and recipe.statistics.gradients,
        f"parallel {mesh.sizes}": mesh.sizes.data != mesh.group.world,
        f"device {mesh.device.type}": mesh.device.type != "cpu",
        "build_on_meta": built_on_meta,
        "a network with a micro of its own": bool(micro),
        "optimizer.layerwise": bool(layerwise),
    }
    for what, asked in refused.items():
        if asked:
            cause = f"{what} does not go with embedding tables"
            raise Failure(Exit.BAD_RECIPE, cause, "leave it out, or use torch's nn.Embedding, which is like any layer")


def _optimizers(recipe: Recipe) -> list[Optimizer]:
    return list(recipe.optimizer.values()) if isinstance(recipe.optimizer, Mapping) else [recipe.optimizer]


def with_rows(
    recipe: Recipe, optimizers: Mapping[str, NetworkOptimizer], placement: Placement, horizon: Horizon
) -> dict[str, NetworkOptimizer]:
    """The networks' optimizers with what moves the rows of their tables."""
    tables, found = placement.tables, dict(optimizers)
    if tables is None:
        return found
    for name, optimizer in optimizers.items():
        movers = movers_of(tables, name, row_rates_of(recipe, name, horizon), partial(_half_rows, recipe))
        tables.move_by(name, movers)
        found[name] = replace(optimizer, rows=movers)
    return found


def _half_rows(recipe: Recipe, stretches: Stretches) -> HalfRows | None:
    """How these rows are moved where they are bf16; None where they are not."""
    kept = recipe.parameters
    if kept.dtype != "bf16":
        return None
    return HalfRows(kept.master == "fp32", recipe.seed, stretches if kept.rounding == "stochastic" else None)


def masters_for(recipe: Recipe, networks: Mapping[str, nn.Module], placement: Placement) -> Masters | None:
    """What optimizers move in place of bf16 weights; None where they move these themselves."""
    settings = recipe.parameters
    if settings.dtype != "bf16":
        return None
    lasting, stochastic = settings.master == "fp32", settings.rounding == "stochastic"
    return masters_of(networks, placement, recipe.seed, lasting=lasting, stochastic=stochastic)


def _settle(network: nn.Module) -> None:
    from drivetrain.engine.layout import settle

    settle(network)


def _prepare(task: Task, recipe: Recipe, name: str, network: nn.Module, mesh: Mesh) -> None:
    """Lay a network out over the mesh, and choose what is compiled of it, and the activations that it keeps: what has
    to be done layer by layer."""
    activations, how = activations_of(recipe, name), recipe.compiled
    if how is not None and how.scope == "network":
        how = None  # of the whole one there are no parts to see to
    if mesh.replicated and activations == "keep" and how is None:
        return
    plan = task.parallel_plan(name, network) or derived(network)

    def by_parts() -> None:
        compiled = compile_blocks(name, network, plan.units, how) if how else ()
        recompute_activations(name, network, activations, plan.units, mesh.device, compiled)

    if mesh.replicated:
        by_parts()
        return
    from drivetrain.engine.layout import lay_out  # torch's engines take a second to import

    lay_out(name, network, plan, mesh, sequence=recipe.parallel.sequence, between=by_parts)


def activations_of(recipe: Recipe, network: str) -> Activations:
    """Which of a network's activations are kept: what the recipe says of it, else of all."""
    own = recipe.networks.get(network)
    return recipe.activations if own is None or own.activations is None else own.activations


def _made_networks(task: Task) -> Mapping[str, nn.Module]:
    made = task.networks()
    if not isinstance(made, Mapping) or not all(isinstance(network, nn.Module) for network in made.values()):
        cause = f"the task's networks gives {shortened(printable(repr(made)), 80)}"
        raise returned(task.networks, cause, "return a dict of nn.Module objects by name")
    if not any(list(network.parameters()) for network in made.values()):
        cause = f"the task's networks gives {', '.join(made) or 'none'}: there is no parameter that could train"
        raise returned(task.networks, cause, "return networks that have some")
    return made


def _stop_frozen(recipe: Recipe, networks: Mapping[str, nn.Module]) -> None:
    """Take out of training what the recipe freezes before it is cut: what does not train may be of any type, and needs
    no word in a plan."""
    for settings in each_init(recipe.init):
        freeze(settings, networks)
    for name, network in networks.items():
        if name in recipe.networks and recipe.networks[name].freeze:
            network.requires_grad_(False)


def freeze_networks(recipe: Recipe, networks: Mapping[str, nn.Module], tables: Tables | None = None) -> None:
    """Take networks that the recipe freezes out of training. One of which nothing trains is in evaluation mode for
    good, so that its running statistics stay, too.

    Raises Failure(78) where the recipe names a network that the task does not have.
    """
    if strange := sorted(recipe.networks.keys() - networks.keys()):
        raise Failure(Exit.BAD_RECIPE, f"networks: the task has none called {strange[0]!r}", _there(networks))
    for name, own in recipe.networks.items():
        if own.freeze:
            networks[name].requires_grad_(False)
    alone = moved_alone(networks, tables, still_of(recipe, networks))
    trains = bool(alone)
    for name, network in networks.items():
        asked = [parameter.requires_grad or name in alone for parameter in network.parameters()]
        trains = trains or any(asked)
        if asked and not any(asked):
            network.eval()
    if not trains:
        raise Failure(Exit.BAD_RECIPE, "no network has a parameter that trains", "freeze less")


def averages_of(recipe: Recipe, networks: Iterable[str]) -> dict[str, Average]:
    """The settings of each network's moving average, where it has one."""
    found = {}
    for name in networks:
        settings = recipe.average
        if name in recipe.networks:
            settings = recipe.networks[name].average or settings
        if settings:
            found[name] = settings
    return found


def _there(networks: Iterable[str]) -> str:
    return f"there are {', '.join(networks)}"


def execution_of(recipe: Recipe, placement: Placement, device: torch.device, lanes: int) -> Execution:
    """How the recipe wants its networks computed. Scaled losses overflow now and then, so such steps are left out."""
    return Execution(
        placement=placement,
        device=device,
        precision=recipe.precision,
        seed=recipe.seed,
        exact=lanes if recipe.exact else None,
        skips=recipe.guard.skips or _has_half(recipe),
        network_settings=defaultdict(Network, recipe.networks),
        schedule=recipe.parallel.pipeline_schedule,
        sums_in_parts=recipe.parallel.accumulate == "parts",
    )


def _has_half(recipe: Recipe) -> bool:
    """Whether any network computes in half precision, whose gradients need a scaled loss."""
    return "fp16" in (recipe.precision, *(own.precision for own in recipe.networks.values()))


def build_engine(
    recipe: Recipe,
    networks: Mapping[str, nn.Module],
    network_optimizers: Mapping[str, NetworkOptimizer],
    execution: Execution,
    heartbeat: Heartbeat | None = None,
) -> Engine:
    """The engine as the recipe wants it; averages begin at the weights as they are.

    Raises Failure(78) where exact mode, or a check of gradients, is not for these networks or this device.
    """
    if recipe.exact:
        require_lanes_apart(networks, execution.device)
    if recipe.guard.recompute:
        require_alone(networks)
    averages, scaler = None, None
    averaged = averages_of(recipe, networks)
    if averaged:
        masters = execution.placement.masters
        averages = Averages(averaged, networks, execution.placement.here, masters.moved if masters else {})
    if _has_half(recipe):
        scaler = Scaler(recipe.scaling, execution.device)
    return Engine(
        networks,
        network_optimizers,
        execution,
        heartbeat,
        scaler=scaler,
        averages=averages,
    )
