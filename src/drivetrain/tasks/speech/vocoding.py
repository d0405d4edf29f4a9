"""Stage 1 of enhancement: a mel autoencoder and a vocoder, against a discriminator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from drivetrain.engine.losses import Losses
from drivetrain.loop.gallery import Gallery
from drivetrain.loop.metrics import Mean, Metric
from drivetrain.loop.step import Step
from drivetrain.spec.registry import imported
from drivetrain.tasks.speech import recipe
from drivetrain.tasks.speech.discriminator import (
    Discriminator,
    Kind,
    discriminator_loss,
    feature_distance,
    generator_loss,
)
from drivetrain.tasks.speech.listener import Batch, Listener, Networks, stacked
from drivetrain.tasks.speech.showing import show_sounds
from drivetrain.tasks.speech.spectra import mel_distance, stft_distance, unit
from drivetrain.tasks.speech.vocoder import Copy


class Vocoding(Listener[recipe.Vocoding]):
    """A generator copies speech; a discriminator tells copies from speech.

    All losses are of signals whose speech has power one.
    """

    def networks(self) -> dict[str, nn.Module]:
        """The autoencoder and vocoder, as "generator"; "discriminator", where there is to be one."""
        networks = {"generator": imported(self._settings.model.factory)(self._settings.model)}
        if self._settings.adversarial:
            networks["discriminator"] = Discriminator(self._settings.discriminator, self._rate)
        return networks

    def collate(self, samples: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Tensor]:
        """Speech without noise, and before anything happened to it."""
        return {"clean": stacked(samples, "clean")}

    def update(self, step: Step) -> None:
        """The generator moves, then the discriminator on what it has made, each where it is its turn."""
        kind = self._settings.adversarial
        if kind is None or not step.joined("discriminator"):
            step.minimize("generator", self.loss)
        else:
            step.minimize("generator", partial(self._copying, step, kind))
            step.minimize("discriminator", partial(self._telling, step, kind))

    def loss(self, nets: Networks, batch: Batch) -> Losses:
        """How far copies are from the speech, summed over samples."""
        return self._distances(nets["generator"](batch["clean"]), batch)

    def metrics(self) -> dict[str, Metric]:
        """The generator's loss without its adversarial parts, STFT distance, and mel distance in nats."""
        return self._means("loss", "stft_distance", "mel_distance")

    def evaluate(self, nets: Networks, batch: Batch, metrics: Mapping[str, Mean]) -> None:
        """Add a batch's numbers. There is no SI-SDR: a vocoder chooses phases of its own."""
        copy, count = nets["generator"](batch["clean"]), len(batch["clean"])
        losses = self._distances(copy, batch)
        metrics["loss"].add(sum(float(term.value) * term.weight for term in losses.values()), count)
        metrics["stft_distance"].add(float(losses["spectrum"].value), count)
        found, wanted = self._alike(copy.sound, batch)
        metrics["mel_distance"].add(float(mel_distance(found, wanted, self._rate).sum()), count)
        self._add_scores(metrics, found, wanted)

    def show(self, nets: Networks, batch: Batch, gallery: Gallery) -> None:
        """Copy and speech to hear, and their mel spectrograms to see, one above the other."""
        show_sounds(gallery, self._rate, prediction=nets["generator"](batch["clean"]).sound, target=batch["clean"])

    def changed(self, nets: Networks, sound: Tensor) -> Tensor:
        """Sound [batch, samples] copied."""
        return nets["generator"](sound).sound

    def _copying(self, step: Step, kind: Kind, nets: Networks, batch: Batch) -> Losses:
        """The generator's side: copies that are near to the speech, and pass for speech."""
        copy = nets["generator"](batch["clean"])
        made, speech = self._alike(copy.sound, batch)
        step.cache["made"] = made
        # Only copies are to change: what is seen in speech is where they should come to.
        with torch.no_grad():
            real = nets["discriminator"](speech)
        fake, weights = nets["discriminator"](made), self._settings.loss
        losses = self._distances(copy, batch)
        losses.update(
            Losses(
                adversarial=(generator_loss(fake, kind).sum(), "samples", weights.adversarial),
                features=(feature_distance(real, fake).sum(), "samples", weights.features),
            )
        )
        return losses

    def _telling(self, step: Step, kind: Kind, nets: Networks, batch: Batch) -> Losses:
        """The discriminator's side, on what the generator has left, or makes now where it has stood still."""
        # The cache is this micro-batch's; it is empty where it was not the generator's turn.
        made = step.cache["made"] if "made" in step.cache else self._made(nets["generator"], batch)
        speech, tell = batch["clean"] * unit(batch["clean"]), nets["discriminator"]
        wrong = discriminator_loss(tell(speech), tell(made), kind)
        return Losses(discriminator=(wrong.sum(), "samples"))

    def _made(self, generator: nn.Module, batch: Batch) -> Tensor:
        with torch.no_grad():
            return self._alike(generator(batch["clean"]).sound, batch)[0]

    def _distances(self, copy: Copy, batch: Batch) -> Losses:
        weights = self._settings.loss
        return Losses(
            mel=((copy.guess - copy.mel).abs().mean(dim=(1, 2)).sum(), "samples", weights.mel),
            spectrum=(stft_distance(*self._alike(copy.sound, batch), self._rate).sum(), "samples", weights.spectrum),
        )

    def _alike(self, sound: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """A copy and the speech, both louder by what gives the speech a power of one."""
        scale = unit(batch["clean"])
        return sound.float() * scale, batch["clean"] * scale
