"""Networks laid out over a mesh by their plans: torch's tensor parallel styles, then its FSDP2."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle
from torch.distributed.tensor.placement_types import Placement as Layout

from drivetrain.engine.context import Positions
from drivetrain.engine.cuttable import require_shardable, require_unwatched
from drivetrain.engine.dropout import Dropout, require_ours
from drivetrain.engine.parallel_plan import ParallelPlan, matching
from drivetrain.engine.stages import keep_stages, present, roots_in, stages_of, with_chunks
from drivetrain.engine.tables.module import tables_in
from drivetrain.optim.masters import wide
from drivetrain.runtime.mesh import Mesh
from drivetrain.spec.exits import Exit, Failure

_POSITIONS = 1  # the dimension of activations [samples, positions, features] that is shared out


def lay_out(
    name: str,
    network: nn.Module,
    plan: ParallelPlan,
    mesh: Mesh,
    *,
    sequence: bool = True,
    between: Callable[[], object] = lambda: None,
) -> None:
    """Split and shard a network in place; on a mesh of replicas nothing is done. Every rank calls it. The network's
    attribute `laid_out` are then the mesh's sizes.

    `sequence`: what lies between split layers is shared out by positions. `between` is called once layers are split,
    and before they are sharded: for what belongs inside of what gathers them. Raises Failure(78) where the plan does
    not fit the network or the mesh, and where this torch lacks what a mesh needs.
    """
    if mesh.replicated:
        return
    asked = f"the parallel plan of {name}"
    if mesh.sizes.pipeline > 1:
        keep_stages(name, network, plan, mesh)
    units, split = (present(network, matching(network, each, asked)) for each in (plan.units, plan.split))
    require_unwatched(name, network)
    if mesh.sizes.summed > 1:
        require_shardable(name, network, list(units))
        _require_methods(asked, network, plan)
    if mesh.sizes.tensor > 1:
        _require_split(name, network, split)
        _split(name, network, {path: plan.split[pattern] for path, pattern in split.items()}, mesh, sequence)
        for path in units:
            network.get_submodule(path).register_forward_pre_hook(_arrived)
    if mesh.sizes.context > 1:
        _share_positions(name, network, plan, mesh)
    between()
    network.laid_out = mesh.sizes  # type: ignore[assignment] - any object, for a network that wants to know
    with_chunks(network)
    if mesh.sizes.summed > 1:
        _shard(name, network, list(units), plan, mesh)
    if stages := stages_of(network):
        for chunk in stages.chunks:
            chunk.connect()


def shards_of(network: nn.Module) -> list[FSDPModule]:
    """All units of a network that is sharded, itself among them."""
    roots = roots_in(network)
    return [module for root in roots for module in root.modules() if isinstance(module, FSDPModule)]


def methods_of(network: nn.Module) -> tuple[str, ...]:
    """The methods of a network that is sharded which gather it, beside `forward`."""
    return getattr(network, "methods_laid_out", ())


def roots_of(networks: Iterable[nn.Module]) -> list[FSDPModule]:
    """The networks that are sharded, or their stages."""
    return [root for network in networks for root in roots_in(network) if isinstance(root, FSDPModule)]


def settle(network: nn.Module) -> None:
    """Let FSDP take the memory that a network has got, which may move it for the last time. Every rank calls it."""
    for unit in shards_of(network):
        unit.unshard()
        unit.reshard()


def reshard(networks: Iterable[nn.Module]) -> None:
    """Give up what FSDP has gathered: a root stays whole after a forward pass, and would not see its weights change."""
    for network in networks:
        for unit in shards_of(network):
            unit.reshard()


def _require_methods(asked: str, network: nn.Module, plan: ParallelPlan) -> None:
    for method in plan.methods:
        if not callable(getattr(network, method, None)):
            cause = f"{asked}: its methods name {method!r}, which {type(network).__name__} does not have"
            raise Failure(Exit.BAD_RECIPE, cause, "name what the task calls beside `forward`")


def _share_positions(name: str, network: nn.Module, plan: ParallelPlan, mesh: Mesh) -> None:
    """Tell a network, and what of it has to know, which positions it is given. Raises Failure(78) where nothing says
    what has to know, or that does not ask."""
    if not plan.context or not plan.sliced:
        cause = f"parallel.context: nothing says in which modules of {name} positions meet, or what of a batch has them"
        raise Failure(Exit.BAD_RECIPE, cause, "state it in the task's parallel_plan (context, sliced), or use shard")
    require_ours("context", name, network, "the same for other positions")
    named = present(network, matching(network, plan.context, f"the context of {name}"))
    positions = Positions(mesh.at["context"], mesh.sizes.context, mesh.context.main, plan.sliced)
    for path, module in network.named_modules():
        asks = isinstance(getattr(module, "positions", None), Positions)
        if path in named and not asks:
            cause = f"parallel.context: {name}.{path} has no attribute `positions`, so that it sees those here alone"
            hint = "give its class `positions = drivetrain.Positions()`, and let it ask that for keys and values"
            raise Failure(Exit.BAD_RECIPE, cause, hint)
        if not path or asks:
            module.positions = positions  # type: ignore[assignment] - any object


def _require_split(name: str, network: nn.Module, split: Mapping[str, str]) -> None:
    if not split:
        cause = f"parallel.tensor: nothing says how the layers of {name} are split"
        raise Failure(Exit.BAD_RECIPE, cause, "state it in the task's parallel_plan, or use parallel.shard")
    require_ours("tensor", name, network, "the same on all parts of a sample")


def _require_named(name: str, network: nn.Module, split: Mapping[str, str]) -> None:
    """Raises Failure(78) where nothing says what becomes of a layer that may see some of the positions: its gradient
    would be of those, and what it drops the same on every rank."""
    parameters = network.named_parameters()
    unnamed = [path for path, each in parameters if each.requires_grad and not isinstance(each, DTensor)]
    for path, module in network.named_modules():
        if isinstance(module, Dropout) and module.p and path not in split:
            unnamed.append(path)
    if unnamed:
        cause = f"parallel.sequence: the plan's split does not say what becomes of {name}.{unnamed[0]}"
        hint = "name its module ('sequence': works on some of the positions), or set parallel.sequence: false"
        raise Failure(Exit.BAD_RECIPE, cause, hint)


def _split(name: str, network: nn.Module, split: Mapping[str, str], mesh: Mesh, sequence: bool) -> None:
    """Split layers along `tensor`. Weights that modules share are one again afterwards: torch unties them."""
    devices = mesh.devices["tensor"]
    layout: Layout = Shard(_POSITIONS) if sequence else Replicate()
    styles = _styles(layout)
    tied = _shared_places(network)
    for path, kind in split.items():
        module = network.get_submodule(path)
        if isinstance(module, Dropout):
            module.part = (mesh.at["tensor"], mesh.sizes.tensor) if sequence else (0, 1)
        elif kind != "sequence" or sequence:
            parallelize_module(module, devices, styles[kind]())
    if sequence:
        _require_named(name, network, split)
    for first, *others in tied:
        owner, leaf = _owner(network, first)
        for other in others:
            module, own = _owner(network, other)
            module.register_parameter(own, getattr(owner, leaf))


def _styles(layout: Layout) -> dict[str, Callable[[], ParallelStyle]]:
    """Torch's style of each kind of split; `layout` is that of what lies between split layers."""
    return {
        "column": ColwiseParallel,
        "row": lambda: RowwiseParallel(output_layouts=layout),
        "embedding": lambda: RowwiseParallel(input_layouts=Replicate(), output_layouts=layout),
        # Logits stay apart, as DTensors that torch's parallel loss understands.
        "head": lambda: _Head(input_layouts=layout, output_layouts=Shard(-1), use_local_output=False),
        "sequence": SequenceParallel,
        "gather": lambda: _Gather(layout),
        "experts": lambda: _Experts(layout),
        "summand": lambda: RowwiseParallel(output_layouts=Partial()),
    }


class _Head(ColwiseParallel):
    """A head that is given targets makes their loss, a single number that all have."""

    @staticmethod
    def _prepare_output_fn(
        output_layouts: Any, use_local_output: bool, mod: Any, outputs: Any, device_mesh: Any
    ) -> Any:
        if not outputs.ndim:
            return outputs
        return ColwiseParallel._prepare_output_fn(output_layouts, use_local_output, mod, outputs, device_mesh)


class _Gather(ParallelStyle):
    """The first argument comes whole; its gradient goes back as it came, summed once for all that the module reads."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self._layout = layout

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.register_forward_pre_hook(partial(self._gathered, device_mesh))
        return module

    def _gathered(self, devices: DeviceMesh, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        first = args[0]
        if not isinstance(first, DTensor):
            first = DTensor.from_local(first, devices, (self._layout,), run_check=False)
        return first.redistribute(placements=(Replicate(),)), *args[1:]


class _Experts(_Gather):
    """A gather whose own parameters are split, and whose output is summed and shared out."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for path, dimension in module.split_along.items():  # type: ignore[union-attr, operator] - its class says so
            owner, leaf = _owner(module, path)
            parameter = getattr(owner, leaf)
            layout = Replicate() if dimension is None else Shard(dimension)
            cut = distribute_tensor(parameter, device_mesh, [layout])
            owner.register_parameter(leaf, nn.Parameter(cut, requires_grad=parameter.requires_grad))
        module.register_forward_hook(partial(self._summed, device_mesh))
        return super()._apply(module, device_mesh)

    def _summed(self, devices: DeviceMesh, _: nn.Module, _args: Any, made: tuple[Tensor, Tensor]) -> tuple[Any, Any]:
        part, alike = made
        whole = DTensor.from_local(part, devices, (Partial(),), run_check=False)
        return whole.redistribute(placements=(self._layout,)).to_local(), _Alike.apply(alike, devices.size())


class _Alike(torch.autograd.Function):
    """A number that all ranks come to: the gradient of each is a part of what it would be on one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: int) -> Tensor:
        ctx.ranks = ranks
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override] - of one output
        return gradient / ctx.ranks, None


class _Arrived(torch.autograd.Function):
    """What an AsyncCollectiveTensor waits for."""

    @staticmethod
    def forward(_: Any, x: AsyncCollectiveTensor) -> Tensor:
        whole = x.trigger_wait()
        return whole.view_as(whole)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:  # type: ignore[override] - of one output
        return gradient


def _arrived(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """A hook before a unit. What split layers make is a tensor of a class of its own while it is on its way; of such an
    input a compiled block passes back a gradient of another class than torch then asks for."""
    there = list(args)
    for place, given in enumerate(args):
        if isinstance(given, AsyncCollectiveTensor):
            there[place] = _Arrived.apply(given)
    return tuple(there)


def _shared_places(network: nn.Module) -> list[list[str]]:
    """The names of each parameter that has several."""
    places: dict[int, list[str]] = {}
    for path, parameter in network.named_parameters(remove_duplicate=False):
        places.setdefault(id(parameter), []).append(path)
    return [paths for paths in places.values() if len(paths) > 1]


def _tie(name: str, network: nn.Module, tied: list[list[str]]) -> None:
    """Weights that stages share, of which some are here for their names' sake only, are one again after sharding."""
    for paths in tied:
        places = [_owner(network, path) for path in paths]
        cut: dict[int, DTensor] = {}
        for module, leaf in places:
            parameter = getattr(module, leaf)
            if isinstance(parameter, DTensor):
                cut[id(parameter)] = parameter
        if len(cut) > 1:
            what = f"{' and '.join(paths)} of {name} are one tensor"
            cause = f"parallel: {what}, in stages of one process, each of which would be sharded by itself"
            raise Failure(Exit.BAD_RECIPE, cause, "use fewer virtual_stages, or leave replicate and shard 1")
        for parameter in cut.values():
            for module, leaf in places:
                module.register_parameter(leaf, parameter)  # type: ignore[arg-type] - a DTensor that is one


def _owner(network: nn.Module, path: str) -> tuple[nn.Module, str]:
    """The module that has a parameter, and what it is called there."""
    parent, _, leaf = path.rpartition(".")
    return network.get_submodule(parent), leaf


def _shard(name: str, network: nn.Module, units: list[str], plan: ParallelPlan, mesh: Mesh) -> None:
    """Share out every parameter by rows, unit by unit. Gradients become plain sums: losses are over global counts."""
    devices = mesh.devices["shard"]
    if mesh.sizes.replicate > 1:
        devices = mesh.devices["replicate", "shard"]
    # bf16 weights of which a recipe wants fp32 gradients.
    sums = torch.float32 if any(map(wide, network.parameters())) else None
    policy = MixedPrecisionPolicy(reduce_dtype=sums, cast_forward_inputs=False)
    # Of these every rank has all; their gradients are summed at the end of a step.
    numbers = {parameter for parameter in network.parameters() if not parameter.dim()}
    apart = numbers | tables_in(network)
    # The last first: where units lie within each other, the inner one comes before the outer.
    tied = _shared_places(network)
    for module in [*map(network.get_submodule, reversed(units)), *roots_in(network)]:
        fully_shard(module, mesh=devices, mp_policy=policy, ignored_params=apart)
    if stages_of(network):
        _tie(name, network, tied)
    for module in shards_of(network):
        _require_knobs(module)
        # Both: gloo has no scaled sums, and a factor of one alone would ask for one.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
        # A loss may reach a parameter on some ranks only; the others then send zeros, and wait for nobody.
        module.set_reduce_scatter_unused_params(True)
    for method in plan.methods:
        register_fsdp_forward_method(network, method)
    network.methods_laid_out = plan.methods  # type: ignore[assignment] - any object


def _require_knobs(module: FSDPModule) -> None:
    for knob in ("set_force_sum_reduction_for_comms", "set_reduce_scatter_unused_params"):
        if not hasattr(module, knob):
            cause = f"parallel: torch {torch.__version__} has no FSDPModule.{knob}, which a mesh needs"
            raise Failure(Exit.BAD_RECIPE, cause, "use torch 2.13, or parallel.replicate alone")
