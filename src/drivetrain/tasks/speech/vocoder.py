"""A mel autoencoder, and a vocoder that makes sound of what it decodes.

The vocoder is Vocos' (Siuzdak 2023, arXiv 2306.00814): frames in, frames of a spectrum out, and sound by the inverse
STFT, so that nothing works at the rate of samples. The linear layers behind the encoder keep the latent's rank low
(Jing et al. 2020, "Implicit rank-minimizing autoencoder", arXiv 2010.00679).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drivetrain.tasks.speech import recipe
from drivetrain.tasks.speech.convnext import Frames
from drivetrain.tasks.speech.spectra import istft, log_mel, unit

_LOUDEST = 10.0  # log magnitude that no place of speech of power one comes near to


class Copy(NamedTuple):
    """Sound [batch, samples] made anew; its log mel bands [batch, bands, frames], and the autoencoder's guess at them.

    Bands and guess are those of the sound at power one.
    """

    sound: Tensor
    mel: Tensor
    guess: Tensor


class Vocoder(nn.Module):
    """Sound [batch, samples] (float32, at the settings' rate, of any length) by way of its mel spectrogram.

    Twice as loud a sound gives twice as loud a copy. A latent frame has mean zero and power one. Spectra are float32
    whatever the precision is.
    """

    def __init__(self, settings: recipe.Vocoder) -> None:
        super().__init__()
        self.settings = settings
        bands, latent, width, depth = settings.bands, settings.latent, settings.width, settings.depth
        self.encoder = Frames(bands, width, latent, depth)
        self.linear = nn.Sequential(*(nn.Linear(latent, latent, bias=False) for _ in range(settings.linear)))
        self.decoder = Frames(latent, width, bands + settings.extra, depth)
        self.vocoder = Frames(bands + settings.extra, width, settings.window_size + 2, depth)

    def forward(self, sound: Tensor) -> Copy:
        """The sound again, and how the autoencoder has fared."""
        scale = unit(sound)
        mel = self.mel(sound * scale)
        found, guess = self.decode(self.encode(mel), sound.shape[1])
        return Copy(found / scale, mel, guess)

    def mel(self, sound: Tensor) -> Tensor:
        """Log mel bands, float32 [batch, bands, frames] of [batch, samples]."""
        settings = self.settings
        return log_mel(sound, settings.rate, settings.window_size, settings.hop_size, settings.bands)

    def encode(self, mel: Tensor) -> Tensor:
        """Latent frames [batch, latent, frames] of log mel bands."""
        return settled(self.linear(self.encoder(mel).mT).mT)

    def decode(self, latent: Tensor, samples: int) -> tuple[Tensor, Tensor]:
        """Sound [batch, samples], about of power one, and log mel bands [batch, bands, frames]."""
        decoded = self.decoder(latent)
        magnitude, phase = self.vocoder(decoded).float().chunk(2, dim=1)
        # What an untrained network gives may have an exp that is beyond float32.
        with torch.autocast(latent.device.type, enabled=False):
            spectrum = torch.polar(magnitude.clamp(max=_LOUDEST).exp(), phase)
            sound = istft(spectrum, self.settings.window_size, self.settings.hop_size, samples)
        return sound, decoded[:, : self.settings.bands].float()


def settled(latent: Tensor) -> Tensor:
    """Latent frames [batch, latent, frames], each with mean zero and power one over its numbers; float32."""
    return F.layer_norm(latent.mT.float(), latent.shape[1:2]).mT
