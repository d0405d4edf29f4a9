"""A U-Net that takes noise away: for each place of the spectrogram a mask and a turn of the phase.

The U-Net of Ronneberger et al. 2015 (arXiv 1505.04597), with sums where that one joins channels, and residual blocks;
a mask for the magnitude and a correction of the phase as in "Phase-aware speech enhancement with deep complex U-Net"
(Choi et al. 2019, arXiv 1903.03107).
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drivetrain.tasks.speech import recipe
from drivetrain.tasks.speech.spectra import istft, stft, unit

_COMPRESSION = 0.3
"""Power of the magnitudes that the network sees, so that soft places count (Ephrat et al. 2018, arXiv 1804.03619)."""
_GROUP = 8  # channels that are normalized together


class Denoiser(nn.Module):
    """Sound [batch, samples] (float32, at the settings' rate, of any length) to the same shape, without its noise.

    Twice as loud a sound gives twice as loud a result. Spectra are float32 whatever the precision is.
    """

    def __init__(self, settings: recipe.Denoiser) -> None:
        super().__init__()
        self.settings = settings
        widths = [settings.width << level for level in range(settings.depth + 1)]
        self.first = nn.Conv2d(3, widths[0], 3, padding=1)
        self.down = nn.ModuleList(Down(few, many, settings.blocks) for few, many in pairwise(widths))
        self.middle = blocks(widths[-1], 2 * settings.blocks)
        self.up = nn.ModuleList(Up(many, few, settings.blocks) for few, many in reversed(list(pairwise(widths))))
        # Zeros: it starts with one mask for all places, and turns no phase.
        last = nn.Conv2d(widths[0], 3, 1)
        for parameter in last.parameters():
            nn.init.zeros_(parameter)
        self.last = nn.Sequential(norm(widths[0]), nn.SiLU(), last)

    def forward(self, sound: Tensor) -> Tensor:
        """What is left of the sound."""
        size, hop = self.settings.window_size, self.settings.hop_size
        with torch.autocast(sound.device.type, enabled=False):
            scale = unit(sound)
            spectrum = stft(sound * scale, size, hop)
            seen = features(spectrum)
        change = self.changes(seen)
        with torch.autocast(sound.device.type, enabled=False):
            return istft(changed(spectrum, change.float()), size, hop, sound.shape[1]) / scale

    def changes(self, seen: Tensor) -> Tensor:
        """[batch, 3, frequencies, frames] to the same shape: what `changed` does to each place."""
        # Sizes that can be halved so often; what is put there is cut off again.
        height, width = seen.shape[2:]
        step = 1 << self.settings.depth
        x = self.first(F.pad(seen, (0, -width % step, 0, -height % step)))
        kept = []
        for down in self.down:
            x, level = down(x)
            kept.append(level)
        x = self.middle(x)
        for up, level in zip(self.up, reversed(kept), strict=True):
            x = up(x, level)
        return self.last(x)[:, :, :height, :width]


class Down(nn.Module):
    """Blocks at one resolution, then half of it with more channels."""

    def __init__(self, channels: int, more: int, count: int) -> None:
        super().__init__()
        self.blocks = blocks(channels, count)
        self.shrink = nn.Conv2d(channels, more, 2, stride=2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """At half the resolution, and at the whole one."""
        level = self.blocks(x)
        return self.shrink(level), level


class Up(nn.Module):
    """Twice the resolution with fewer channels, what was there on the way down added, then blocks."""

    def __init__(self, channels: int, fewer: int, count: int) -> None:
        super().__init__()
        self.grow = nn.ConvTranspose2d(channels, fewer, 2, stride=2)
        self.blocks = blocks(fewer, count)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """At the resolution of `level`."""
        return self.blocks(self.grow(x) + level)


class ResidualBlock(nn.Module):
    """x + convolution(convolution(x)), each behind a norm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            norm(channels),
            nn.SiLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            norm(channels),
            nn.SiLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        return x + self.inner(x)


def blocks(channels: int, count: int) -> nn.Sequential:
    """Residual blocks, one after the other."""
    return nn.Sequential(*(ResidualBlock(channels) for _ in range(count)))


def norm(channels: int) -> nn.GroupNorm:
    """A norm that looks at one sample alone, so that neither batch nor processes matter."""
    return nn.GroupNorm(channels // _GROUP if channels % _GROUP == 0 else 1, channels)


def features(spectrum: Tensor) -> Tensor:
    """What the network sees of a complex spectrogram: compressed magnitude, and real and imaginary part as much so."""
    magnitude = spectrum.abs()
    compressed = magnitude.clamp(min=1e-7) ** _COMPRESSION
    turned = spectrum / magnitude.clamp(min=1e-7)
    return torch.stack([compressed, compressed * turned.real, compressed * turned.imag], dim=1)


def changed(spectrum: Tensor, change: Tensor) -> Tensor:
    """Each place made softer by a mask in (0, 1) and turned in its phase; zeros halve it and turn nothing."""
    mask, real, imaginary = change.unbind(dim=1)
    turn = torch.complex(1 + real, imaginary)
    return spectrum * mask.sigmoid() * (turn / turn.abs().clamp(min=1e-7))
