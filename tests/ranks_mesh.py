"""Ranks on a mesh, around the shipped decoder: steps, their numbers, and what commits are made of."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from drivetrain.checkpoint.commits import Committer, newest
from drivetrain.checkpoint.retention import Retention
from drivetrain.checkpoint.state import restore
from drivetrain.data.batch_reader import MicroBatch
from drivetrain.engine.activations import recompute_activations
from drivetrain.engine.average import Averages
from drivetrain.engine.compiled import compile_blocks
from drivetrain.engine.cut import cut
from drivetrain.engine.engine import Engine, MinimizeInputs
from drivetrain.engine.execution import Execution
from drivetrain.engine.layout import lay_out
from drivetrain.engine.narrow import masters_of, narrow, widen_gradients
from drivetrain.engine.parallel_plan import derived
from drivetrain.engine.placement import placed
from drivetrain.engine.recipe import Average, Parameters, Scaling
from drivetrain.engine.scaler import Scaler
from drivetrain.loop.guard import Guard
from drivetrain.loop.progress import Progress
from drivetrain.loop.recipe import Guard as GuardSettings
from drivetrain.loop.state import RunState, StateValues
from drivetrain.optim.network_optimizer import build_network_optimizers
from drivetrain.optim.recipe import Constant, Optimizer
from drivetrain.optim.schedules import Horizon
from drivetrain.runtime.group import Group
from drivetrain.runtime.mesh import Mesh
from drivetrain.spec.amount import Scale
from drivetrain.spec.batches import Batches
from drivetrain.spec.exits import Failure
from drivetrain.spec.mesh import MeshSizes
from drivetrain.spec.recipe import Compile
from drivetrain.spec.registry import KINDS, imported
from drivetrain.tasks.language_model.llama import Llama, plan_of
from drivetrain.tasks.language_model.recipe import Experts, LanguageModel
from drivetrain.tasks.language_model.recipe import Llama as Settings
from drivetrain.tasks.language_model.task import LanguageModelTask
from ranks import end, joined, leave

LANES, CONTEXT, VOCABULARY = 4, 16, 41


@dataclass(frozen=True)
class Case:
    """What is trained, of what, for how long."""

    tied: bool = True
    dropout: float = 0.0
    dtype: str = "float32"
    clip: float = 1.0
    steps: int = 20
    average: bool = False
    evaluated: bool = True
    """Whether averages are, after each step."""
    ragged: bool = False
    """Whether the last step has two samples only, so that most ranks have none."""
    optimizer: Mapping[str, Any] = field(default_factory=lambda: {"kind": "adamw", "lr": 3e-3})
    wide: bool = False
    """Whether matrices are large enough to be quantized, and shared evenly."""
    activations: str | Mapping[str, str] = "keep"
    parameters: Mapping[str, str] | None = None
    """What the weights are kept as, where that is not fp32."""
    poisoned: int | None = None
    """The step in which the third lane's loss is not finite."""
    in_last_row: bool = False
    """Whether it is the gradient that is not, and only that of the last row of the table of tokens."""
    precision: str = "fp32"
    """Of forward and backward passes; with fp16 the loss scale is too large at the start, and grows again."""
    sequence: bool = True
    kv_heads: int = 2
    depth: int = 2
    schedule: str = "1f1b"
    """Of the stages, where there are some."""
    experts: Mapping[str, Any] | None = None
    chunk: int | None = None
    """Positions whose logits are there at a time."""
    compiled: bool = False
    in_parts: bool = False
    """Whether gradients are summed over ranks after each micro-batch."""
    documents: bool = True
    """Whether a sample has several, which do not see each other."""
    uneven: bool = False
    """Whether the last lanes have almost nothing to predict, and samples are missing from one."""


@dataclass
class Told:
    """What became of it; tensors by name are whole."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    whys: list[str] = field(default_factory=list)
    scales: list[float | None] = field(default_factory=list)
    scores: list[list[float]] = field(default_factory=list)
    """By step, the loss of averages that are evaluated, and that of the weights themselves."""
    guilty: list[list] = field(default_factory=list)
    """By rank, the samples of the micro-batches that are not finite by themselves."""
    gradients: dict[str, list] = field(default_factory=dict)
    weights: dict[str, list] = field(default_factory=dict)
    averages: dict[str, list] = field(default_factory=dict)


def mesh_of(group: Group, sizes: Mapping[str, int]) -> Mesh:
    """The mesh of these sizes, `virtual_stages` among them, and whether they are `folded`."""
    sizes = dict(sizes)
    stages = {name: sizes.pop(name) for name in ("virtual_stages", "folded") if name in sizes}
    return Mesh(group, MeshSizes(**sizes), **stages)


def network(case: Case) -> Llama:
    torch.manual_seed(0)
    settings = Settings(
        vocabulary=64 if case.wide else VOCABULARY,
        width=128 if case.wide else 32,
        depth=case.depth,
        heads=4,
        kv_heads=case.kv_heads,
        hidden=128 if case.wide else 48,
        context=CONTEXT,
        tied=case.tied,
        dropout=case.dropout,
        experts=TypeAdapter(Experts).validate_python(case.experts) if case.experts else None,
    )
    model = Llama(settings)
    model.head.chunk = case.chunk or "auto"
    return model.to(getattr(torch, case.dtype)).train()


def lanes(step: int) -> list[MicroBatch]:
    """The four micro-batches of a step, two samples each; some positions have no target."""
    rng = np.random.default_rng(step)
    found = []
    for lane in range(LANES):
        windows = torch.from_numpy(rng.integers(0, VOCABULARY, (2, CONTEXT + 1)))
        targets = torch.where(torch.from_numpy(rng.random((2, CONTEXT)) < 0.3), -100, windows[:, 1:])
        documents = torch.from_numpy(rng.random((2, CONTEXT)) < 0.15).long().cumsum(1)
        batch = {"tokens": windows[:, :-1], "targets": targets, "documents": documents}
        batch["left_out"] = (targets == -100).sum(1)
        start = 2 * lane + 8 * step
        found.append(MicroBatch(batch, 2, start, lane, 0, np.arange(start, start + 2)))
    return found


def engine_of(mesh: Mesh, case: Case) -> Engine:
    networks = {"model": network(case)}
    if case.parameters:
        narrow(networks["model"])
    plan = plan_of(networks["model"].settings)

    def by_parts() -> None:
        made = compile_blocks("model", networks["model"], plan.units, Compile()) if case.compiled else ()
        recompute_activations("model", networks["model"], case.activations, plan.units, torch.device("cpu"), made)

    if mesh.replicated:
        by_parts()
    lay_out("model", networks["model"], plan, mesh, sequence=case.sequence, between=by_parts)
    kept = TypeAdapter(Parameters).validate_python(case.parameters or {})
    if case.parameters:
        widen_gradients(networks["model"], sharded=not mesh.replicated and mesh.sizes.summed > 1)
    placement = placed(networks, mesh)
    if case.parameters:
        lasting, stochastic = kept.master == "fp32", kept.rounding == "stochastic"
        masters = masters_of(networks, placement, 7, lasting=lasting, stochastic=stochastic)
        placement = replace(placement, masters=masters)
    built = build_network_optimizers(
        networks, optimizer_of(case), Constant(), Horizon(8000, Scale(Batches(8))), parts=placement.parts
    )
    built = {name: replace(each, masters=placement.masters) for name, each in built.items()}
    placement = placement.knowing({name: each.optimizer for name, each in built.items()})
    averages = None
    if case.average:
        moved = placement.masters.moved if placement.masters else {}
        averages = Averages({"model": Average(decay=0.5)}, networks, placement.here, moved)
    half = case.precision == "fp16"
    scaler = Scaler(Scaling(start=2.0**22, window=3), torch.device("cpu")) if half else None
    precision = "bf16" if case.parameters else case.precision
    skips = half or case.poisoned is not None
    execution = Execution(
        placement,
        torch.device("cpu"),
        precision,
        7,
        skips=skips,
        schedule=case.schedule,
        sums_in_parts=case.in_parts,
    )
    return Engine(networks, built, execution, scaler=scaler, averages=averages)


def optimizer_of(case: Case) -> Optimizer:
    """Its settings, as a recipe gives them."""
    kind = imported(KINDS["optimizer"][case.optimizer["kind"]])
    return TypeAdapter(kind).validate_python({**case.optimizer, "clip": case.clip})


def work_of(mesh: Mesh, step: int, case: Case) -> MinimizeInputs:
    """This rank's share of a step. Where the step is ragged, ranks without samples make passes of no weight."""
    every = [shortened(micro) for micro in lanes(step)] if case.uneven else lanes(step)
    if not case.documents:
        for micro in every:
            del micro.batch["documents"]
    there = every[:1] if case.ragged and step == case.steps else every
    own = LANES // mesh.data.world
    mine = [micro for micro in there if micro.lane // own == mesh.data.rank]
    tokens = sum(int((micro.batch["targets"] != -100).sum()) for micro in there)
    spares: list[MicroBatch] = []
    if not mesh.replicated:
        most = max(sum(micro.lane // own == rank for micro in there) for rank in range(mesh.data.world))
        spares = [every[-1]] * (most - len(mine))
    counts = {"samples": 2 * len(there), "tokens": tokens}
    if case.uneven:
        counts["samples"] -= 1
    return MinimizeInputs(step, 0, mine, counts, gaps=case.uneven or len(there) < len(every), spares=spares)


def shortened(micro: MicroBatch) -> MicroBatch:
    """The second lane without its second sample, the last one with a single target: token counts are unequal."""
    if micro.lane == 1:
        return micro._replace(batch={key: each[:1] for key, each in micro.batch.items()}, size=1, ids=micro.ids[:1])
    if micro.lane < LANES - 1:
        return micro
    targets = micro.batch["targets"].clone()
    targets.view(-1)[1:] = -100
    return micro._replace(batch=micro.batch | {"targets": targets, "left_out": (targets == -100).sum(1)})


def loss_of(case: Case, step: int) -> Any:
    task = LanguageModelTask(LanguageModel(model=network(case).settings, logits_chunk=case.chunk))

    if not case.in_last_row:
        return Poisoned(task, case, step).loss

    def poisoned(nets, batch):
        if step != case.poisoned or not is_third(step, batch):
            return task.loss(nets, batch)
        return spoiled_behind(nets["model"].embed, lambda: task.loss(nets, of_last_token(batch)))

    return poisoned


def is_third(step: int, batch: Mapping[str, Tensor]) -> bool:
    """Whether it is the batch of a step's third lane."""
    return torch.equal(batch["documents"], lanes(step)[2].batch["documents"])  # those of all positions, on every rank


class Poisoned(LanguageModelTask):
    """The decoder's loss; the third lane's is not finite in the step that the case says."""

    def __init__(self, task: LanguageModelTask, case: Case, step: int) -> None:
        vars(self).update(vars(task))
        self._at = case.poisoned == step and step

    def loss_from(self, output, batch):
        losses = super().loss_from(output, batch)
        if self._at and is_third(self._at, batch):
            losses["loss"] = losses["loss"]._replace(value=losses["loss"].value * float("nan"))
        return losses


def of_last_token(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return batch | {"tokens": torch.full_like(batch["tokens"], VOCABULARY - 1)}


def spoiled_behind(module: nn.Module, compute: Callable[[], Any]) -> Any:
    """What is computed, with a gradient that is not finite where it comes back to a module."""

    def spoil(_module, _given, made):
        made.register_hook(lambda gradient: gradient * float("nan"))

    handle = module.register_forward_hook(spoil)
    try:
        return compute()
    finally:
        handle.remove()


def scored(engine: Engine) -> float:
    """The loss of a batch in an evaluation."""
    with engine.evaluating() as nets:
        engine.seed(0)
        value = loss_of(Case(), 0)(nets, lanes(1000)[0].batch)["loss"].value
        return float(value.full_tensor() if isinstance(value, DTensor) else value)


def scored_twice(engine: Engine) -> list[float]:
    """The loss of the averages, and that of the weights that train."""
    averaged, averages = scored(engine), engine.averages
    engine.averages = None
    plain = scored(engine)
    engine.averages = averages
    return [averaged, plain]


def train(engine: Engine, case: Case, first: int = 1, last: int | None = None) -> Told:
    """Steps `first` to `last`, as the loop makes them."""
    told = Told()
    for step in range(first, (last or case.steps) + 1):
        engine.network_optimizers["model"].advance(8 * step)
        engine.buffers.begin()
        work = work_of(engine.placement.mesh, step, case)
        scalars = engine.minimize(("model",), loss_of(case, step), work).read()
        told.losses.append(scalars.losses["loss"])
        told.norms.append(scalars.norms["model"])
        told.whys.append(scalars.why)
        told.scales.append(scalars.scale)
        if scalars.why == "not finite":
            guilty = engine.nonfinite_micro_batches(("model",), loss_of(case, step), work)
            told.guilty += engine.placement.group.gather_json([micro.ids.tolist() for micro in guilty])
        if engine.averages:
            engine.averages.update(step, ["model"])
            if case.evaluated:  # in between: training must not notice
                told.scores.append(scored_twice(engine))
        if not (told.gradients or scalars.why):  # of the first step that is made
            gradients = {f"networks/model/{name}": tensor for name, tensor in gradients_of(engine).items()}
            told.gradients = whole(engine, gradients)
    held = {f"networks/model/{name}": tensor for name, tensor in parameters_of(engine).items()}
    told.weights = whole(engine, held)
    told.averages = whole(engine, engine.averages.tensors) if engine.averages else {}
    return told


def parameters_of(engine: Engine) -> Mapping[str, Tensor]:
    """What is here of each parameter, by name."""
    return engine.placement.here.get("model") or dict(engine.networks["model"].named_parameters())


def gradients_of(engine: Engine) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in parameters_of(engine).items() if parameter.grad is not None}


def whole(engine: Engine, tensors: Mapping[str, Tensor]) -> dict[str, list]:
    """Put together of what ranks count, on every rank."""
    counted, boxes = engine.placement.counted(tensors), engine.placement.boxes(tensors)
    own = {}
    for name, tensor in counted.items():
        box = boxes.get(name)
        own[name] = [list(box.whole) if box else list(tensor.shape), list(box.offset) if box else [], tensor.tolist()]
    found: dict[str, Tensor] = {}
    for each in engine.placement.group.gather_json(own):
        for name, (shape, offset, numbers) in each.items():
            part = torch.tensor(numbers, dtype=torch.float64)
            place = found.setdefault(name, torch.full(shape, float("nan"), dtype=torch.float64))
            place[tuple(slice(at, at + size) for at, size in zip(offset, part.shape, strict=False))] = part
    return {name: tensor.tolist() for name, tensor in found.items()}


class Tower(nn.Module):
    """Repeated blocks, of which a caller may leave out the last."""

    def __init__(self, ins: int, outs: int) -> None:
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)]
        self.first, self.blocks, self.last = nn.Linear(ins, 8), nn.ModuleList(blocks), nn.Linear(8, outs)
        self.extra = nn.Linear(8, outs)

    def forward(self, x: Tensor, *, extra: bool = False) -> Tensor:
        x = torch.tanh(self.first(x))
        for block in self.blocks:
            x = x + block(x)
        return self.last(x) + self.extra(x) if extra else self.last(x)


def adversaries_of(mesh: Mesh) -> Engine:
    """Two networks that train against each other, without plans of their own; of one, a part does not train."""
    torch.manual_seed(0)
    networks = {"generator": Tower(4, 2), "discriminator": Tower(2, 1)}
    networks["discriminator"].first.requires_grad_(False)
    for name, module in networks.items():
        lay_out(name, module, derived(module), mesh)
    placement = placed(networks, mesh)
    settings, horizon = optimizer_of(Case()), Horizon(8000, Scale(Batches(8)))
    built = build_network_optimizers(networks, settings, Constant(), horizon, parts=placement.parts)
    return Engine(networks, built, Execution(placement, torch.device("cpu"), "fp32", 7))


def contest(engine: Engine, steps: int) -> Told:
    """The discriminator moves twice, the generator once. Some losses reach a layer on the first lane only."""
    told = Told()
    mesh = engine.placement.mesh
    own = LANES // mesh.data.world

    def judged(nets, batch):
        real = nets["discriminator"](batch["real"], extra=bool(batch["first"]))
        fake = nets["discriminator"](nets["generator"](batch["noise"]).detach())
        return (nn.functional.softplus(-real) + nn.functional.softplus(fake)).mean()

    def fooled(nets, batch):
        return nn.functional.softplus(-nets["discriminator"](nets["generator"](batch["noise"]))).mean()

    for step in range(1, steps + 1):
        micros = []
        for lane in range(mesh.data.rank * own, (mesh.data.rank + 1) * own):
            rng = torch.Generator().manual_seed(100 * step + lane)
            batch = {"noise": torch.randn(2, 4, generator=rng), "real": torch.randn(2, 2, generator=rng)}
            ids = np.arange(2) + 2 * lane
            micros.append(MicroBatch(batch | {"first": torch.tensor(lane == 0)}, 2, 2 * lane, lane, 0, ids))
        for optimizer in engine.network_optimizers.values():
            optimizer.advance(8 * step)
        turns = ["discriminator", "discriminator", "generator"]
        for call, name in enumerate(turns):
            loss = fooled if name == "generator" else judged
            scalars = engine.minimize((name,), loss, MinimizeInputs(step, call, micros, {"samples": 8})).read()
            told.losses.append(scalars.losses["loss"])
            told.norms.append(scalars.norms[name])
    for name in engine.networks:
        here = engine.placement.here.get(name) or dict(engine.networks[name].named_parameters())
        told.weights |= whole(engine, {f"networks/{name}/{path}": tensor for path, tensor in here.items()})
    return told


def adversaries(job, place, descriptors):
    """Train both on the mesh; each rank says what became of it."""
    group = joined(place, descriptors)
    torch.set_num_threads(1)
    mesh = mesh_of(group, job["overrides"][0])
    said(job, group, vars(contest(adversaries_of(mesh), job["overrides"][1])))
    group.close()
    return leave(job, place, end(0))


def said(job: Mapping[str, Any], group: Group, what: Any) -> None:
    Path(job["folder"], f"said-{group.rank}.json").write_text(json.dumps(what))


def tables(job, place, descriptors):
    """Train each of the cases on the mesh; the first rank says what became of it, the others whether they agree."""
    group = joined(place, descriptors)
    torch.set_num_threads(1)
    mesh, cases = mesh_of(group, job["overrides"][0]), [Case(**given) for given in job["overrides"][1]]
    found = [train(engine_of(mesh, case), case) for case in cases]
    said(job, group, [vars(told) for told in found])
    group.close()
    return leave(job, place, end(0))


def state_of(engine: Engine, step: int) -> RunState:
    return RunState(engine, engine.placement, Guard(GuardSettings()), StateValues(Progress(step, 8 * step)))


def commit(engine: Engine, run: Path, step: int) -> None:
    """As the loop does: each rank its part, and a commit of all."""
    group = engine.placement.group
    writer = Committer(run, None, Retention(20), rank=group.rank, in_parts=not engine.placement.replicated)
    tree = state_of(engine, step).tree()
    folder = group.broadcast_json(writer.next_folder(step))
    if engine.placement.replicated:
        if group.leader:
            writer.begin(step, tree, {"position": 8 * step}, folder)
            writer.wait()
    else:
        writer.begin(step, tree, {"position": 8 * step}, folder)
        while writer.busy(1.0):
            pass
        parts = group.gather_json(writer.part())
        if group.leader:
            writer.seal(parts)
            made = writer.wait()
            assert hasattr(made, "manifest"), made
        else:
            writer.drop()
    writer.close()
    group.barrier()


def load(engine: Engine, run: Path) -> int:
    """The newest commit into what is here; its step."""
    placement = engine.placement
    found = newest(run, placement.group, whole=placement.replicated, keep=True)
    assert found is not None
    restore(found.read(placement.box), engine.networks, engine.optimizers, engine.others)
    return found.step


def go_on(job, place, descriptors):
    """Load the run's newest commit where there is one, make steps, and commit. `unpickled` are the classes that were
    looked up for a pickle meanwhile."""
    unpickled: list[str] = []
    sys.addaudithook(lambda event, told: unpickled.append(str(told)) if event == "pickle.find_class" else None)
    group = joined(place, descriptors)
    torch.set_num_threads(1)
    sizes, given, run, last = job["overrides"]
    case = Case(**given)
    engine = engine_of(mesh_of(group, sizes), case)
    run = Path(run)
    first = load(engine, run) if (run / "checkpoints").is_dir() else 0
    told = train(engine, case, first + 1, last) if last > first else Told()
    commit(engine, run, max(last, first + 1) if last <= first else last)
    said(job, group, vars(told) | {"unpickled": unpickled})
    group.close()
    return leave(job, place, end(0))


def moved(job, place, descriptors):
    """For each case what `tables` says; and whether a run that is cut in two by a commit has the same bits."""
    group = joined(place, descriptors)
    torch.set_num_threads(1)
    sizes, cases, folder = job["overrides"]
    mesh, found = mesh_of(group, sizes), {}
    for name, given in cases.items():
        case, run = Case(**given), Path(folder) / name
        for each in ("straight", "cut"):
            (run / each).mkdir(parents=True, exist_ok=True)
        straight = engine_of(mesh, case)
        told = train(straight, case)
        commit(straight, run / "straight", case.steps)
        first = engine_of(mesh, case)
        train(first, case, last=2)
        commit(first, run / "cut", 2)
        second = engine_of(mesh, case)
        load(second, run / "cut")
        again = train(second, case, first=3)
        commit(second, run / "cut", case.steps)
        found[name] = {**vars(told), "resumed": again.losses == told.losses[2:]}
    said(job, group, found)
    group.close()
    return leave(job, place, end(0))


def pass_on(job, place, descriptors):
    """Load each run's newest commit and commit it again, without a step; the first time after two steps."""
    group = joined(place, descriptors)
    torch.set_num_threads(1)
    sizes, cases, folder = job["overrides"]
    mesh = mesh_of(group, sizes)
    for name, given in cases.items():
        engine, run = engine_of(mesh, Case(**given)), Path(folder) / name
        if run.is_dir():
            commit(engine, run, load(engine, run) + 1)
        else:
            group.barrier()
            (run / "checkpoints").mkdir(parents=True, exist_ok=True)
            train(engine, Case(**given), last=2)
            commit(engine, run, 2)
    said(job, group, None)
    group.close()
    return leave(job, place, end(0))


class Messages(TorchDispatchMode):
    """Which collective operations are called, in order: what is called, and how many numbers the largest tensor has
    that it is given or gives."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if func.namespace in ("c10d", "_c10d_functional"):
            sizes = [leaf.numel() for leaf in tree_leaves((args, made)) if isinstance(leaf, Tensor)]
            self.seen.append((func.name().partition(".")[0], max(sizes, default=0)))
        return made


def messages(job, place, descriptors):
    """The messages of a step whose samples come one by one."""
    group = joined(place, descriptors)
    torch.set_num_threads(1)
    sizes, given = job["overrides"]
    mesh, case = mesh_of(group, sizes), Case(**given)
    engine, seen = engine_of(mesh, case), Messages()
    train(engine, case, last=1)
    work = work_of(mesh, 2, case)
    work = work._replace(micros=cut(work.micros, 1))
    with seen:
        engine.minimize(("model",), loss_of(case, 2), work)
    said(job, group, {"micros": len(work.micros), "seen": seen.seen})
    group.close()
    return leave(job, place, end(0))


def refusals(job, place, descriptors):
    """What is said to each of the cases where it cannot be placed."""
    group = joined(place, descriptors)
    sizes, cases = job["overrides"]
    mesh, found = mesh_of(group, sizes), []
    for given in cases:
        try:
            engine_of(mesh, Case(**given))
        except Failure as failure:
            found.append(failure.outcome.to_json())
    said(job, group, found)
    group.close()
    return leave(job, place, end(0))


def given_gradients(job, place, descriptors):
    """How far weights are from those of a process that holds everything, after steps by the same gradients."""
    group = joined(place, descriptors)
    torch.set_num_threads(1)
    sizes, cases = job["overrides"]
    mesh, found = mesh_of(group, sizes), {}
    for name, given in cases.items():
        case = Case(**given)
        parts, alone = engine_of(mesh, case), engine_of(Mesh(Group()), case)
        for step in range(case.steps):
            for engine in (parts, alone):
                give_gradients(engine, step)
                engine.network_optimizers["model"].advance(8 * (step + 1))
                engine.network_optimizers["model"].optimizer.step()
        found[name] = distance(parts, alone)
    said(job, group, found)
    group.close()
    return leave(job, place, end(0))


def give_gradients(engine: Engine, step: int) -> None:
    """Put random numbers, those of the place in the whole, where gradients are."""
    for number, (name, parameter) in enumerate(parameters_of(engine).items()):
        held = engine.placement.held.get(f"model/{name}")
        shape = held.box.whole if held else tuple(parameter.shape)
        numbers = torch.randn(shape, generator=torch.Generator().manual_seed(1000 * step + number))
        parameter.grad = numbers[held.box.slices].clone() if held else numbers


def distance(parts: Engine, alone: Engine) -> float:
    """The largest relative distance of what is here of a parameter from the same numbers of another engine."""
    whole, worst = parameters_of(alone), 0.0
    for name, parameter in parameters_of(parts).items():
        slices = parts.placement.held[f"model/{name}"].box.slices
        other = whole[name].detach()[slices].double()
        if not other.numel():
            continue
        worst = max(worst, float((parameter.detach().double() - other).norm() / other.norm()))
    return worst
