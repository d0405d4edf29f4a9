"""What a loss function may return, made uniform: named sums with the unit each is averaged over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from drivetrain.spec.exits import Exit, Failure


class Term(NamedTuple):
    """One loss of one micro-batch: `value * times` is a sum over the unit `over`; its global mean has this weight."""

    value: Tensor
    over: str = "samples"
    weight: float = 1.0
    times: int = 1


class Losses(dict[str, Term]):
    """Named sums: `Losses(loss=(cross_entropy_sum, "tokens"), z=(z_sum, "tokens", 1e-4))`.

    Each is (0-d tensor, unit, weight); units are keys of the task's `counts`, "samples" always being one.
    What is minimized is the weighted sum of the global means.
    """

    def __init__(self, **sums: tuple[Tensor] | tuple[Tensor, str] | tuple[Tensor, str, float]) -> None:
        super().__init__({name: Term(*given) for name, given in sums.items()})  # type: ignore[arg-type]


def as_losses(result: Tensor | Losses, size: int) -> Mapping[str, Term]:
    """A scalar tensor means: the mean over the `size` samples of the micro-batch.

    Raises Failure(70) where a loss is no scalar tensor.
    """
    losses = result if isinstance(result, Losses) else {"loss": Term(result, times=size)}
    for name, term in losses.items():
        if not isinstance(term.value, Tensor) or term.value.ndim:
            found: Any = type(term.value).__name__
            if isinstance(term.value, Tensor):
                found = list(term.value.shape)
            cause = f"the task's loss {name!r} is no 0-d tensor, but {found}"
            raise Failure(Exit.INTERNAL, cause, "return the mean over the samples, or Losses(name=(sum, unit))")
    return losses


def objective(losses: Mapping[str, Term], counts: Mapping[str, int]) -> Tensor:
    """The scalar for backward: sums over *global* counts, so that micro-batches and processes simply add up.

    Raises KeyError for a unit that `counts` does not have, ValueError where there is no loss.
    """
    total = None
    for name, (value, over, weight, times) in losses.items():
        if over not in counts:
            raise KeyError(f"loss {name!r} is a sum over {over!r}, but counts() gives {sorted(counts)}")
        # A unit of which no rank has any adds zero to the gradients, and not what a division by zero would.
        factor = weight * times / counts[over] if counts[over] else 0.0
        part = value if factor == 1.0 else value * factor
        if total is None:
            total = part
        else:
            total = total + part
    if total is None:
        raise ValueError("the loss function returned no loss")
    return total
