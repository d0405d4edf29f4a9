"""Torch's meta device in an accelerator's place: a run without a device, in which mixes of devices and waits show.

Fake `cuda` tensors abort in a build of torch without CUDA. Tensors of the meta device have no numbers, so what copies
them to the host finds zeros there, and who asks for one is told 1. What torch has for real devices alone (events,
pinned memory, a generator, an allocator that counts) is stood in for here; all else is what a run executes.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace
from unittest.mock import patch

import torch
import torch._dynamo.device_interface  # classes of torch.Event, which is stood in for below
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import drivetrain
from drivetrain.loop.observe import Observer
from drivetrain.optim.recipe import SGD, Adagrad, Adam

aten = torch.ops.aten
SOURCES, TORCH = (str(Path(module.__file__).parent) for module in (drivetrain, torch))
DEVICE = torch.device("meta", 0)
AUTOCAST, IS_AUTOCAST_ENABLED, GENERATOR = torch.autocast, torch.is_autocast_enabled, torch.Generator
OF_BOTH = frozenset({aten.copy_, aten._to_copy, aten.set_, aten.resize_as_})
"""What may have tensors of the host and of the device: a copy."""
SCALARS = frozenset({aten.fill_, aten.fill, aten.index_put_, aten.index_put, aten._index_put_impl_, aten.masked_fill_})
"""What takes a single number of the host's, beside all that is pointwise."""
UNKNOWN_SIZES = frozenset(
    {aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim, aten.unique_consecutive, aten.repeat_interleave}
)
"""What makes tensors as long as numbers say, so that the host waits for these."""
CHOOSING = frozenset({aten.index, aten.index_put, aten.index_put_})
"""The same, where a mask is given."""
FUSED = frozenset({aten._fused_adam_, aten._fused_adamw_, aten._fused_sgd_, aten._fused_adagrad_})
"""Optimizers in one kernel, which skip a step by themselves."""


class MixedDevicesError(Exception):
    """An operation was given tensors of the host and of the device."""


class StandIn(TorchDispatchMode):
    """Refuses what a device would refuse, and keeps a count of the places at which the host waits within steps."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.operations = 0
        """Those on the device, within steps."""
        self.stepping = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        on_device = [tensor for tensor in tensors if tensor.is_meta]
        kwargs.pop("pin_memory", None)
        if not on_device and torch.device(kwargs.get("device") or "cpu").type == "cpu":
            return self._from_host(func, args, kwargs)
        self.operations += self.stepping
        operation = func._overloadpacket
        if operation is aten._local_scalar_dense:
            self._wait()
            return _one(args[0])
        if operation is aten.equal:
            self._wait()
            return False
        if operation in OF_BOTH:
            return self._copied(func, args, kwargs)
        self._require_one_device(func, tensors)
        if operation in FUSED:  # without a meta kernel; it changes numbers alone
            return None
        if operation in CHOOSING and any(_is_mask(index) for index in args[1]):
            return self._chosen(func, args, kwargs)
        if operation in UNKNOWN_SIZES:
            self._wait()
            return _of_known_size(func, args, kwargs)
        return func(*args, **kwargs)

    def _from_host(self, func, args, kwargs):
        if func._overloadpacket is aten.is_pinned:
            return False
        if func._overloadpacket is aten._pin_memory:
            return args[0].clone()
        return func(*args, **kwargs)

    def _copied(self, func, args, kwargs):
        """A copy; one between host and device waits, unless it says that it does not."""
        if func is aten._to_copy.default:
            source, target = args[0], torch.device(kwargs.get("device") or args[0].device)
            self._cross(source, target, kwargs.get("non_blocking"))
            if source.is_meta and target.type == "cpu":
                return torch.zeros(source.shape, dtype=kwargs.get("dtype") or source.dtype)
        elif func is aten.copy_.default:
            target, source = args[:2]
            self._cross(source, target.device, args[2] if len(args) > 2 else kwargs.get("non_blocking"))
            if not target.is_meta:
                return target.zero_()
        return func(*args, **kwargs)

    def _cross(self, source, target, non_blocking):
        # A single number of the host's goes along with the kernel that takes it.
        alone = source.ndim == 0 and not source.is_meta
        if source.device.type != target.type and source.numel() and not non_blocking and not alone:
            self._wait()

    def _chosen(self, func, args, kwargs):
        """What is chosen by a mask: its size waits, but for a single number that is put there."""
        if func._overloadpacket is not aten.index:
            if args[2].ndim:
                self._wait()
            return args[0]
        self._wait()
        return _of_known_size(func, args, kwargs)

    def _require_one_device(self, func, tensors):
        for tensor in tensors:
            if tensor.is_meta:
                continue
            scalar = tensor.ndim == 0 and (torch.Tag.pointwise in func.tags or func._overloadpacket in SCALARS)
            if not scalar:
                shapes = [f"{each.device.type} {list(each.shape)}" for each in tensors]
                raise MixedDevicesError(f"{func} of tensors of two devices ({', '.join(shapes)}) at {place()[1]}")

    def _wait(self):
        if self.stepping:
            self.waits[place()[0]] += 1


def _one(tensor: Tensor) -> bool | int | float:
    if tensor.dtype == torch.bool:
        return True
    return 1.0 if tensor.is_floating_point() else 1


def _is_mask(index) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def _of_known_size(func, args, kwargs):
    """What it makes of zeros and ones of the host's, on the device."""
    on_host = partial(tree_map_only, Tensor, lambda tensor: torch.ones(tensor.shape, dtype=tensor.dtype))
    found = func(*on_host(args), **on_host(kwargs))
    return tree_map_only(Tensor, lambda tensor: torch.empty_like(tensor, device="meta"), found)


def place() -> tuple[str, str]:
    """The innermost function of ours that is at work, and the innermost line that is not torch's."""
    ours, line = "outside", ""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path != __file__ and not line and not path.startswith(TORCH):
            line = f"{path}:{frame.f_lineno}"
        if path.startswith(SOURCES):
            return f"{path[len(SOURCES) + 1 :]}:{frame.f_code.co_name}", line
        frame = frame.f_back
    return ours, line


def _nothing(*_args, **_settings) -> int:
    return 0


def _autocast(kind, *args, **kwargs):
    """Torch has none for the meta device, so what is computed in bf16 on a device is computed in fp32 there."""
    return nullcontext() if kind == "meta" else AUTOCAST(kind, *args, **kwargs)


class _Instances(type):
    def __instancecheck__(cls, value):
        return isinstance(value, GENERATOR)


class _Generator(metaclass=_Instances):
    """Torch has none for the meta device; what it draws there is not looked at."""

    def __new__(cls, device="cpu"):
        return GENERATOR("cpu" if torch.device(device).type == "meta" else device)


def _is_autocast_enabled(kind):
    return kind != "meta" and IS_AUTOCAST_ENABLED(kind)


@contextmanager
def stand_in_device():
    """While entered, runs in this process are on a device that is not there. The `StandIn` that watches it."""
    event = SimpleNamespace(record=_nothing, synchronize=_nothing, query=lambda: True)
    module = SimpleNamespace(default_generators=[torch.Generator()], get_device_name=lambda _device=None: "stand-in")
    seen, main = StandIn(), threading.current_thread()
    before, after = Observer.before, Observer.after

    def begin(self, step):
        seen.stepping = threading.current_thread() is main
        before(self, step)

    def end(self, now):
        after(self, now)
        seen.stepping = False

    with ExitStack() as stack:
        for owner, name, value in (
            (torch, "meta", module),
            (torch, "Event", lambda *_, **__: event),
            (torch, "autocast", _autocast),
            (torch, "is_autocast_enabled", _is_autocast_enabled),
            (torch, "Generator", _Generator),
            (torch.accelerator, "set_device_index", _nothing),
            (torch.accelerator, "synchronize", _nothing),
            (torch.accelerator, "memory_allocated", _nothing),
            (torch.accelerator, "memory_reserved", _nothing),
            (torch.accelerator, "max_memory_allocated", _nothing),
            (sys.modules["torch.optim.optimizer"], "_get_fused_kernels_supported_devices", lambda: ["cpu", "meta"]),
            (Adam, "fused_on", Adam.fused_on | {"meta"}),
            (SGD, "fused_on", SGD.fused_on | {"meta"}),
            (Adagrad, "fused_on", Adagrad.fused_on | {"meta"}),
            (Observer, "before", begin),
            (Observer, "after", end),
        ):
            stack.enter_context(patch.object(owner, name, value, create=name == "meta"))
        stack.enter_context(patch("drivetrain.runtime.device.choose", lambda name, rank: DEVICE))
        stack.enter_context(seen)
        yield seen
