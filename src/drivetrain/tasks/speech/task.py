"""Speech without its noise: networks that hear a mixture and give the speech in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from drivetrain.engine.losses import Losses
from drivetrain.loop.gallery import Gallery
from drivetrain.loop.metrics import Mean, Metric
from drivetrain.loop.task import Task
from drivetrain.spec.registry import imported
from drivetrain.tasks.speech.picture import heat
from drivetrain.tasks.speech.recipe import Speech
from drivetrain.tasks.speech.spectra import mel_decibels, si_sdr, silent, stft_distance, unit

Batch = Mapping[str, Tensor]
"""`mixture` and `target`, float32 [samples of the batch, samples of sound] each."""


class SpeechTask(Task):
    """A denoiser on mixtures. What it is to give is the recipe's `target`."""

    def __init__(self, settings: Speech) -> None:
        self._settings = settings
        self._rate = settings.model.rate

    @property
    def shown(self) -> int:
        """How many of the first validation samples `show` gets."""
        return self._settings.shown

    def networks(self) -> dict[str, nn.Module]:
        """The denoiser, as "model"."""
        return {"model": imported(self._settings.model.factory)(self._settings.model)}

    def collate(self, samples: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Tensor]:
        """Mixtures, and what is to be heard of them."""
        parts = {"mixture": "mixture", "target": self._settings.target}
        return {name: torch.from_numpy(np.stack([sample[of] for sample in samples])) for name, of in parts.items()}

    def loss(self, nets: Mapping[str, nn.Module], batch: Batch) -> Losses:
        """The parts of the loss, summed over samples."""
        return self._losses(nets["model"](batch["mixture"]), batch)

    def metrics(self) -> dict[str, Metric]:
        """The loss; SI-SDR, and by how much it is above the mixture's, in dB; STFT distance."""
        return {name: Mean() for name in ("loss", "si_sdr", "si_sdr_improvement", "stft_distance")}

    def evaluate(self, nets: Mapping[str, nn.Module], batch: Batch, metrics: Mapping[str, Mean]) -> None:
        """Add a batch's numbers. Where the speech is silent, there is no SI-SDR to add."""
        mixture, target = batch["mixture"], batch["target"]
        estimate = nets["model"](mixture)
        losses = self._losses(estimate, batch)
        metrics["loss"].add(sum(float(term.value) * term.weight for term in losses.values()), len(target))
        metrics["stft_distance"].add(float(losses["spectrum"].value), len(target))
        after, before = si_sdr(estimate, target), si_sdr(mixture, target)
        heard = ~silent(target)
        count = int(heard.sum())
        metrics["si_sdr"].add(float(after[heard].sum()), count)
        metrics["si_sdr_improvement"].add(float((after - before)[heard].sum()), count)

    def show(self, nets: Mapping[str, nn.Module], batch: Batch, gallery: Gallery) -> None:
        """Input, prediction and target to hear, and their mel spectrograms to see, one above the other."""
        estimate = nets["model"](batch["mixture"])
        for number in range(len(estimate)):
            sounds = {"input": batch["mixture"], "prediction": estimate, "target": batch["target"]}
            heard = {name: sound[number].float().cpu() for name, sound in sounds.items()}
            for name, sound in heard.items():
                gallery.audio(f"{number}-{name}", sound.numpy(), self._rate)
            mels = [mel_decibels(sound, self._rate).numpy() for sound in heard.values()]
            gallery.picture(f"{number}-mel", np.concatenate([heat(mel) for mel in mels]))

    def _losses(self, estimate: Tensor, batch: Batch) -> Losses:
        """Differences of signals as loud as a mixture of power one, so that soft samples count like loud ones."""
        scale, weights = unit(batch["mixture"]), self._settings.loss
        found, wanted = estimate.float() * scale, batch["target"] * scale
        return Losses(
            wave=((found - wanted).abs().mean(dim=1).sum(), "samples", weights.wave),
            spectrum=(stft_distance(found, wanted, self._rate).sum(), "samples", weights.spectrum),
        )
