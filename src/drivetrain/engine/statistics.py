"""What one step tells about gradients and weights, measured now and then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drivetrain.data.batch_reader import MicroBatch
from drivetrain.engine.placement import Placement
from drivetrain.engine.recipe import Statistics
from drivetrain.ledger.records import Histogram
from drivetrain.optim.network_optimizer import NetworkOptimizer
from drivetrain.runtime.group import Group

_BINS = 64


class Probe:
    """Measures one step: made before it, asked after it, on every rank alike."""

    def __init__(
        self, settings: Statistics, network_optimizers: Mapping[str, NetworkOptimizer], placement: Placement
    ) -> None:
        self._placement = placement
        self.gradients = settings.gradients
        self._settings = settings
        self._network_optimizers = network_optimizers
        self._before: dict[str, list[Tensor]] = {}
        self._small: dict[str, dict[int, tuple[float, int]]] = {}
        if settings.weights or settings.histograms:
            for name, network_optimizer in network_optimizers.items():
                self._before[name] = [parameter.detach().clone() for parameter in self._own(network_optimizer)]

    def look(
        self, network_optimizers: Sequence[NetworkOptimizer], micro: MicroBatch, samples: int, scale: float
    ) -> None:
        """The gradients of one micro-batch, where its loss is a part of the mean over `samples`, times `scale`."""
        # Its loss was divided by the whole batch's samples: so much larger is the gradient of its own mean.
        factor = samples / micro.size / scale
        for network_optimizer in network_optimizers:
            found = [p.grad for p in network_optimizer.weights if p.grad is not None]
            small = _square(found) * factor**2, micro.size
            self._small.setdefault(network_optimizer.network, {})[micro.lane] = small

    def result(self, norms: Mapping[str, float], samples: int) -> dict[str, dict[str, Any]]:
        """What the ledger keeps, by network. `norms` are those of the whole batch of `samples`; collective."""
        group = self._placement.data
        found: dict[str, dict[str, Any]] = {name: {} for name in self._network_optimizers}
        if self._settings.weights:
            for name, before in self._before.items():
                found[name] |= self._change(before, self._own(self._network_optimizers[name]))
        if self.gradients:
            own = {name: list(small.values()) for name, small in self._small.items()}
            ranks = group.gather_json(own)
            for name, norm in norms.items():
                parts: list[Sequence[float]] = []
                for rank in ranks:
                    parts += rank.get(name, ())
                found[name] |= noise(parts, norm**2, samples)
        return found

    def _own(self, network_optimizer: NetworkOptimizer) -> list[nn.Parameter]:
        """The parameters, or parts of them, that no other rank counts."""
        weights, lasting = network_optimizer.weights, network_optimizer.lasting
        pairs = zip(weights, lasting, strict=True)
        return [kept for weight, kept in pairs if self._placement.counts(weight)]

    def _change(self, before: Sequence[Tensor], parameters: Sequence[Tensor]) -> dict[str, float]:
        """Norm of the weights before the step, and of what the step has added."""
        squares = [_square(list(before)), _square(_changes(before, parameters))]
        if not self._placement.replicated:
            ranks = self._placement.group.gather_json(squares)
            squares = [sum(each) for each in zip(*ranks, strict=True)]
        return {"weights": squares[0] ** 0.5, "change": squares[1] ** 0.5}

    def histograms(self) -> dict[str, dict[str, Histogram]]:
        """By network, of the `weights` before the step and of their `change`; empty where nobody asked for it. Where
        tensors are cut, every rank calls it."""
        found: dict[str, dict[str, Histogram]] = {}
        if not self._settings.histograms:
            return found
        for name, before in self._before.items():
            changes = _changes(before, self._own(self._network_optimizers[name]))
            ranks = Group() if self._placement.replicated else self._placement.group
            found[name] = {"weights": histogram(before, ranks), "change": histogram(changes, ranks)}
        return found


def histogram(tensors: Sequence[Tensor], group: Group) -> Histogram:
    """How all finite numbers of the tensors of all ranks in a group are distributed, in bins of equal width from the
    smallest to the largest; half a unit to both sides where all are equal."""
    arrays = [tensor.detach().float().flatten().cpu().numpy() for tensor in tensors]
    finite = [array[np.isfinite(array)] for array in arrays]
    finite = [array for array in finite if array.size]
    ends = [[float(array.min()), float(array.max())] for array in finite]
    ends = list(chain.from_iterable(group.gather_json(ends)))
    low = min((end[0] for end in ends), default=0.0)
    high = max((end[1] for end in ends), default=0.0)
    if low == high:  # bins must have a width
        low, high = low - 0.5, high + 0.5
    counts = np.zeros(_BINS, np.int64)
    for array in finite:
        counts += np.histogram(array, _BINS, (low, high))[0]
    totals = np.sum(group.gather_json(counts.tolist()), axis=0)
    return Histogram(low=low, high=high, counts=tuple(totals.tolist()))


def noise(parts: Sequence[Sequence[float]], whole: float, samples: int) -> dict[str, float]:
    """Unbiased estimates of the squared size of the true gradient (`signal`) and of the trace of one sample's gradient
    covariance (`noise`); their ratio noise / signal, over many steps, is the batch size up to which a larger one pays.

    McCandlish et al. 2018, arXiv 1812.06162, appendix A.1. `parts` are (squared norm, samples) of gradients of small
    batches, `whole` that of `samples` together. Empty where the small batches are not smaller, or not alike.
    """
    sizes = {int(size) for _, size in parts}
    if len(sizes) != 1:
        return {}
    (size,) = sizes
    if size == samples:
        return {}
    small = sum(square for square, _ in parts) / len(parts)
    return {
        "signal": (samples * whole - size * small) / (samples - size),
        "noise": (small - whole) / (1 / size - 1 / samples),
    }


def _changes(before: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
    return [_wide(now.detach()) - _wide(then) for now, then in zip(parameters, before, strict=True)]


def _wide(tensor: Tensor) -> Tensor:
    """bf16 numbers as fp32: sums and differences of them would be rounded."""
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def _square(tensors: list[Tensor]) -> float:
    """The squared 2-norm of all numbers together."""
    if not tensors:
        return 0.0
    return float(torch.stack(torch._foreach_norm(list(map(_wide, tensors)), 2.0)).double().square().sum())
