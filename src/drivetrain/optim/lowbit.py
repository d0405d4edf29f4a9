"""AdamW with moments of 8 or 4 bits, by torchao and bitsandbytes.

These keep state in objects of their own: tensor subclasses, numbers, tables that never change. Here a parameter's state
is plain tensors, which a commit takes and a strict loader gives back; before a step they are made what the library
knows, and afterwards they are taken out of it again. Nothing is copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from types import MappingProxyType
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from drivetrain.optim.bases import Shape
from drivetrain.optim.closures import loss_of
from drivetrain.optim.loading import load_typed
from drivetrain.optim.parts import Part, Parts, require_rows
from drivetrain.runtime.quiet import quiet_libraries
from drivetrain.spec.box import Box
from drivetrain.spec.exits import Exit, Failure

Groups = Sequence[dict[str, Any]]
_RATES = ("lr", "weight_decay")
_NONE: Parts = MappingProxyType({})
_TABLE = "qmap"
"""What both libraries call the numbers that codes stand for. They are the library's: no state, and not kept."""


_LEAST = 4096
"""Numbers of the smallest tensor whose moments are quantized, in both libraries."""


@dataclass(frozen=True)
class Blocks:
    """What shares a scale: so many numbers in a row, of which this rank holds parts."""

    size: int
    parts: Parts = field(default_factory=dict)

    def require_whole(self, name: str, part: Part) -> None:
        """Raises Failure(78) where the moments of a part would be others than those of the same numbers in the whole:
        a library looks at nothing but what it is given."""
        require_rows("an optimizer in few bits", name, part)
        shape, ranks = part.box.whole, part.ranks
        numbers = math.prod(shape)
        if ranks == 1 or numbers < _LEAST:
            return
        if shape[0] % ranks or numbers // ranks < _LEAST or numbers // ranks % self.size:
            cause = f"optimizer: {self.size} numbers in a row share a scale, in tensors of {_LEAST} or more"
            shared = f"{ranks} processes share the rows of {name} {shape}, and their parts are not such blocks"
            raise Failure(
                Exit.BAD_RECIPE, f"{cause}; {shared}", "choose adamw, galore with base adamw8bit, or other sizes"
            )


def torchao(
    groups: Groups, *, name: str, options: Mapping[str, Any], blocks: int, compiled: bool, parts: Parts = _NONE
) -> LowBit:
    """torchao's optimizer of this name. Raises Failure(66) where it is not installed, and what `LowBit` raises."""
    kind = getattr(_library("torchao", "torchao.optim"), name)

    def make(groups: Groups) -> torch.optim.Optimizer:
        made = kind(groups, **options)
        # A tensor, as its rates are: a number would be compiled in, and again when it changes.
        for group in made.param_groups:
            group["weight_decay"] = torch.tensor(group["weight_decay"])
        return made

    return LowBit(groups, make, Blocks(blocks, parts), eager=not compiled)


def bitsandbytes(groups: Groups, *, name: str, options: Mapping[str, Any], blocks: int, parts: Parts = _NONE) -> LowBit:
    """bitsandbytes' optimizer of this name.

    Raises Failure(66) where bitsandbytes is not installed, 78 where it cannot move parameters on these devices, and
    what `LowBit` raises.
    """
    kind = getattr(_library("bitsandbytes", "bitsandbytes.optim"), name)
    optimizer = LowBit(groups, lambda groups: kind(groups, **options), Blocks(blocks, parts))
    # It says so by an error of its kernels only, so a small tensor is moved on each of the devices.
    for device in {parameter.device for parameter in _members(groups)}:
        try:
            optimizer.state_boxes(nn.Parameter(torch.zeros(64, 64, device=device)))
        except RuntimeError as error:
            cause = f"optimizer: bitsandbytes does not move parameters on {device}: {_first_line(error)}"
            raise Failure(Exit.BAD_RECIPE, cause, "choose torchao_adamw8bit, or another device") from error
    return optimizer


def _library(package: str, module: str) -> Any:
    if find_spec(package) is None:
        raise Failure(Exit.INPUT_MISSING, f"the optimizer needs {package}", f"pip install 'drivetrain[{package}]'")
    quiet_libraries()
    return import_module(module)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _members(groups: Groups) -> Iterable[nn.Parameter]:
    return chain.from_iterable(group["params"] for group in groups)


class LowBit(torch.optim.Optimizer):
    """Another library's optimizer.

    The state of a parameter is "step" (0-d, on the CPU) and, by the library's own names, the codes (uint8) and scales
    (float32) of its moments; or moments in its type, or float32, where it is too small for codes.
    """

    def __init__(
        self,
        groups: Groups,
        make: Callable[[Groups], torch.optim.Optimizer],
        blocks: Blocks,
        *,
        eager: bool = False,
    ) -> None:
        """`make` builds the library's optimizer from groups of "params", "lr" and "weight_decay"; `eager`: what it
        would compile is not. Raises Failure(78) for parts of parameters that are not whole blocks."""
        super().__init__(groups, {})
        for group in self.param_groups:
            for name, parameter in zip(group["names"], group["params"], strict=True):
                if parameter in blocks.parts:
                    blocks.require_whole(name, blocks.parts[parameter])
        self._parts = blocks.parts
        self._make = make
        self._eager = eager
        # Groups of its own: a library adds to them, and may put tensors in the place of rates.
        its_groups = []
        for group in self.param_groups:
            its_groups.append({"params": group["params"], **{rate: group[rate] for rate in _RATES}})
        self._library = make(its_groups)
        self._slots: dict[tuple[object, ...], dict[str, _Slot]] = {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch does, but codes and scales keep their types."""
        super().load_state_dict(state_dict)
        load_typed(self, state_dict, lambda slot: slot != "step")

    def state_boxes(self, parameter: nn.Parameter) -> dict[str, Box]:
        """What is here of each tensor of a parameter's state."""
        part = self._parts.get(parameter) or Part.of_whole(parameter)
        boxes: dict[str, Box] = {}
        for slot in self._slots_of(parameter).values():
            for name, shape in slot.shapes.items():
                if shape == tuple(parameter.shape):
                    boxes[name] = part.box
                elif shape:  # codes in one row, or scales: as many in each part as in the next
                    boxes[name] = part.rows((shape[0] * part.ranks, *shape[1:]))
                else:
                    boxes[name] = Box.of_whole(shape)
        return boxes

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move every parameter that has a gradient; the closure, which computes the loss, is called once, before.

        Raises Failure(78) where the library compiles and there is no compiler.
        """
        loss = loss_of(closure)
        for own, its in zip(self.param_groups, self._library.param_groups, strict=True):
            for rate in _RATES:
                # What is compiled reads rates from these very tensors.
                if isinstance(its[rate], Tensor):
                    its[rate].fill_(own[rate])
                else:
                    its[rate] = own[rate]
        moving = [parameter for parameter in _members(self.param_groups) if parameter.grad is not None]
        for parameter in moving:
            if state := self.state[parameter]:
                slots = self._slots_of(parameter)
                self._library.state[parameter] = {name: slot.packed(state) for name, slot in slots.items()}
        self._run(self._library)
        # Popped: between steps the plain state is the only one, which a commit may replace at any time.
        for parameter in moving:
            self.state[parameter] = _plain(self._library.state.pop(parameter))
        return loss

    def _slots_of(self, parameter: nn.Parameter) -> dict[str, _Slot]:
        """How the library keeps what belongs to such a parameter, as a step of zeros shows."""
        key = tuple(parameter.shape), parameter.dtype, parameter.device
        if key not in self._slots:
            probe = nn.Parameter(torch.zeros_like(parameter))
            probe.grad = torch.zeros_like(parameter)
            library = self._make([{"params": [probe], **dict.fromkeys(_RATES, 0.0)}])
            self._run(library)
            self._slots[key] = {name: _slot(name, value) for name, value in library.state[probe].items()}
        return self._slots[key]

    def _run(self, library: torch.optim.Optimizer) -> None:
        try:
            with torch.compiler.set_stance("force_eager") if self._eager else nullcontext():
                library.step()
        except TorchDynamoException as error:
            cause = f"optimizer: its kernels cannot be compiled: {_first_line(error)}"
            raise Failure(Exit.BAD_RECIPE, cause, "install a C++ compiler, or set optimizer.compiled: false") from error


@dataclass(frozen=True)
class _Slot:
    """What a library keeps under one name: the plain tensors in it, by name and shape, and how to make it of them."""

    shapes: Mapping[str, Shape]
    packed: Callable[[Mapping[str, Tensor]], Any]


def _slot(name: str, value: Any) -> _Slot:
    shapes = {plain: tuple(tensor.shape) for plain, tensor in _plain({name: value}).items()}
    if name.startswith(_TABLE):
        return _Slot(shapes, lambda state: value)
    if not isinstance(value, Tensor):
        return _Slot(shapes, lambda state: type(value)(state[name]))
    if not is_traceable_wrapper_subclass(value):
        return _Slot(shapes, lambda state: state[name])
    kind, (parts, context), table = type(value), value.__tensor_flatten__(), getattr(value, _TABLE)
    layout = value.shape, value.stride()

    def packed(state: Mapping[str, Tensor]) -> Any:
        tensors = {_TABLE: table}
        for part in parts:
            if part != _TABLE:
                tensors[part] = state[f"{name}_{part}"]
        return kind.__tensor_unflatten__(tensors, context, *layout)

    return _Slot(shapes, packed)


def _plain(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The plain tensors that a library's state consists of, without tables."""
    plain: dict[str, Tensor] = {}
    for name, value in state.items():
        if name.startswith(_TABLE):
            continue
        if not isinstance(value, Tensor):
            plain[name] = torch.tensor(float(value))
        elif is_traceable_wrapper_subclass(value):
            for part in value.__tensor_flatten__()[0]:
                if part != _TABLE:
                    plain[f"{name}_{part}"] = getattr(value, part)
        else:
            plain[name] = value
    return plain
