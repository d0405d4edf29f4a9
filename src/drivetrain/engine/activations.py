"""Activations that are not kept for the backward pass: a module keeps its arguments, and computes the rest again.

The second pass sees what the first one saw, random numbers and buffers too, and leaves no trace: weights come to the
bits that they have without (Chen et al. 2016, arXiv 1604.06174; selective: Korthikanti et al. 2022, arXiv 2205.05198).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import (
    CheckpointError,
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from drivetrain.engine.parallel_plan import matching
from drivetrain.engine.stages import present
from drivetrain.runtime.seeds import GeneratorStates
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.recipe import Activations

_COSTLY = frozenset(
    {
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
        "aten::convolution",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention",
        "_c10d_functional::reduce_scatter_tensor",
    }
)
"""What takes the time of a forward pass, and makes one tensor of several: `selective` keeps what these come to."""

_KEPT = (bool, int, float, str, torch.Generator)


def recompute_activations(
    name: str,
    network: nn.Module,
    chosen: Activations,
    units: Sequence[str],
    device: torch.device,
    compiled: Sequence[str] = (),
) -> None:
    """Have modules of a network computed again in backward passes, in place.

    A word holds for the modules that `units` name, as patterns do; a mapping for those that its patterns name, the
    first one where several do. Called once layers are split, and `compiled` modules are for the compiler, before
    modules are sharded. Raises Failure(78) for patterns that name nothing, and for modules that lie within one another
    or within one that is compiled.
    """
    patterns = dict.fromkeys(units, chosen) if isinstance(chosen, str) else chosen
    if chosen != "keep" and not patterns:
        cause = f"activations: {name} has no repeated blocks that could be computed again"
        raise Failure(Exit.BAD_RECIPE, cause, f"name modules, or give networks.{name}.activations: keep")
    named = matching(network, patterns, f"activations of {name}")
    words = {path: patterns[pattern] for path, pattern in named.items()}
    _require_apart(name, words)
    _require_outside(name, words, compiled)
    for path, word in present(network, words).items():
        if word != "keep":
            module = network.get_submodule(path)
            # In place of the method, and not of the module: names, hooks and what FSDP makes of the class stay.
            module.forward = _Recomputed(module, device, selective=word == "selective")


def other_tensors(error: CheckpointError) -> Failure:
    """Failure(78) of a backward pass, where a module came to other tensors when it was computed again."""
    first = str(error).strip().partition("\n")[0]
    cause = f"activations: a module that was computed again came to other tensors: {first}"
    hint = "what it computes must follow from its arguments, buffers, plain attributes and generators; else `keep` it"
    return Failure(Exit.BAD_RECIPE, cause, hint)


class _Recomputed:
    """A module's forward pass, whose activations are computed again when the backward pass wants them."""

    def __init__(self, module: nn.Module, device: torch.device, *, selective: bool) -> None:
        self._module, self._device, self._selective = module, device, selective
        self._forward = module.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*args, **kwargs)
        before = _versions(args, kwargs)
        result = checkpoint(
            partial(self._forward, **kwargs),  # here they meet no argument of `checkpoint`
            *args,
            use_reentrant=False,
            preserve_rng_state=False,  # `_Again` does it, for all generators
            context_fn=self._contexts,
        )
        if _versions(args, kwargs) != before:
            kind = type(self._module).__name__
            cause = f"activations: a module of class {kind} changes its arguments in place: they are all that it keeps"
            raise Failure(Exit.BAD_RECIPE, cause, "have it work on a copy, or `keep` its activations")
        return result

    def _contexts(self) -> tuple[AbstractContextManager, AbstractContextManager]:
        """What the first pass is made in, and what those that repeat it are made in."""
        first, second = nullcontext(), nullcontext()
        if self._selective:
            first, second = create_selective_checkpoint_contexts(_policy)
        return first, _Again(self._module, self._device, second)


class _Again:
    """While entered, buffers, plain attributes of modules and generators are as they were when this was made, and
    `inner` is entered; afterwards all is as it was before. It may be entered more than once: a penalty on gradients
    takes two backward passes."""

    def __init__(self, module: nn.Module, device: torch.device, inner: AbstractContextManager) -> None:
        self._module, self._device, self._inner = module, device, inner
        self._generators = GeneratorStates.now(device)
        self._attributes = _Attributes.now(module)
        # By value: not every kernel counts what it changes in place (batch normalization does not).
        self._buffers: list[tuple[nn.Module, str, Tensor]] = []
        for owner in module.modules():
            for name, buffer in owner._buffers.items():
                if buffer is not None:
                    self._buffers.append((owner, name, buffer.detach().clone()))
        self._present: list[Tensor | None] = []

    def __enter__(self) -> None:
        self._before = GeneratorStates.now(self._device)
        self._generators.restore()
        self._passed = _Attributes.now(self._module)
        self._attributes.restore()
        self._present = [owner._buffers[name] for owner, name, _ in self._buffers]
        for owner, name, value in self._buffers:
            # Each pass gets a copy: what it changes must not be seen by the one after it, of which there may be
            # several.
            owner._buffers[name] = value.clone()
        self._inner.__enter__()

    def __exit__(self, *told: Any) -> None:
        try:
            self._inner.__exit__(*told)
        finally:
            for (owner, name, _value), buffer in zip(self._buffers, self._present, strict=True):
                owner._buffers[name] = buffer
            self._passed.restore()
            self._before.restore()


def _versions(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[int]:
    """How often each tensor that is given has been changed in place."""
    return [given._version for given in tree_leaves((args, kwargs)) if isinstance(given, Tensor)]


class _Attributes(NamedTuple):
    """What modules keep outside of buffers: numbers, texts, and generators of their own."""

    owners: list[tuple[dict[str, Any], dict[str, Any]]]
    """The attributes of each module as they come to be, and as they were."""
    states: list[tuple[torch.Generator, Tensor]]

    @classmethod
    def now(cls, module: nn.Module) -> _Attributes:
        """Those of a module and of all within it at this moment."""
        found = cls([], [])
        for owner in module.modules():
            kept = {name: value for name, value in vars(owner).items() if isinstance(value, _KEPT)}
            found.owners.append((vars(owner), kept))
            for value in kept.values():
                if isinstance(value, torch.Generator):
                    found.states.append((value, value.get_state()))
        return found

    def restore(self) -> None:
        """Have them so again; what modules did not have then they have no longer."""
        for own, kept in self.owners:
            for name in [name for name, value in own.items() if isinstance(value, _KEPT)]:
                del own[name]
            # Into the module's own dict: `setattr` would meet what a class has put in its way.
            own |= kept
        for generator, state in self.states:
            generator.set_state(state)


def _policy(_: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Whether what an operation comes to is kept. One that draws is made again: its place among the drawn numbers would
    be another one's."""
    schema = operation._schema
    # Cheap ones are made again: keeping them would give back what recomputing is there to save.
    if schema.name not in _COSTLY:
        return CheckpointPolicy.PREFER_RECOMPUTE
    for place, argument in enumerate(schema.arguments):
        if argument.name == "dropout_p":
            given = args[place] if place < len(args) else kwargs.get("dropout_p", argument.default_value)
            if given:
                return CheckpointPolicy.PREFER_RECOMPUTE
    return CheckpointPolicy.MUST_SAVE


def _require_apart(name: str, words: Mapping[str, str]) -> None:
    """Raises Failure(78) where a module lies within one that is computed again."""
    for outer, word in words.items():
        for inner in words:
            if word != "keep" and inner.startswith(f"{outer}."):
                cause = f"activations: {inner} lies within {outer} of {name}, which is computed again as a whole"
                raise Failure(Exit.BAD_RECIPE, cause, "name modules that lie beside each other")


def _require_outside(name: str, words: Mapping[str, str], compiled: Sequence[str]) -> None:
    """Raises Failure(78) where a module lies within one that is compiled: of a graph's middle nobody makes a second
    pass."""
    for inner, word in words.items():
        for outer in compiled:
            if word != "keep" and inner.startswith(f"{outer}."):
                cause = f"activations: {inner} lies within {outer} of {name}, which is compiled as a whole"
                raise Failure(Exit.BAD_RECIPE, cause, f"name {outer}, or leave compile out")
