"""A network cut into the stages of a pipeline: which modules each has, and the part of the network that runs here."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from drivetrain.engine.dropout import Dropout, drawn_seed, require_ours
from drivetrain.engine.parallel_plan import ParallelPlan, matching
from drivetrain.runtime.mesh import Mesh
from drivetrain.spec.exits import Exit, Failure


class Absent(nn.Module):
    """In the place of a module that another stage has: what comes in goes on.

    It draws what that one would, so that whoever comes after it draws what it would in one process.
    """

    draws = 0

    def forward(self, x: Any, *_args: Any, **_kwargs: Any) -> Any:
        """The first argument."""
        if self.training:
            for _ in range(self.draws):
                drawn_seed(x.device)
        return x


class Chunk:
    """One stage: a view of the network, in which the modules of all others are absent.

    It is called with the network's own inputs, so that whatever follows from these is there on every stage. What the
    stage before has made takes the place of the first argument of the first module that is here.
    """

    def __init__(self, number: int, network: nn.Module, own: Sequence[str], every: Sequence[str]) -> None:
        self.number = number
        self._own, self._every = own, every
        self._copies: list[tuple[nn.Module, nn.Module]] = []
        self.module = self._view(network, "")
        self._received: Tensor | None = None

    def connect(self) -> None:
        """Once the network is laid out: what comes from the stage before is taken before any hook that cuts it."""
        if self.number:
            first = self.module.get_submodule(self._own[0])
            first.register_forward_pre_hook(self._taken, prepend=True)

    def __call__(self, inputs: tuple[Any, ...], received: Tensor | None, **kwargs: Any) -> Tensor:
        """What goes to the next stage, or the network's output."""
        # `train()` and `eval()` reach the network that the task knows; the views are copies of its modules.
        for made, original in self._copies:
            made.training = original.training
        self._received = received
        try:
            return self.module(*inputs, **kwargs)
        finally:
            self._received = None

    def tried(self, inputs: tuple[Any, ...], received: Tensor | None) -> tuple[Tensor, dict[str, int]]:
        """The same, once, and how often each module that is here draws. Raises Failure(78) where the network does
        something between its modules that the stages do not have, or in another order."""
        trial = _Trial(self._every)
        handles = []
        for name in self._every:
            module = self.module.get_submodule(name)
            # Before all other hooks: one that cuts or gathers would hand on another tensor than the module before has
            # made.
            handles.append(module.register_forward_pre_hook(trial.before(name), prepend=True))
            handles.append(module.register_forward_hook(trial.after(name)))
        for name in self._own:
            for layer in self.module.get_submodule(name).modules():
                if isinstance(layer, Dropout) and layer.p:
                    handles.append(layer.register_forward_hook(trial.draws(name)))
        try:
            output = self(inputs, received)
        finally:
            for handle in handles:
                handle.remove()
        trial.end(output)
        return output, trial.drawn

    def expect(self, draws: Mapping[str, int]) -> None:
        """Let absent modules draw as often as those that they stand for."""
        for name in self._every:
            module = self.module.get_submodule(name)
            if isinstance(module, Absent):
                module.draws = draws.get(name, 0)

    def _taken(self, _module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._received, *args[1:]

    def _view(self, module: nn.Module, prefix: str) -> nn.Module:
        """A module with the same memory, and others in the places of some within it."""
        # Shallow: the view has the same parameters, so that whoever looks at the network sees what the stages train.
        made = copy(module)
        self._copies.append((made, module))
        for key, value in vars(module).items():
            if isinstance(value, OrderedDict) and "hooks" in key:  # what hooks are set here is the view's alone
                made.__dict__[key] = OrderedDict(value)
        within: dict[str, nn.Module | None] = {}
        for name, child in module._modules.items():
            path = f"{prefix}{name}"
            if child is None or path in self._own:
                within[name] = child
            elif path in self._every:
                within[name] = Absent()
            elif any(each.startswith(f"{path}.") for each in self._every):
                within[name] = self._view(child, f"{path}.")
            else:
                within[name] = child
        made.__dict__["_modules"] = within
        return made


@dataclass(frozen=True)
class Stages:
    """How a network is cut: `names` are the modules of each stage, `places` where along `pipeline` each one is.

    `holders` are the places that have a parameter, by its name, and `sizes` how many numbers it has and whether it
    trains, for all parameters of the whole network. `chunks` are the stages that are here.
    """

    names: tuple[tuple[str, ...], ...]
    places: tuple[int, ...]
    here: int
    holders: Mapping[str, tuple[int, ...]]
    sizes: Mapping[str, tuple[int, bool]]
    chunks: tuple[Chunk, ...] = ()

    @property
    def last(self) -> int:
        """The place of the last stage, where the loss is."""
        return self.places[-1]

    @property
    def elsewhere(self) -> list[str]:
        """The parameters that are not here."""
        return [name for name, places in self.holders.items() if self.here not in places]


def stages_of(network: nn.Module) -> Stages | None:
    """How a network is cut into stages, where it is."""
    return getattr(network, "stages_laid_out", None)


def roots_in(network: nn.Module) -> list[nn.Module]:
    """What is called of a network: itself, or the stages that are here."""
    if stages := stages_of(network):
        return [chunk.module for chunk in stages.chunks]
    return [network]


def present(network: nn.Module, named: Mapping[str, str]) -> dict[str, str]:
    """Those of modules by name that are here."""
    return {path: told for path, told in named.items() if not isinstance(network.get_submodule(path), Absent)}


def keep_stages(name: str, network: nn.Module, plan: ParallelPlan, mesh: Mesh) -> None:
    """Leave of a network, in place, what this rank's stages have. Names stay.

    What shares a parameter with a module that is here stays too, for the name's sake; nobody calls it. Raises
    Failure(78) where the plan's stages are not all of the network, or too few.
    """
    count = mesh.sizes.pipeline * mesh.virtual_stages
    order = _ordered(name, network, plan)
    blocks = set(matching(network, plan.units, f"the parallel plan of {name}"))
    names = dealt(order, blocks, count)
    if names is None:
        there = sum(each in blocks for each in order)
        cause = f"parallel.pipeline: {name} has {there} repeated blocks, fewer than {count} stages"
        raise Failure(Exit.BAD_RECIPE, cause, f"use at most {max(1, there)} stages (pipeline x virtual_stages)")
    _require_plain(name, network, order)
    places, here = mesh.stage_places, mesh.at["pipeline"]
    holders, sizes = _holders(network, names, places)
    own = [each for number, stage in enumerate(names) if places[number] == here for each in stage]
    kept = {id(parameter) for each in own for parameter in network.get_submodule(each).parameters()}
    for each in order:
        module = network.get_submodule(each)
        # A tied table stays on both stages: its name, and with it its place in commits, belongs to the first of them.
        if each not in own and not any(id(parameter) in kept for parameter in module.parameters()):
            network.set_submodule(each, Absent())
    stages = Stages(names, places, here, holders, sizes)
    network.stages_laid_out = stages  # type: ignore[assignment] - any object
    # For optimizers, whose groups may take nothing here.
    elsewhere = tuple([each for each in stages.elsewhere if sizes[each][1]])
    network.trains_elsewhere = elsewhere  # type: ignore[assignment] - any object


def with_chunks(network: nn.Module) -> None:
    """Make the views that run here: once layers are split, and before they are sharded."""
    stages = stages_of(network)
    if stages is None:
        return
    every = [each for stage in stages.names for each in stage]
    chunks = []
    for number, own in enumerate(stages.names):
        if stages.places[number] == stages.here:
            chunks.append(Chunk(number, network, own, every))
    network.stages_laid_out = replace(stages, chunks=tuple(chunks))  # type: ignore[assignment] - any object


def dealt(order: Sequence[str], blocks: set[str], count: int) -> tuple[tuple[str, ...], ...] | None:
    """Modules in their order, dealt to stages that have as many blocks as each other, or one more, the first ones; what
    is no block goes with the one before it, or the first one. None where there are fewer blocks than stages."""
    each, more = divmod(sum(name in blocks for name in order), count)
    if not each:
        return None
    stages: list[list[str]] = [[] for _ in range(count)]
    at, left = 0, each + (more > 0)
    for name in order:
        if name in blocks:
            if not left:
                at += 1
                left = each + (at < more)
            left -= 1
        stages[at].append(name)
    return tuple(map(tuple, stages))


class _Trial:
    """What happens between the modules of stages in one pass."""

    def __init__(self, every: Sequence[str]) -> None:
        self.drawn = dict.fromkeys(every, 0)
        self._left = list(every)
        self._last: tuple[str, Any] | None = None

    def before(self, name: str) -> Any:
        """A hook before a module is called."""

        def hook(_module: nn.Module, args: tuple[Any, ...]) -> None:
            if not self._left or self._left[0] != name:
                wanted = self._left[0] if self._left else "its end"
                raise _misplaced(f"the network calls {name} where the plan's stages have {wanted}")
            # Identity, not equality: a copy of the same numbers has another gradient's way back.
            if self._last and not (args and args[0] is self._last[1]):
                what = f"what {name} is given first is not what {self._last[0]} has made"
                raise _misplaced(f"{what}: in between the network computes something itself, which no stage has")

        return hook

    def after(self, name: str) -> Any:
        """A hook after it."""

        def hook(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
            if not isinstance(output, Tensor):
                raise _misplaced(f"{name} makes a {type(output).__name__}, and stages pass a single tensor on")
            self._left.pop(0)
            self._last = name, output

        return hook

    def draws(self, name: str) -> Any:
        """A hook after a layer within a module that draws."""

        def hook(module: nn.Module, _args: tuple[Any, ...], _output: Any) -> None:
            self.drawn[name] += module.training

        return hook

    def end(self, output: Any) -> None:
        """The network has given its output."""
        assert self._last, "a stage has a module"
        if self._left:
            raise _misplaced(f"the network does not call {self._left[0]}")
        if output is not self._last[1]:
            raise _misplaced(f"the network does not return what {self._last[0]} has made, but something else")


def _misplaced(what: str) -> Failure:
    hint = "name all modules on the way in ParallelPlan.stages, in their order, each given what the one before has made"
    return Failure(Exit.BAD_RECIPE, f"parallel.pipeline: {what}", hint)


def _ordered(name: str, network: nn.Module, plan: ParallelPlan) -> list[str]:
    """The modules of all stages, in order."""
    asked = f"the stages of {name}"
    if not plan.stages:
        cause = f"parallel.pipeline: nothing says which modules the stages of {name} have"
        raise Failure(Exit.BAD_RECIPE, cause, "state them, in their order, in the task's parallel_plan (stages)")
    order: list[str] = []
    for pattern in plan.stages:
        order += matching(network, [pattern], asked)
    return order


def _require_plain(name: str, network: nn.Module, order: Sequence[str]) -> None:
    """Raises Failure(78) for what stages cannot have: parameters outside of them, buffers that commits keep, torch's
    dropout."""
    known = {id(parameter) for each in order for parameter in network.get_submodule(each).parameters()}
    for path, parameter in network.named_parameters():
        if id(parameter) not in known:
            cause = f"parallel.pipeline: {name}.{path} lies in no module that the plan's stages name"
            raise Failure(Exit.BAD_RECIPE, cause, "put it into a module, and name that in ParallelPlan.stages")
    for path in sorted(
        network.state_dict(keep_vars=True).keys() - dict(network.named_parameters(remove_duplicate=False))
    ):
        cause = f"parallel.pipeline: {name}.{path} is a buffer that commits keep, and each stage would have its own"
        raise Failure(Exit.BAD_RECIPE, cause, "register it with persistent=False, or use shard or tensor")
    require_ours("pipeline", name, network, "other numbers on each stage")


def _holders(
    network: nn.Module, names: Sequence[Sequence[str]], places: Sequence[int]
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, bool]]]:
    """By parameter, which places have it, and what it is."""
    at: dict[int, set[int]] = {}
    for stage, place in zip(names, places, strict=True):
        for each in stage:
            for parameter in network.get_submodule(each).parameters():
                # By the parameter itself: a tied one has several names, and one state.
                at.setdefault(id(parameter), set()).add(place)
    holders, sizes = {}, {}
    for name, parameter in network.named_parameters():
        holders[name] = tuple(sorted(at[id(parameter)]))
        sizes[name] = parameter.numel(), parameter.requires_grad
    return holders, sizes
