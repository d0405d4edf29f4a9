"""Randomness by position: seeds are a function of the run's seed and a path of whole numbers, and of nothing else."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def mix(seed: int, *path: int) -> int:
    """A 63-bit seed for a place in the run: splitmix64's finalizer, chained over the path (Steele et al. 2014)."""
    state = seed & _MASK
    for number in path:
        state = (state + 0x9E3779B97F4A7C15 * (number + 1)) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1
