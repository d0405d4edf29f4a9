"""Sees every block of memory that torch's operations make, and when it goes; of real tensors or of fake ones."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.placement_types import _StridedShard
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from drivetrain.plan.memory import KINDS, Event, Timeline, stretches
from drivetrain.runtime.heartbeat import Heartbeat

ALIGNMENT = 64
"""Bytes that torch's allocator on the CPU rounds up to."""
_OPEN = -1
_OF_SHAPES = (
    (DeviceMesh, "__init__"),
    (ShardingPropagator, "_propagate_tensor_meta_non_cached"),
    (_StridedShard, "local_shard_size_and_offset"),
)
"""What torch works out of shapes and ranks alone, by tensors that are no part of a step. It looks at their numbers."""
_SENT_AND_KEPT = ("c10d", "fsdp")
_FUNCTIONAL = "_c10d_functional"


class _Block:
    """A storage, with the phase in which it was made."""

    __slots__ = ("kind", "number", "phase", "reference", "size")

    def __init__(self, number: int, size: int, phase: str) -> None:
        self.number = number
        self.size = size
        self.phase = phase
        self.kind = _OPEN
        self.reference: weakref.ref[torch.UntypedStorage] | None = None


class Meter(TorchDispatchMode):
    """Counts each storage once, from the operation that makes it, or is first given it, to its end.

    `flops` and `sent` (bytes that collectives carry) add up. Where `answers`, tensors have no numbers, and
    who asks for one is given 1, as a loss or a norm may be.
    """

    def __init__(self, *, answers: bool = False) -> None:
        super().__init__()
        self.flops = 0
        self.sent = 0
        self._answers = answers
        self._phase = "start"
        self._events: list[Event] = []
        self._marks: list[tuple[int, str]] = [(0, "start")]
        self._blocks: list[_Block] = []
        self._ended_in: dict[int, str] = {}
        self._alive: dict[int, _Block] = {}

    def enter(self, phase: str) -> None:
        """What is made from now on belongs to this phase."""
        if phase != self._phase:
            self._phase = phase
            self._marks.append((len(self._events), phase))

    def mark(self) -> int:
        """The place of the next event."""
        return len(self._events)

    def name(self, kind: str, tensors: Iterable[Tensor], *, anew: bool = True) -> None:
        """Say what these tensors are for; unless `anew` only of those of which nobody has said it."""
        for tensor in tensors:
            block = self._hold(_plain(tensor))
            if block is not None and (anew or block.kind == _OPEN):
                block.kind = KINDS.index(kind)

    def timeline(self, start: int, stop: int) -> Timeline:
        """What was between two marks."""
        kinds = [self._kind(block) for block in self._blocks]
        before = [0] * len(KINDS)
        for block, change in self._events[:start]:
            before[kinds[block]] += change
        marks = [(max(at, start) - start, phase) for at, phase in self._marks if at < stop]
        # Of those that begin before it only the last one is still on.
        while len(marks) > 1 and marks[1][0] == 0:
            marks.pop(0)
        within = self._events[start:stop]
        return Timeline(tuple(before), within, kinds, stretches(marks, stop - start))

    def __enter__(self) -> Meter:
        self._patches = ExitStack()
        resize = torch.UntypedStorage.resize_
        # FSDP frees and takes back the memory of whole parameters so: no operation that a mode sees.
        self._patches.enter_context(replaced(torch.UntypedStorage, "resize_", _watched(resize, self._resized)))
        for owner, name in _OF_SHAPES:
            self._patches.enter_context(replaced(owner, name, _unseen(getattr(owner, name))))
        super().__enter__()
        return self

    def __exit__(self, *told: Any) -> None:
        super().__exit__(*told)
        self._patches.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(_wraps, types)):
            return NotImplemented  # what it is made of comes here next
        kwargs = kwargs or {}
        if self._answers and func is torch.ops.aten._local_scalar_dense.default:
            return _one(args[0])
        result = func(*args, **kwargs)
        given, made = _tensors((args, kwargs)), _tensors(result)
        for tensor in (*given, *made):
            self._hold(tensor)
        self.flops += _flops_of(func._overloadpacket, args, kwargs, result)
        self._look_at_collective(func, args, given, made)
        return result

    def _look_at_collective(self, func: Any, args: Any, given: list[Tensor], made: list[Tensor]) -> None:
        """Name what collectives, and FSDP around them, work on."""
        if func.namespace not in (*_SENT_AND_KEPT, _FUNCTIONAL):
            return
        if func.namespace != "fsdp":
            self.sent += max(_bytes(given), _bytes(made))
        if func._overloadpacket is getattr(torch.ops.fsdp, "chunk_cat", None):
            # Whole gradients, of which each rank keeps a part.
            self.name("gradients", _tensors(args[0]), anew=False)
        self.name("communication", made if func.namespace == _FUNCTIONAL else [*given, *made], anew=False)

    def _hold(self, tensor: Tensor) -> _Block | None:
        """The block of a tensor, which begins here where it is new; None where it has no memory."""
        # What wraps other tensors, such as the result of a collective that is under way, has none of its own.
        if tensor.device.type == "meta" or tensor.layout is not torch.strided or _wraps(type(tensor)):
            return None
        storage = tensor.untyped_storage()
        key = id(storage)
        block = self._alive.get(key)
        if block is None:
            block = _Block(len(self._blocks), 0, self._phase)
            block.reference = weakref.ref(storage, lambda _, key=key: self._end(key))
            self._blocks.append(block)
            self._alive[key] = block
            self._change(block, _rounded(storage.nbytes()))
        return block

    def _end(self, key: int) -> None:
        block = self._alive.pop(key, None)
        if block is not None:
            self._ended_in[block.number] = self._phase
            self._change(block, 0)

    def _resized(self, storage: torch.UntypedStorage, size: int) -> None:
        if block := self._alive.get(id(storage)):
            self._change(block, _rounded(size))

    def _change(self, block: _Block, size: int) -> None:
        if size != block.size:
            self._events.append(Event(block.number, size - block.size))
            block.size = size

    def _kind(self, block: _Block) -> int:
        """What a block is for: what it was named, or what follows from when it was there."""
        if block.kind != _OPEN:
            return block.kind
        ended = self._ended_in.get(block.number)
        if block.phase == "forward":
            return KINDS.index("temporary" if ended == "forward" else "activations")
        if block.phase == "backward" and ended != "backward":
            return KINDS.index("gradients")
        if block.phase == "data":
            return KINDS.index("activations")
        return KINDS.index("temporary")


class MeteredHeartbeat(Heartbeat):
    """Tells a meter of the phases that an engine goes through."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def enter(self, phase: str) -> None:
        """The process is at this phase from now on."""
        super().enter(phase)
        self._meter.enter(phase)


def _flops_of(operation: Any, args: Any, kwargs: Any, result: Any) -> int:
    """A multiplication and an addition are two. What a causal mask hides is counted."""
    if operation in flop_registry:
        return flop_registry[operation](*args, **kwargs, out_val=result)
    # Those of the CPU are not in torch's table.
    if operation is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu:
        return sdpa_flop_count(*[each.shape for each in args[:3]])
    if operation is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward:
        return sdpa_backward_flop_count(*[each.shape for each in args[:4]])
    return 0


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _wraps(kind: type) -> bool:
    return hasattr(kind, "__tensor_flatten__")


def _plain(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _one(tensor: Tensor) -> bool | int | float:
    if tensor.dtype == torch.bool:
        return True
    return 1.0 if tensor.is_floating_point() else 1


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """While entered, an attribute is another one."""
    inherited, before = name not in vars(owner), getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _unseen(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method whose operations no mode sees."""

    @wraps(method)
    def unseen(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return method(*args, **kwargs)

    return unseen


def _watched(
    resize: Callable[..., Any], resized: Callable[[torch.UntypedStorage, int], None]
) -> Callable[[torch.UntypedStorage, int], Any]:
    def watched(storage: torch.UntypedStorage, size: int) -> Any:
        result = resize(storage, size)
        resized(storage, size)
        return result

    return watched
