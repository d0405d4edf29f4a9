"""Modules whose forward pass something else computes: a fused kernel, a vendor's, one's own. Parameters and their names
stay, so commits of runs with and without it are alike. It is held against the module before it trains.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only

from drivetrain.engine.parallel_plan import named_by
from drivetrain.engine.recipe import OwnKernel
from drivetrain.runtime.seeds import seed_generators
from drivetrain.spec.custom import build_custom
from drivetrain.spec.exits import Exit, Failure

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""By the coarsest type that the two compute in: how far a number may be from the module's, of the module's largest one
in the same tensor."""


@dataclass
class Kernel:
    """What computes a module in its class's place. `verdict` is what a comparison has come to: nothing where it has not
    been made, else the largest difference and where that is."""

    path: str
    kind: str
    module: nn.Module
    original: Callable[..., Any]
    replacement: Callable[..., Any]
    tolerance: float | None
    verdict: Verdict | None = field(default=None)


@dataclass(frozen=True)
class Verdict:
    """How a kernel compares to its module. `wrong` says what is not alike; empty where all is."""

    difference: float
    allowed: float
    wrong: str = ""


def replace_modules(networks: Mapping[str, nn.Module], settings: Mapping[str, OwnKernel]) -> None:
    """Have modules computed by what patterns of their names choose, in place; of several patterns by the first one's.

    Called before networks are laid out or compiled. Raises Failure(78) for a pattern that names nothing, and for a
    kernel with parameters of its own.
    """
    for name, network in networks.items():
        found: list[Kernel] = []
        for path, pattern in named_by(network, settings).items():
            found.append(_replaced(f"{name}.{path}".rstrip("."), network.get_submodule(path), settings[pattern]))
        network.kernels = found  # type: ignore[assignment] - any object; a plain list holds no modules of its own
    for pattern in settings:
        if not any(named_by(network, [pattern]) for network in networks.values()):
            cause = f"kernels: no network has a module called {pattern!r}"
            raise Failure(Exit.BAD_RECIPE, cause, "give a module's name, where * stands for one part of it")


def kernels_of(networks: Iterable[nn.Module]) -> list[Kernel]:
    """What computes modules of these networks."""
    found: list[Kernel] = []
    for network in networks:
        found += getattr(network, "kernels", ())
    return found


def _replaced(path: str, module: nn.Module, settings: OwnKernel) -> Kernel:
    built = build_custom(settings.own, module=module)
    # A module, or any object with a forward, computes in the module's place; anything else is asked for what does.
    replacement = built.forward if not inspect.isroutine(built) and hasattr(built, "forward") else built(module)
    if not callable(replacement):
        cause = f"kernels: {settings.own.told} gives a {type(replacement).__name__} for {path}"
        raise Failure(Exit.BAD_RECIPE, cause, "return a function that takes what the module's forward takes")
    if isinstance(built, nn.Module):
        shared = set(module.parameters())
        for name, parameter in built.named_parameters():
            # By identity: a copy of a parameter would get a gradient that no optimizer sees.
            if parameter not in shared:
                cause = f"kernels: {settings.own.told} has a parameter {name!r} that {path} does not have"
                raise Failure(Exit.BAD_RECIPE, cause, "compute with the module's own: no commit keeps another one")
    kernel = Kernel(path, settings.own.kind, module, module.forward, replacement, settings.tolerance)
    module.forward = replacement
    return kernel


@contextmanager
def comparing(kernels: Sequence[Kernel], device: torch.device) -> Iterator[None]:
    """While entered, each module's first call is made by both, forward and backward, and their verdict kept. It goes on
    with what the module itself has come to. To be entered without gradients, in whatever precision is trained."""
    called = [kernel.module.forward for kernel in kernels]
    for kernel in kernels:
        kernel.module.forward = partial(_compared, kernel, device)
    try:
        yield
    finally:
        for kernel, forward in zip(kernels, called, strict=True):
            kernel.module.forward = forward


def _compared(kernel: Kernel, device: torch.device, *args: Any, **kwargs: Any) -> Any:
    # Once for each module: a comparison takes four passes.
    if kernel.verdict is not None:
        return kernel.original(*args, **kwargs)
    wanted, output = _made(kernel.original, kernel.module, device, args, kwargs)
    try:
        found, _ = _made(kernel.replacement, kernel.module, device, args, kwargs)
    except Failure:
        raise
    except Exception as error:
        kernel.verdict = Verdict(float("inf"), 0.0, f"it raises {type(error).__name__}: {error}")
    else:
        kernel.verdict = judge(wanted, found, kernel.tolerance, _computed_in(device))
    return output


def _computed_in(device: torch.device) -> torch.dtype | None:
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


def _made(
    forward: Callable[..., Any], module: nn.Module, device: torch.device, args: Any, kwargs: Any
) -> tuple[dict[str, Tensor], Any]:
    """Outputs, and gradients of what is given and of parameters, by name; and the outputs as they are. Neither is what
    the network's own pass sees: all is computed of copies, and from the same random numbers."""
    seed_generators(device, 0)
    with torch.enable_grad():
        args, kwargs = tree_map_only(Tensor, _leaf, (args, kwargs))
        output = forward(*args, **kwargs)
        outputs = [leaf for leaf in tree_flatten(output)[0] if isinstance(leaf, Tensor)]
        found = {f"output {place}": leaf.detach() for place, leaf in enumerate(outputs)}
        inputs = _inputs(module, (args, kwargs))
        passed = [leaf for leaf in outputs if leaf.requires_grad]
        if inputs and passed:
            # A direction that no normalization is blind to, as it would be to ones, or to what it puts out.
            directions = [torch.cos(3 * leaf.detach()) for leaf in passed]
            gradients = torch.autograd.grad(passed, list(inputs.values()), directions, allow_unused=True)
            for (name, leaf), gradient in zip(inputs.items(), gradients, strict=True):
                found[name] = torch.zeros_like(leaf) if gradient is None else gradient
    return found, tree_map_only(Tensor, Tensor.detach, output)


def _inputs(module: nn.Module, given: Any) -> dict[str, Tensor]:
    """What an output has gradients of, by what they are called."""
    found: dict[str, Tensor] = {}
    for place, leaf in enumerate(tree_flatten(given)[0]):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            found[f"gradient of argument {place}"] = leaf
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            found[f"gradient of {name}"] = parameter
    return found


def _leaf(tensor: Tensor) -> Tensor:
    copy = tensor.detach().clone()
    return copy.requires_grad_(copy.is_floating_point())


def judge(
    wanted: Mapping[str, Tensor], found: Mapping[str, Tensor], tolerance: float | None, computed_in: torch.dtype | None
) -> Verdict:
    """How what was found compares to what is wanted, tensor by tensor; a type that both were `computed_in` counts, too.

    The difference is that of the tensor which is furthest from what it may be.
    """
    if wanted.keys() != found.keys():
        other = sorted(wanted.keys() ^ found.keys())[0]
        return Verdict(float("inf"), 0.0, f"only one of them has {other}")
    worst = Verdict(0.0, tolerance or TOLERANCES[torch.float32])
    for name, here in wanted.items():
        there = found[name]
        if (here.shape, here.dtype) != (there.shape, there.dtype):
            what = f"{name} is {there.dtype} {list(there.shape)}, not {here.dtype} {list(here.shape)}"
            return Verdict(float("inf"), 0.0, what)
        allowed = tolerance or max(TOLERANCES.get(kind, 0.0) for kind in (here.dtype, computed_in) if kind)
        difference = _difference(here, there)
        # By how much of what is allowed it takes: a type that is coarse may be further off and still be right.
        if difference / allowed >= worst.difference / worst.allowed:
            wrong = "" if difference <= allowed else f"{name} differs by {difference:.2g} of its largest number"
            worst = Verdict(difference, allowed, wrong)
    return worst


def _difference(wanted: Tensor, found: Tensor) -> float:
    """The largest difference, of the largest number that is wanted; infinite where only one of them is finite."""
    if not wanted.numel():
        return 0.0
    if not wanted.is_floating_point():
        return 0.0 if torch.equal(wanted, found) else float("inf")
    apart = float((found.double() - wanted.double()).abs().max())
    largest = float(wanted.double().abs().max())
    if apart != apart or (apart and not largest):
        return float("inf")
    return apart / largest if largest else 0.0


def require_alike(wrong: Sequence[str]) -> None:
    """Raises Failure(78) with the first of what ranks have found `wrong`, the same on all of them."""
    for what in wrong:
        if what:
            cause = f"kernels: {what}"
            hint = "mend it; `tolerance` beside its kind says what you allow, of the largest number of a tensor"
            raise Failure(Exit.BAD_RECIPE, cause, hint)


def first_wrong(kernels: Sequence[Kernel]) -> str:
    """What this rank has found wrong; empty where all kernels were compared, and are alike."""
    for kernel in kernels:
        verdict = kernel.verdict
        if verdict is None:
            return f"{kernel.path} was not called by a step's losses, so {kernel.kind} was compared with nothing"
        if verdict.wrong:
            allowed = f", and {verdict.allowed:.2g} is allowed" if verdict.allowed else ""
            return f"{kernel.path} is not what {kernel.kind} makes of it: {verdict.wrong}{allowed}"
    return ""
