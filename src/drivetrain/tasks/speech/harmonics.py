"""Voices and noises that are computed: no speech, but in the same need of a harmonic's place and a syllable's time."""

from __future__ import annotations

import numpy as np

from drivetrain.runtime.mix import mix

# A place in the seeds' path that no step has.
_VOICE = 1 << 36
_FORMANTS = ((300.0, 900.0), (900.0, 2400.0), (2400.0, 3400.0))  # Hz between which each of them lies
_WIDTH = 120.0  # Hz of a formant
_PITCH = (90.0, 260.0)  # Hz
_SYLLABLES = (0.12, 0.35)  # seconds of one


class Voices:
    """Voices 0 .. count - 1; each is the same for ever, whatever the run's seed is."""

    def __init__(self, count: int, rate: int, samples: int) -> None:
        self._count, self._rate, self._samples = count, rate, samples

    def __len__(self) -> int:
        """How many there are."""
        return self._count

    def take(self, number: int, draw: np.random.Generator) -> np.ndarray:
        """A voice, float64 [samples]. It draws nothing from the position."""
        # Not the run's seed: a voice is as a file is, and a fingerprint says which voices they are.
        own = np.random.default_rng(mix(0, _VOICE, number))
        times = np.arange(self._samples) / self._rate
        pitch = own.uniform(*_PITCH) * (1 + 0.15 * np.sin(2 * np.pi * own.uniform(0.5, 2) * times + own.uniform(0, 6)))
        phase = 2 * np.pi * np.cumsum(pitch) / self._rate
        sound = np.zeros(self._samples)
        start = int(own.uniform(0, 0.1) * self._rate)
        while start < self._samples:
            stop = start + int(own.uniform(*_SYLLABLES) * self._rate)
            spoken = slice(start, min(stop, self._samples))
            shape = np.sin(np.pi * np.arange(spoken.stop - start) / (stop - start)) ** 2
            sound[spoken] = shape * self._syllable(pitch[spoken], phase[spoken], own)
            start = stop + int(own.uniform(0.02, 0.15) * self._rate)
        return sound

    def _syllable(self, pitch: np.ndarray, phase: np.ndarray, own: np.random.Generator) -> np.ndarray:
        """All harmonics below half the rate, each as loud as the formants have it."""
        centres = np.array([own.uniform(*each) for each in _FORMANTS])[:, None]
        sound = np.zeros(len(pitch))
        for harmonic in range(1, int(0.45 * self._rate / pitch.max()) + 1):
            near = 1 / (1 + np.square((harmonic * pitch - centres) / _WIDTH))
            sound += near.sum(axis=0) * np.sin(harmonic * phase)
        return sound


class ColouredNoise:
    """Noise whose power falls with a drawn power of the frequency, and swells and ebbs."""

    def __init__(self, rate: int, samples: int) -> None:
        self._rate, self._samples = rate, samples

    def take(self, draw: np.random.Generator) -> np.ndarray:
        """Noise, float64 [samples]."""
        spectrum = np.fft.rfft(draw.standard_normal(self._samples))
        frequencies = np.maximum(np.fft.rfftfreq(self._samples, 1 / self._rate), 20.0)
        noise = np.fft.irfft(spectrum * frequencies ** -draw.uniform(0, 1), self._samples)
        times = np.arange(self._samples) / self._rate
        return noise * (1 + 0.5 * np.sin(2 * np.pi * draw.uniform(0.3, 3) * times + draw.uniform(0, 6)))
