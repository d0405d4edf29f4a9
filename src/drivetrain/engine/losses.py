"""What a loss function may return, made uniform: named sums with the unit each is averaged over."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from drivetrain.runtime.mistakes import misused, returned

_RETURNED = "return the mean over the samples, or Losses(name=(sum, unit))"


class Term(NamedTuple):
    """One loss of one micro-batch: `value * times` is a sum over the unit `over`; its global mean has this weight."""

    value: Tensor
    over: str = "samples"
    weight: float = 1.0
    times: int = 1


@runtime_checkable
class SplitLoss(Protocol):
    """A task whose loss is made in two parts, so that a network's stages can lie between them."""

    def inputs(self, batch: Any) -> Any:
        """What the network is called with: a tuple of arguments."""
        ...

    def loss_from(self, output: Any, batch: Any) -> Tensor | Losses:
        """The loss, of what the network has made of them."""
        ...


class Losses(dict[str, Term]):
    """Named sums: `Losses(loss=(cross_entropy_sum, "tokens"), z=(z_sum, "tokens", 1e-4))`.

    Each is (0-d tensor, unit, weight); units are keys of the task's `counts`, "samples" always being one.
    What is minimized is the weighted sum of the global means.
    """

    def __init__(self, **sums: tuple[Tensor] | tuple[Tensor, str] | tuple[Tensor, str, float]) -> None:
        for name, given in sums.items():
            if not isinstance(given, tuple):
                cause = f"Losses({name}=...) takes a tuple, and was given a {type(given).__name__}"
                raise misused(cause, "give (sum, unit), or (sum, unit, weight)")
        super().__init__({name: Term(*given) for name, given in sums.items()})  # type: ignore[arg-type]


def as_losses(
    result: Tensor | Losses, size: int, units: Collection[str], loss: Callable[..., Any]
) -> Mapping[str, Term]:
    """A scalar tensor means: the mean over the `size` samples of the micro-batch.

    Raises Failure(70), which names the function `loss`, where there is no loss, one is no scalar tensor, or one is a
    sum over none of the `units`.
    """
    losses = result if isinstance(result, Losses) else {"loss": Term(result, times=size)}
    for name, term in losses.items():
        if not isinstance(term.value, Tensor) or term.value.ndim:
            found: Any = type(term.value).__name__
            if isinstance(term.value, Tensor):
                found = list(term.value.shape)
            cause = f"the task's loss {name!r} is no 0-d tensor, but {found}"
            raise returned(loss, cause, _RETURNED)
        if term.over not in units:
            cause = f"the task's loss {name!r} is a sum over {term.over!r}, and counts() gives {', '.join(units)}"
            raise returned(loss, cause, "name one of these, or let counts() give it")
    if not losses:
        raise returned(loss, "the task's loss is Losses() without a name", _RETURNED)
    return losses


def require_gradient(losses: Mapping[str, Term], loss: Callable[..., Any]) -> None:
    """Raises Failure(70), which names the function `loss`, where none of them has a gradient."""
    for term in losses.values():
        if term.value.requires_grad:
            return
    cause = f"the task's loss ({', '.join(losses)}) depends on no parameter that trains: it has no gradient"
    raise returned(loss, cause, "compute it of the networks, without detach, item, argmax and torch.no_grad")


def objective(losses: Mapping[str, Term], counts: Mapping[str, int]) -> Tensor:
    """The scalar for backward: sums over *global* counts, so that micro-batches and processes simply add up.

    There is a loss, and `counts` has the unit of each: `as_losses` sees to that.
    """
    total = None
    for value, over, weight, times in losses.values():
        # A unit of which no rank has any adds zero to the gradients, and not what a division by zero would.
        factor = weight * times / counts[over] if counts[over] else 0.0
        part = value if factor == 1.0 else value * factor
        if total is None:
            total = part
        else:
            total = total + part
    assert total is not None, "as_losses refuses none"
    return total
