"""How sound is judged by models of hearing: PESQ and STOI, by libraries that are asked for by the extra `scores`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from torch import Tensor

from drivetrain.loop.metrics import Mean
from drivetrain.tasks.speech.audio import require_libraries
from drivetrain.tasks.speech.recipe import Score

LIBRARIES: Mapping[Score, str] = {"pesq": "pesq", "stoi": "pystoi"}
_WIDE, _NARROW = 16000, 8000  # samples a second that PESQ knows


def require_scores(scores: Sequence[Score]) -> None:
    """Raises Failure(66) where a library that a score needs is missing."""
    require_libraries([LIBRARIES[score] for score in scores], extra="scores")
    require_libraries(["soxr"] if scores else [])


def add_scores(
    metrics: Mapping[str, Mean], scores: Sequence[Score], estimate: Tensor, target: Tensor, rate: int
) -> None:
    """Add each sample's scores, of [batch, samples]; one that a library finds no speech in has none."""
    for score in scores:
        found = [*_each(score, estimate, target, rate)]
        metrics[score].add(sum(found), len(found))


def pesq(estimate: np.ndarray, target: np.ndarray, rate: int) -> float | None:
    """Perceptual evaluation of speech quality (ITU-T P.862, wide band P.862.2) of [samples], from 1 to 4.6.

    At 16 kHz, and at 8 kHz in narrow band where the rate is less than that. None where there is no speech.
    """
    import pesq as library  # type: ignore[import-not-found]
    import soxr

    heard, mode = (_WIDE, "wb") if rate >= _WIDE else (_NARROW, "nb")
    sounds = [soxr.resample(sound, rate, heard) for sound in (target, estimate)]
    try:
        return float(library.pesq(heard, sounds[0], sounds[1], mode))
    except (library.NoUtterancesError, library.BufferTooShortError):
        return None


def stoi(estimate: np.ndarray, target: np.ndarray, rate: int) -> float | None:
    """Short-time objective intelligibility (Taal et al. 2011) of [samples], up to 1. None where there is no speech."""
    import warnings

    from pystoi import stoi as library

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            return float(library(target, estimate, rate))
        except RuntimeWarning:  # "not enough STFT frames": it would go on with 1e-5
            return None


def _each(score: Score, estimate: Tensor, target: Tensor, rate: int) -> Iterator[float]:
    """The scores of those samples that have one."""
    judge = {"pesq": pesq, "stoi": stoi}[score]
    for found, wanted in zip(estimate.double().cpu().numpy(), target.double().cpu().numpy(), strict=True):
        if not found.any() or not wanted.any():
            continue
        value = judge(found, wanted, rate)
        if value is not None:
            yield value
