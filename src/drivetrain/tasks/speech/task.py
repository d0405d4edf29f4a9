"""Speech without its noise: networks that hear a mixture and give the speech in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor, nn

from drivetrain.engine.losses import Losses
from drivetrain.loop.gallery import Gallery
from drivetrain.loop.metrics import Mean, Metric
from drivetrain.spec.registry import imported
from drivetrain.tasks.speech.listener import Batch, Listener, Networks, stacked
from drivetrain.tasks.speech.recipe import Speech, Weights
from drivetrain.tasks.speech.showing import show_sounds
from drivetrain.tasks.speech.spectra import si_sdr, silent, stft_distance, unit


class SpeechTask(Listener[Speech]):
    """A denoiser on mixtures. What it is to give is the recipe's `target`."""

    def networks(self) -> dict[str, nn.Module]:
        """The denoiser, as "model"."""
        return {"model": imported(self._settings.model.factory)(self._settings.model)}

    def collate(self, samples: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Tensor]:
        """Mixtures, and what is to be heard of them."""
        return {"mixture": stacked(samples, "mixture"), "target": stacked(samples, self._settings.target)}

    def loss(self, nets: Networks, batch: Batch) -> Losses:
        """The parts of the loss, summed over samples."""
        return self._losses(nets["model"](batch["mixture"]), batch)

    def metrics(self) -> dict[str, Metric]:
        """The loss; SI-SDR, and by how much it is above the mixture's, in dB; STFT distance."""
        return self._means("loss", "si_sdr", "si_sdr_improvement", "stft_distance")

    def evaluate(self, nets: Networks, batch: Batch, metrics: Mapping[str, Mean]) -> None:
        """Add a batch's numbers."""
        mixture, target = batch["mixture"], batch["target"]
        estimate = nets["model"](mixture)
        losses = self._losses(estimate, batch)
        metrics["loss"].add(sum(float(term.value) * term.weight for term in losses.values()), len(target))
        metrics["stft_distance"].add(float(losses["spectrum"].value), len(target))
        add_si_sdr(metrics, estimate, mixture, target)
        self._add_scores(metrics, estimate, target)

    def show(self, nets: Networks, batch: Batch, gallery: Gallery) -> None:
        """Input, prediction and target to hear, and their mel spectrograms to see, one above the other."""
        sounds = {"input": batch["mixture"], "prediction": self.changed(nets, batch["mixture"])}
        show_sounds(gallery, self._rate, **sounds, target=batch["target"])

    def changed(self, nets: Networks, sound: Tensor) -> Tensor:
        """Sound [batch, samples] without its noise."""
        return nets["model"](sound)

    def _losses(self, estimate: Tensor, batch: Batch) -> Losses:
        return denoising_losses(estimate, batch["mixture"], batch["target"], self._rate, self._settings.loss)


def denoising_losses(estimate: Tensor, mixture: Tensor, target: Tensor, rate: int, weights: Weights) -> Losses:
    """Differences of signals as loud as a mixture of power one, so that soft samples count like loud ones."""
    scale = unit(mixture)
    found, wanted = estimate.float() * scale, target * scale
    return Losses(
        wave=((found - wanted).abs().mean(dim=1).sum(), "samples", weights.wave),
        spectrum=(stft_distance(found, wanted, rate).sum(), "samples", weights.spectrum),
    )


def add_si_sdr(metrics: Mapping[str, Mean], estimate: Tensor, mixture: Tensor, target: Tensor) -> None:
    """Add SI-SDR, and by how much it is above the mixture's. Where the speech is silent, there is none to add."""
    after, before = si_sdr(estimate, target), si_sdr(mixture, target)
    heard = ~silent(target)
    count = int(heard.sum())
    metrics["si_sdr"].add(float(after[heard].sum()), count)
    metrics["si_sdr_improvement"].add(float((after - before)[heard].sum()), count)
