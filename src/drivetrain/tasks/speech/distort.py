"""What happens to sound on its way: rooms, tone controls, overdrive, narrow bands.

Every number is drawn by the caller's generator, so the same generator gives the same sound.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from drivetrain.tasks.speech.recipe import Distort

_CENTRES = ((100.0, 400.0), (400.0, 1600.0), (1600.0, 0.45))  # Hz of three bands; the last ends at a share of the rate
_LOW_CUT = (50.0, 400.0)  # Hz
_HIGH_CUT = (0.25, 0.45)  # of the rate

Effect = Callable[[np.ndarray, np.random.Generator], np.ndarray]


class Distorter:
    """Effects as the settings want them; `response(generator)` gives a room's impulse response at the same rate."""

    def __init__(
        self, settings: Distort, rate: int, response: Callable[[np.random.Generator], np.ndarray] | None = None
    ) -> None:
        self._settings = settings
        self._rate = rate
        self._response = response

    def __call__(self, sound: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        """Sound [samples] with the effects that are drawn, as loud as before."""
        settings = self._settings
        effects: list[tuple[float, Effect]] = [
            (settings.reverb, self._reverb),
            (settings.equalizer, self._equalizer),
            (settings.clip, self._clip),
            (settings.band, self._band),
        ]
        drawn = []
        for probability, effect in effects:
            if draw.random() < probability:
                drawn.append(effect)
        distorted = sound
        for place in draw.permutation(len(drawn)):
            distorted = drawn[place](distorted, draw)
        # Sound without an effect keeps its bits: a gain of about one would not.
        if not drawn:
            return sound
        return louder(distorted, power(sound))

    def hiss(self, sound: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        """White noise to be added to a mixture [samples]; zeros where none is drawn."""
        if draw.random() >= self._settings.noise:
            return np.zeros_like(sound)
        noise = draw.standard_normal(len(sound))
        return louder(noise, power(sound) / 10 ** (draw.uniform(*self._settings.hiss) / 10))

    def _reverb(self, sound: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        assert self._response is not None, "the recipe's check asks for responses"
        return reverberated(sound, self._response(draw))

    def _equalizer(self, sound: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        for low, high in _CENTRES:
            top = high if high > 1 else high * self._rate
            sound = peaked(sound, self._rate, _between(low, top, draw), draw.uniform(*self._settings.gains))
        return sound

    def _clip(self, sound: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        return clipped(sound, draw.uniform(*self._settings.overdrive))

    def _band(self, sound: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        edges = _between(*_LOW_CUT, draw), draw.uniform(*_HIGH_CUT) * self._rate
        return band_limited(sound, self._rate, edges)


def power(sound: np.ndarray) -> float:
    """Mean square of the samples."""
    return float(np.mean(np.square(sound)))


def louder(sound: np.ndarray, wanted: float) -> np.ndarray:
    """The same sound with this power; silence stays silent."""
    found = power(sound)
    if not found:
        return sound
    return sound * math.sqrt(wanted / found)


def reverberated(sound: np.ndarray, response: np.ndarray) -> np.ndarray:
    """Sound in a room, as long as before. The response counts from its peak, so that direct sound is not delayed."""
    from scipy.signal import oaconvolve

    direct = response[np.argmax(np.abs(response)) :]
    return oaconvolve(sound, direct)[: len(sound)]


def peaked(sound: np.ndarray, rate: int, centre: float, gain: float) -> np.ndarray:
    """Sound with an octave around `centre` (Hz) louder by `gain` dB.

    A peaking filter of R. Bristow-Johnson, "Cookbook formulae for audio equalizer biquad filter coefficients".
    """
    from scipy.signal import lfilter

    amplitude, angle = 10 ** (gain / 40), 2 * math.pi * centre / rate
    alpha = math.sin(angle) * math.sinh(math.log(2) / 2 * angle / math.sin(angle))
    above = [1 + alpha * amplitude, -2 * math.cos(angle), 1 - alpha * amplitude]
    below = [1 + alpha / amplitude, -2 * math.cos(angle), 1 - alpha / amplitude]
    return np.asarray(lfilter(above, below, sound))


def clipped(sound: np.ndarray, overdrive: float) -> np.ndarray:
    """Sound whose peak would be `overdrive` dB above where it is cut off."""
    limit = np.max(np.abs(sound)) / 10 ** (overdrive / 20)
    return np.clip(sound, -limit, limit)


def band_limited(sound: np.ndarray, rate: int, edges: tuple[float, float]) -> np.ndarray:
    """Sound between two frequencies (Hz), by a Butterworth filter of fourth order."""
    from scipy.signal import butter, sosfilt

    return np.asarray(sosfilt(butter(4, edges, "bandpass", fs=rate, output="sos"), sound))


def _between(low: float, high: float, draw: np.random.Generator) -> float:
    """A frequency, drawn evenly in octaves."""
    return float(np.exp(draw.uniform(math.log(low), math.log(high))))
