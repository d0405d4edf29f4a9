"""Numbers as colours."""

from __future__ import annotations

import numpy as np

_COLOURS = np.array([[0, 0, 4], [81, 18, 124], [183, 55, 121], [252, 137, 97], [252, 253, 191]], dtype=np.float64)
"""From dark to light: five places of matplotlib's map "magma", straight lines between them."""


def heat(decibels: np.ndarray, lowest: float = -80.0, zoom: int = 2) -> np.ndarray:
    """A picture, uint8 [rows, columns, 3], of [bands, frames] from `lowest` to 0 dB, low bands at the bottom.

    Each number is `zoom` dots wide and high; a dark line is below.
    """
    places = np.clip((decibels[::-1] - lowest) / -lowest, 0, 1) * (len(_COLOURS) - 1)
    steps = np.arange(len(_COLOURS))
    colours = np.stack([np.interp(places, steps, channel) for channel in _COLOURS.T], axis=-1)
    large = colours.repeat(zoom, axis=0).repeat(zoom, axis=1)
    return np.pad(large, ((0, zoom), (0, 0), (0, 0))).astype(np.uint8)
