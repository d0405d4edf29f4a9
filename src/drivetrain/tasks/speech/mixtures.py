"""Speech in noise as a source: mixed anew at each position, by numbers that follow from the seed and the position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from drivetrain.data.fingerprint import combined
from drivetrain.data.source import Source
from drivetrain.data.split import parted
from drivetrain.runtime.mix import mix
from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.speech.audio import Clip, Shelf, part_of, require_libraries, segment, shelf, whole
from drivetrain.tasks.speech.distort import Distorter, louder, power
from drivetrain.tasks.speech.harmonics import ColouredNoise, Voices
from drivetrain.tasks.speech.recipe import Folder, Harmonics, Mixed, SpeechFolders

_MIXED = 1 << 37  # a place in the seeds' path that no step has
_NAMED = 20  # files that a note names

Sample = dict[str, np.ndarray]
"""`mixture`, `speech` and `clean`, float32 [samples] each."""


class _Spoken(Protocol):
    """Where speech comes from."""

    def __len__(self) -> int: ...

    def take(self, number: int, draw: np.random.Generator) -> np.ndarray: ...


class _Noises(Protocol):
    """Where noise comes from."""

    def take(self, draw: np.random.Generator) -> np.ndarray: ...


@dataclass(frozen=True)
class Sounds:
    """What mixtures are made of: speech, noise if there is to be any, and what happens to both on their way."""

    spoken: _Spoken
    noises: _Noises | None
    distorter: Distorter


class Mixtures:
    """Samples are dicts of float32 [samples]: `speech`, the same in noise as `mixture`, and `clean`, as it was before
    `distort`. All that is drawn follows from the seed and the position, whoever reads it."""

    thread_safe = True

    def __init__(self, settings: Mixed, sounds: Sounds, seed: int, fingerprint: str, notes: Sequence[str] = ()) -> None:
        self._settings = settings
        self._sounds = sounds
        self._seed = seed
        self.fingerprint = fingerprint
        self.notes = tuple(notes)

    def __len__(self) -> int:
        """How many pieces of speech there are."""
        return len(self._sounds.spoken)

    def read(self, ids: np.ndarray, positions: np.ndarray) -> list[Sample]:
        """The pieces of speech with these numbers, mixed as their positions have it."""
        return [self._sample(int(i), int(position)) for i, position in zip(ids, positions, strict=True)]

    def _sample(self, number: int, position: int) -> Sample:
        sounds = self._sounds
        # The order of draws decides the sample, so an SNR is drawn where there is no noise, too.
        draw = np.random.default_rng(mix(self._seed, _MIXED, position))
        snr, level = draw.uniform(*self._settings.snr), draw.uniform(*self._settings.level)
        clean = sounds.spoken.take(number, draw)
        speech = sounds.distorter(clean, draw)
        mixture = speech
        if sounds.noises is not None:
            mixture = speech + at_snr(speech, sounds.distorter(sounds.noises.take(draw), draw), snr)
        mixture = mixture + sounds.distorter.hiss(mixture, draw)
        # One gain for all three, so that they still add up, and differ by nothing but noise and distortion.
        peak = np.max(np.abs(mixture))
        gain = 10 ** (level / 20) / peak if peak else 1.0
        parts = {"mixture": mixture, "speech": speech, "clean": clean}
        return {name: (part * gain).astype(np.float32) for name, part in parts.items()}


class Clips:
    """Speech from files: a drawn part of a long one; a short one at a drawn place in silence."""

    def __init__(self, clips: Sequence[Clip], rate: int, samples: int) -> None:
        self._clips, self._rate, self._samples = clips, rate, samples

    def __len__(self) -> int:
        """How many files there are."""
        return len(self._clips)

    def take(self, number: int, draw: np.random.Generator) -> np.ndarray:
        """Sound of a file, float64 [samples]."""
        sound = segment(self._clips[number], self._rate, self._samples, draw.random())
        before = int(draw.integers(self._samples - len(sound) + 1))
        return np.pad(sound, (before, self._samples - len(sound) - before))


class Noises:
    """Noise from a drawn file: a drawn part of a long one; a short one again and again."""

    def __init__(self, clips: Sequence[Clip], rate: int, samples: int) -> None:
        self._clips, self._rate, self._samples = clips, rate, samples

    def take(self, draw: np.random.Generator) -> np.ndarray:
        """Noise, float64 [samples]."""
        clip = self._clips[int(draw.integers(len(self._clips)))]
        return np.resize(segment(clip, self._rate, self._samples, draw.random()), self._samples)


class Rooms:
    """Impulse responses from drawn files."""

    def __init__(self, clips: Sequence[Clip], rate: int) -> None:
        self._clips, self._rate = clips, rate

    def __call__(self, draw: np.random.Generator) -> np.ndarray:
        """A response, float64 [samples]."""
        return whole(self._clips[int(draw.integers(len(self._clips)))], self._rate)


def open_folders(settings: SpeechFolders, cache: Path, seed: int) -> Source:
    """Speech from files in noise from files.

    Raises Failure(66) where a library, a folder or a file is missing, 65 where a file cannot be read (unless these are
    to be skipped) or a part is empty, 78 where nothing says the rate or the length of a sample.
    """
    require_libraries()
    rate, samples = _shape(settings)

    def opened(folder: Folder) -> Shelf:
        return part_of(shelf(folder, rate, cache, skip=settings.unreadable == "skip"), folder)

    speech = opened(settings.speech)
    shelves = {"speech": speech}
    noises = rooms = None
    if settings.background:
        shelves["background"] = background = opened(settings.background)
        noises = Noises(background.clips, rate, samples)
    if settings.responses:
        shelves["responses"] = responses = opened(settings.responses)
        rooms = Rooms(responses.clips, rate)
    marks, notes = [], []
    for name, each in shelves.items():
        marks.extend(f"{name} {mark}" for mark in each.marks)
        notes.extend(_notes(name, each))
    sounds = Sounds(Clips(speech.clips, rate, samples), noises, Distorter(settings.distort, rate, rooms))
    return Mixtures(settings, sounds, seed, combined(marks), notes)


def open_harmonics(settings: Harmonics, cache: Path, seed: int) -> Source:
    """Computed voices in computed noise.

    Raises Failure(66) where a library is missing, 65 where a part is empty, 78 where nothing says the rate or the
    length of a sample.
    """
    require_libraries(["scipy"])
    rate, samples = _shape(settings)
    voices = Voices(settings.samples, rate, samples)
    sounds = Sounds(voices, ColouredNoise(rate, samples), Distorter(settings.distort, rate))
    # "1" is the version of the computation: it has no files whose contents could tell one from another.
    fingerprint = combined(["harmonics", "1", str(settings.samples), str(rate), str(samples)])
    return parted(Mixtures(settings, sounds, seed, fingerprint), settings, "harmonics")


def at_snr(speech: np.ndarray, noise: np.ndarray, snr: float) -> np.ndarray:
    """Noise as loud as an SNR (dB) has it beside the speech; beside silence it stays as it is."""
    loudness = power(speech)
    if not loudness:
        return noise
    return louder(noise, loudness / 10 ** (snr / 10))


def _shape(settings: Mixed) -> tuple[int, int]:
    """Rate, and samples of a segment."""
    if settings.rate is None or settings.seconds is None:
        cause = f"a source of kind {getattr(settings, 'kind', '')} needs rate and seconds, since the task gives none"
        raise Failure(Exit.BAD_RECIPE, cause, "write them beside its kind")
    return settings.rate, round(settings.rate * settings.seconds)


def _notes(name: str, found: Shelf) -> list[str]:
    """What the ledger is told of files that were left out: how many, and the first of them."""
    if not found.skipped:
        return []
    listed = "; ".join(found.skipped[:_NAMED])
    if len(found.skipped) > _NAMED:
        listed += "; ..."
    return [f"{name}: unreadable and left out: {len(found.skipped)}: {listed}"]
