"""Sounds to hear, and to see."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from drivetrain.loop.gallery import Gallery
from drivetrain.tasks.speech.picture import heat
from drivetrain.tasks.speech.spectra import mel_decibels


def show_sounds(gallery: Gallery, rate: int, **sounds: Tensor) -> None:
    """Each sample of the sounds [samples of the batch, samples of sound] by their names, and their mel spectrograms
    one above the other."""
    for number, sample in enumerate(zip(*sounds.values(), strict=True)):
        pictures = []
        for name, sound in zip(sounds, sample, strict=True):
            heard = sound.float().cpu()
            gallery.audio(f"{number}-{name}", heard.numpy(), rate)
            pictures.append(heat(mel_decibels(heard, rate).numpy()))
        gallery.picture(f"{number}-mel", np.concatenate(pictures))
