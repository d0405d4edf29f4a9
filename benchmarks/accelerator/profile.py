"""Where the time of steps goes: kernels by what they are for, and the gaps between them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

GROUPS = (
    # What torch's compiler makes is called after all that is in it, so it is told by its kind.
    ("sums", r"^triton_(red|per)"),
    ("elementwise", r"^triton_(poi|for)"),
    ("products", r"^triton_tem"),
    ("attention", r"flash|fmha|attention|sdpa|sdp_"),
    ("communication", r"nccl|rccl|c10d|gloo"),
    ("optimizer", r"multi_tensor|fused_(adam|sgd|adagrad)|_foreach"),
    ("products", r"gemm|nvjet|cutlass|matmul|cublas|splitK|::mm\b|::addmm|::bmm|::linear"),
    ("copies", r"memcpy|memset|::copy_|_to_copy|direct_copy|CatArray"),
    ("sums", r"reduce|softmax|norm|nll_loss|cross_entropy|::sum|::mean"),
    ("elementwise", r"elementwise|vectorized|::mul|::add|::silu|::sigmoid|::div|::neg|::fill|index|gather"),
)
"""What kernels are for, by what is in their names; the first that fits counts."""
OTHER = "other"


class Kernel(NamedTuple):
    """One that has run: from when to when, in any unit."""

    name: str
    start: float
    stop: float


def group_of(name: str) -> str:
    """What a kernel is for."""
    for group, pattern in GROUPS:
        if re.search(pattern, name, re.IGNORECASE):
            return group
    return OTHER


def covered(kernels: Iterable[Kernel]) -> float:
    """How long at least one was running."""
    total, until = 0.0, float("-inf")
    for kernel in sorted(kernels, key=lambda each: each.start):
        if kernel.stop > until:
            total += kernel.stop - max(kernel.start, until)
            until = kernel.stop
    return total


def accounts(kernels: Sequence[Kernel], ideal: float) -> dict[str, float]:
    """Shares of the time from the first kernel's start to the last one's end, which add up to 1.

    `ideal` is how long the model's FLOPs take at the device's peak. `MFU` is its share, and `slower products` what
    products and attention take beyond it. Kernels that run beside each other count as `overlap`, below zero.
    """
    span = max(each.stop for each in kernels) - min(each.start for each in kernels)
    taken = {group: 0.0 for group, _ in GROUPS} | {OTHER: 0.0}
    for kernel in kernels:
        taken[group_of(kernel.name)] += kernel.stop - kernel.start
    computed = taken.pop("products") + taken.pop("attention")
    busy, whole = covered(kernels), computed + sum(taken.values())
    found = {"MFU": ideal, "slower products": computed - ideal} | taken
    found |= {"gaps": span - busy, "overlap": busy - whole}
    return {name: part / span for name, part in found.items() if part}


def kernels_of(profiler: Any, *, on_host: bool) -> list[Kernel]:
    """The device's kernels that torch's profiler has seen; on a CPU the operations that no other one has called."""
    from torch.autograd import DeviceType

    found = []
    for event in profiler.events():
        if on_host:
            inside = event.cpu_parent is not None and event.cpu_parent.name.startswith("aten::")
            wanted = event.device_type == DeviceType.CPU and event.name.startswith("aten::") and not inside
        else:
            wanted = event.device_type != DeviceType.CPU and not event.is_user_annotation
        if wanted:
            found.append(Kernel(event.name, event.time_range.start, event.time_range.end))
    return found
