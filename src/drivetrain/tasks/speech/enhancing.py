"""Stage 2 of enhancement: a denoiser, and a flow from what it leaves to clean speech, in stage 1's latent space."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Beta

from drivetrain.engine.losses import Losses
from drivetrain.engine.parallel_plan import ParallelPlan, derived
from drivetrain.loop.gallery import Gallery
from drivetrain.loop.metrics import Mean, Metric
from drivetrain.spec.registry import imported
from drivetrain.tasks.speech import recipe
from drivetrain.tasks.speech.denoiser import Denoiser
from drivetrain.tasks.speech.flow import Flow, path, solved
from drivetrain.tasks.speech.listener import Batch, Listener, Networks, stacked
from drivetrain.tasks.speech.showing import show_sounds
from drivetrain.tasks.speech.spectra import mel_distance, silent, stft_distance, unit
from drivetrain.tasks.speech.task import add_si_sdr, denoising_losses
from drivetrain.tasks.speech.vocoder import Vocoder, settled

_SHARES = 0.2  # both parameters of the Beta distribution of shares: mostly one or the other
_PARTS = ("mixture", "speech", "clean")


class Enhancing(Listener[recipe.Enhancing]):
    """The denoiser takes the noise away, the flow makes clean speech of what is left, the generator lets it be heard.

    Denoiser and flow train together, each by its own loss; the generator is stage 1's, and stands still.
    """

    def networks(self) -> dict[str, nn.Module]:
        """Stage 1's autoencoder and vocoder as "generator", "flow" and "denoiser"."""
        settings, model = self._settings, self._settings.model
        return {
            "generator": imported(model.factory)(model),
            "flow": Flow(settings.flow, model.latent, model.bands),
            "denoiser": Denoiser(settings.denoising),
        }

    def parallel_plan(self, name: str, network: nn.Module) -> ParallelPlan | None:
        """The generator is never called as a whole."""
        return replace(derived(network), methods=("encode", "decode")) if name == "generator" else None

    def collate(self, samples: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Tensor]:
        """Mixtures, the speech in them, and the same before anything happened to it."""
        return {name: stacked(samples, name) for name in _PARTS}

    def loss(self, nets: Networks, batch: Batch) -> Losses:
        """The denoiser's losses and the flow's, summed over samples."""
        mixture, clean = batch["mixture"], batch["clean"]
        denoised = nets["denoiser"](mixture)
        losses = denoising_losses(denoised, mixture, batch["speech"], self._rate, self._settings.loss)
        concentration = mixture.new_full((1,), _SHARES)
        shares = Beta(concentration, concentration).sample(torch.Size([len(mixture)]))
        generator = _stage_one(nets)
        # Neither the generator nor, by the flow's loss, the denoiser moves.
        with torch.no_grad():
            heard = _heard(generator, mixture, denoised, shares)
            start = self._start(generator, heard, torch.randn_like)
            end = generator.encode(generator.mel(clean * unit(clean)))
        time = torch.rand(len(mixture), device=mixture.device)
        place, velocity = path(start, end, time)
        error = (nets["flow"](place, time, heard) - velocity).square().mean(dim=(1, 2))
        losses.update(Losses(flow=(error.sum(), "samples", self._settings.loss.flow)))
        return losses

    def metrics(self) -> dict[str, Metric]:
        """Of the denoised: SI-SDR, and by how much it is above the mixture's, in dB. Of the enhanced: STFT distance,
        mel distance in nats, and by how much that is below the mixture's."""
        names = ("si_sdr", "si_sdr_improvement", "stft_distance", "mel_distance", "mel_distance_improvement")
        return self._means(*names)

    def evaluate(self, nets: Networks, batch: Batch, metrics: Mapping[str, Mean]) -> None:
        """Add a batch's numbers. Distances are of signals of power one; silent speech has none."""
        mixture, clean = batch["mixture"], batch["clean"]
        denoised = nets["denoiser"](mixture)
        add_si_sdr(metrics, denoised, mixture, batch["speech"])
        heard = ~silent(clean)
        sounds = (self._enhanced(nets, mixture, denoised), mixture, clean)
        found, before, wanted = ((sound * unit(sound))[heard] for sound in sounds)
        far, farther = mel_distance(found, wanted, self._rate), mel_distance(before, wanted, self._rate)
        count = len(wanted)
        metrics["stft_distance"].add(float(stft_distance(found, wanted, self._rate).sum()), count)
        metrics["mel_distance"].add(float(far.sum()), count)
        metrics["mel_distance_improvement"].add(float((farther - far).sum()), count)
        self._add_scores(metrics, found, wanted)

    def show(self, nets: Networks, batch: Batch, gallery: Gallery) -> None:
        """Mixture, denoised, enhanced and clean speech to hear, and their mel spectrograms to see."""
        mixture = batch["mixture"]
        denoised = nets["denoiser"](mixture)
        enhanced = self._enhanced(nets, mixture, denoised)
        show_sounds(gallery, self._rate, input=mixture, denoised=denoised, prediction=enhanced, target=batch["clean"])

    def changed(self, nets: Networks, sound: Tensor) -> Tensor:
        """Sound [batch, samples] enhanced."""
        return self._enhanced(nets, sound, nets["denoiser"](sound))

    def _enhanced(self, nets: Networks, mixture: Tensor, denoised: Tensor) -> Tensor:
        """As loud as the denoised. It depends on a sample's own sound only: nothing is drawn anew."""
        generator, settings = _stage_one(nets), self._settings.flow
        heard = _heard(generator, mixture, denoised, mixture.new_full((len(mixture), 1), settings.denoised))

        def velocity(latent: Tensor, time: Tensor) -> Tensor:
            return nets["flow"](latent, time, heard)

        latent = solved(velocity, self._start(generator, heard, self._noise), settings.steps, settings.solver)
        sound, _ = generator.decode(settled(latent), mixture.shape[1])
        power = denoised.float().square().mean(dim=1, keepdim=True)
        return sound * unit(sound) * power.sqrt()

    def _start(self, generator: Vocoder, heard: Tensor, noise: Callable[[Tensor], Tensor]) -> Tensor:
        """Where the flow starts: what was heard, encoded, and noise of the same power."""
        encoded = generator.encode(heard)
        return torch.lerp(encoded, noise(encoded), self._settings.flow.temperature)

    def _noise(self, like: Tensor) -> Tensor:
        """The same noise at all times and in both halves of a chunk, so that chunks that overlap by half agree."""
        model = self._settings.model
        half = model.chunk // 2 // model.hop_size
        drawn = torch.randn(like.shape[1], half, generator=torch.Generator().manual_seed(0)).to(like.device)
        return drawn.repeat(1, -(-like.shape[2] // half))[:, : like.shape[2]].expand_as(like)


def _stage_one(nets: Networks) -> Vocoder:
    return cast(Vocoder, nets["generator"])


def _heard(generator: Vocoder, mixture: Tensor, denoised: Tensor, shares: Tensor) -> Tensor:
    """Log mel bands [batch, bands, frames] of both, each at power one; the denoised has a share [batch, 1]."""
    before, after = (generator.mel(sound * unit(sound)) for sound in (mixture, denoised.float()))
    return torch.lerp(before, after, shares.unsqueeze(2))
