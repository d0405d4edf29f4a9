"""Weights of losses under which none can gain but at another's cost (Lin et al. 2019, "A Pareto-efficient algorithm for
multiple objective optimization in e-commerce recommendation", RecSys)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ParetoWeights:
    """A rule for `Step.minimize` (see `engine.by_loss.LossWeights`); `least` are what each loss weighs at least."""

    losses: tuple[str, ...]
    least: tuple[float, ...]

    def of(self, gram: np.ndarray) -> list[float]:
        """As `pareto_weights`."""
        return pareto_weights(gram, np.array(self.least)).tolist()


def pareto_weights(gram: np.ndarray, least: np.ndarray) -> np.ndarray:
    """The weights, float64 [losses], of sum 1, none below its `least`, whose weighted gradient is shortest.

    `gram`, float64 [losses, losses], are the products of gradients. As in the paper, what the equality alone would give
    is moved to the nearest weights that are above the least ones. A loss whose gradient is zero has its least weight,
    and no say: it would get all of the rest, and nothing would train. Where a gradient is not finite, or all are zero,
    the rest is shared alike.
    """
    lengths = np.diag(gram)
    rest, there = 1.0 - least.sum(), lengths > 0
    if not np.isfinite(gram).all() or not there.any():
        return least + rest / len(least)
    # In units of the mean square, so that neither the loss scale nor small gradients meet a tolerance.
    products = gram[np.ix_(there, there)] / lengths[there].mean()
    count = len(products)
    system = np.ones((count + 1, count + 1))
    system[:count, :count], system[count, count] = products, 0.0
    # Parallel gradients leave several answers: of these the shortest, which shares alike.
    wanted = np.append(-products @ least[there], rest)
    free = np.linalg.lstsq(system, wanted, rcond=1e-10)[0][:count]
    weights = least.copy()
    weights[there] += nearest(free, rest)
    return weights


def nearest(point: np.ndarray, total: float) -> np.ndarray:
    """The nearest point to this one, float64 [n], with no number below zero and their sum `total` (Duchi et al. 2008,
    "Efficient projections onto the l1-ball", figure 1)."""
    ordered = np.sort(point)[::-1]
    excess = (ordered.cumsum() - total) / np.arange(1, len(point) + 1)
    # Of a total of zero not even the first number is above its excess.
    last = max(1, np.count_nonzero(ordered > excess)) - 1
    return np.maximum(point - excess[last], 0.0)
