"""The optimizers that GaLore projects around: how tensors move, given gradients and what is remembered of earlier ones.

Each moves what it is given in place: weights themselves, or zeros of the shape of projected gradients, which hold the
projected updates afterwards. None decays weights; `decays_last` is whether a decay comes after the update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from drivetrain.optim.quantized import BLOCK, blocks_of, quantize, restored
from drivetrain.optim.recipe import ProjectedAdafactor, ProjectedAdamW, ProjectedSGD

Shape = tuple[int, ...]
State = Mapping[str, Tensor]


class Base(Protocol):
    """An optimizer without parameters of its own."""

    decays_last: ClassVar[bool]
    squares: ClassVar[frozenset[str]]
    """The names of second moments."""
    dtypes: ClassVar[Mapping[str, torch.dtype]]
    """Of slots that are not of the weights' type."""

    def slots(self, shape: Shape) -> dict[str, Shape]:
        """What it remembers of a tensor: names and shapes; all begin with zeros."""
        ...

    def move(self, tensors: list[Tensor], grads: list[Tensor], states: Sequence[State], age: int, lr: float):
        """Move the tensors and their states by one step. `age` is that of the states with this step: 1, 2, ..."""
        ...

    def inseparable(self, shape: Shape, parts: int) -> str:
        """Why the rows of such a tensor cannot move apart where so many processes share them, each as many as the next
        and the last ones what is left; "" where they can."""
        ...

    def moments(self, state: State) -> dict[str, Tensor]:
        """What is remembered of a tensor, as numbers."""
        ...

    def remember(self, state: State, moments: State) -> None:
        """Put other numbers in their place."""
        ...


class _Plain:
    """A base whose slots are its moments, and where each number moves by itself."""

    dtypes: ClassVar[Mapping[str, torch.dtype]] = {}

    def inseparable(self, shape: Shape, parts: int) -> str:
        """Never."""
        return ""

    def moments(self, state: State) -> dict[str, Tensor]:
        """The slots."""
        return dict(state)

    def remember(self, state: State, moments: State) -> None:
        """Slot by slot."""
        for slot, moment in moments.items():
            state[slot].copy_(moment)


class AdamW(_Plain):
    """AdamW: lr * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + eps). As in GaLore's own, eps is added before the
    bias correction, so torch's kernel, which adds it afterwards, gets eps / sqrt(1 - beta2^t)."""

    decays_last = True
    squares = frozenset({"exp_avg_sq"})

    def __init__(self, settings: ProjectedAdamW) -> None:
        self._settings = settings

    def slots(self, shape: Shape) -> dict[str, Shape]:
        """Both moments."""
        return {"exp_avg": shape, "exp_avg_sq": shape}

    def move(self, tensors: list[Tensor], grads: list[Tensor], states: Sequence[State], age: int, lr: float) -> None:
        """By torch's fused kernel."""
        beta1, beta2 = self._settings.betas
        # torch's kernel counts each tensor's steps, and adds this one; here all tensors are of one age.
        steps = torch.full((len(tensors),), age - 1.0, device=tensors[0].device).unbind()
        means = [state["exp_avg"] for state in states]
        squares = [state["exp_avg_sq"] for state in states]
        adamw(
            tensors,
            grads,
            means,
            squares,
            [],
            list(steps),
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=lr,
            weight_decay=0.0,
            eps=self._settings.eps / math.sqrt(1.0 - beta2**age),
            maximize=False,
        )


class AdamW8bit(AdamW):
    """AdamW whose moments are remembered in 8 bits; tensors of fewer than `LEAST` numbers keep theirs as they are."""

    dtypes: ClassVar[Mapping[str, torch.dtype]] = {
        "exp_avg_codes": torch.uint8,
        "exp_avg_scales": torch.float32,
        "exp_avg_sq_codes": torch.uint8,
        "exp_avg_sq_scales": torch.float32,
    }
    LEAST = 4096

    def slots(self, shape: Shape) -> dict[str, Shape]:
        """Of both moments a code for each number, and a scale for each block."""
        if math.prod(shape) < self.LEAST:
            return super().slots(shape)
        scales = (blocks_of(math.prod(shape)),)
        return {
            "exp_avg_codes": shape,
            "exp_avg_scales": scales,
            "exp_avg_sq_codes": shape,
            "exp_avg_sq_scales": scales,
        }

    def inseparable(self, shape: Shape, parts: int) -> str:
        """Numbers that share a scale are quantized together, so each part must be whole blocks."""
        numbers = math.prod(shape)
        rows = -(-shape[0] // parts)
        if numbers < self.LEAST or rows * (numbers // shape[0]) % BLOCK == 0:
            return ""
        return f"it has a scale for each {BLOCK} numbers in a row, and some lie in two parts"

    def move(self, tensors: list[Tensor], grads: list[Tensor], states: Sequence[State], age: int, lr: float) -> None:
        """One tensor after the other, so that the moments of one only are there as numbers."""
        for tensor, grad, state in zip(tensors, grads, states, strict=True):
            if "exp_avg" in state:
                super().move([tensor], [grad], [state], age, lr)
                continue
            # In float32, as the moments are for a while: the kernel takes tensors of one type.
            moments, moved = self.moments(state), tensor.float()
            super().move([moved], [grad.float()], [moments], age, lr)
            tensor.copy_(moved)
            self.remember(state, moments)

    def moments(self, state: State) -> dict[str, Tensor]:
        """Both, as float32."""
        if "exp_avg" in state:
            return super().moments(state)
        return {
            "exp_avg": restored(state["exp_avg_codes"], state["exp_avg_scales"], signed=True),
            "exp_avg_sq": restored(state["exp_avg_sq_codes"], state["exp_avg_sq_scales"], signed=False),
        }

    def remember(self, state: State, moments: State) -> None:
        """As the nearest codes."""
        if "exp_avg" in state:
            super().remember(state, moments)
            return
        for name, moment in moments.items():
            quantize(moment, state[f"{name}_codes"], state[f"{name}_scales"], signed=name not in self.squares)


class SGD(_Plain):
    """Stochastic gradient descent: velocity = momentum * velocity + gradient, as torch has it."""

    decays_last = False
    squares = frozenset()

    def __init__(self, settings: ProjectedSGD) -> None:
        self._momentum = settings.momentum

    def slots(self, shape: Shape) -> dict[str, Shape]:
        """The velocity, where there is one."""
        return {"momentum_buffer": shape} if self._momentum else {}

    def move(self, tensors: list[Tensor], grads: list[Tensor], states: Sequence[State], age: int, lr: float) -> None:
        """All tensors at once."""
        if self._momentum:
            # They begin with zeros, so the first one is the gradient, as torch's is.
            velocities = [state["momentum_buffer"] for state in states]
            torch._foreach_mul_(velocities, self._momentum)
            torch._foreach_add_(velocities, grads)
            grads = velocities
        torch._foreach_add_(tensors, grads, alpha=-lr)


class Adafactor(_Plain):
    """Adafactor (arXiv 1804.04235, algorithm 4) with a step size that is lr itself: of a matrix's second moments the
    means of rows and columns; updates whose RMS is above a threshold are scaled down to it."""

    decays_last = False
    squares = frozenset({"row", "col", "exp_avg_sq"})

    def __init__(self, settings: ProjectedAdafactor) -> None:
        self._settings = settings

    def slots(self, shape: Shape) -> dict[str, Shape]:
        """Means over the last dimension and over the one before it; all of a vector; the mean update, if wanted."""
        mean = {"exp_avg": shape} if self._settings.momentum else {}
        if len(shape) < 2:
            return {"exp_avg_sq": shape} | mean
        return {"row": (*shape[:-1], 1), "col": (*shape[:-2], 1, shape[-1])} | mean

    def inseparable(self, shape: Shape, parts: int) -> str:
        """Always."""
        return "it takes means over whole tensors"

    def move(self, tensors: list[Tensor], grads: list[Tensor], states: Sequence[State], age: int, lr: float) -> None:
        """One tensor after the other."""
        fresh = age**self._settings.beta2_decay
        for tensor, grad, state in zip(tensors, grads, states, strict=True):
            update = grad * self._scales(grad.square().add_(self._settings.eps), state, fresh)
            rms = torch.linalg.vector_norm(update) / math.sqrt(max(1, update.numel()))
            update.mul_(lr / (rms / self._settings.threshold).clamp_(min=1.0))
            if self._settings.momentum:
                update = state["exp_avg"].lerp_(update, 1.0 - self._settings.momentum)
            tensor.sub_(update)

    def _scales(self, squares: Tensor, state: State, fresh: float) -> Tensor:
        """1 / sqrt(second moment), to be multiplied with; `fresh` is the share of the new squares."""
        if "row" not in state:
            return state["exp_avg_sq"].lerp_(squares, fresh).rsqrt()
        row = state["row"].lerp_(squares.mean(-1, keepdim=True), fresh)
        col = state["col"].lerp_(squares.mean(-2, keepdim=True), fresh)
        return (row / row.mean(-2, keepdim=True)).rsqrt_() * col.rsqrt()
