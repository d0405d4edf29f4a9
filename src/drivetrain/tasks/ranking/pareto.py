"""Weights of several losses by which none becomes worse for another's sake (Lin et al. 2019, "A Pareto-efficient
algorithm for multiple objective optimization in e-commerce recommendation")."""

from __future__ import annotations

import numpy as np

_SMALLEST = 1e-10
"""Singular values below this share of the largest are none: gradients are zero, or parallel."""


def pareto_weights(gram: np.ndarray, least: np.ndarray) -> np.ndarray:
    """The weights, float64 [losses], whose sum is 1, each `least` or more.

    `gram`, [losses, losses], has the scalar products of the losses' gradients by all parameters that they share, rows
    of tables included, summed over all ranks: then the weights are the same on each. `least`, [losses], is not
    negative, and its sum below 1. Gradients that are zero, parallel or not finite do no harm: where they say nothing,
    the weights are even.
    """
    least = np.asarray(least, np.float64)
    rest, count = 1 - least.sum(), len(least)
    scale = np.trace(gram) / count
    if not np.isfinite(gram).all() or scale <= 0:
        return least + rest / count
    scaled = np.asarray(gram, np.float64) / scale
    # The shortest weighted sum of gradients where the weights' sum is given: its stationary point, a linear system.
    system = np.ones((count + 1, count + 1))
    system[:count, :count], system[count, count] = scaled, 0.0
    right = np.append(-scaled @ least, rest)
    free = (np.linalg.pinv(system, rcond=_SMALLEST) @ right)[:count]
    return least + on_simplex(free, rest)


def on_simplex(point: np.ndarray, total: float) -> np.ndarray:
    """The nearest point without a negative number and with this sum (Duchi et al. 2008, "Efficient projections onto the
    l1-ball for learning in high dimensions")."""
    descending = np.sort(point)[::-1]
    above = (np.cumsum(descending) - total) / np.arange(1, len(point) + 1)
    last = np.flatnonzero(descending > above)[-1]
    return np.maximum(point - above[last], 0)
