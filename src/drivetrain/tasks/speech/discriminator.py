"""Networks that tell speech from what a vocoder makes, and the losses of both sides."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from drivetrain.tasks.speech import recipe
from drivetrain.tasks.speech.spectra import WINDOWS, stft, window_of

_SLOPE = 0.1  # of what is negative

Seen = list[list[Tensor]]
"""What each part of a discriminator saw, layer by layer; the last one is its opinion: large for speech."""
Kind = Literal["hinge", "squares"]


class Discriminator(nn.Module):
    """Opinions on sound [batch, samples] of about power one: of one part for each period, and for each window."""

    def __init__(self, settings: recipe.Discriminator, rate: int) -> None:
        super().__init__()
        periods = [Period(period, settings.width) for period in settings.periods]
        self.parts = nn.ModuleList(periods)
        if settings.spectra:
            self.parts.extend(Spectrum(window_of(rate, seconds), settings.width) for seconds in WINDOWS)

    def forward(self, sound: Tensor) -> Seen:
        """What each part sees in the sound."""
        return [part(sound) for part in self.parts]


class Period(nn.Module):
    """Looks at samples that are a period apart (Kong et al. 2020, "HiFi-GAN", arXiv 2010.05646, section 2.3)."""

    def __init__(self, period: int, width: int) -> None:
        super().__init__()
        self.period = period
        widths = [1, width, 4 * width, 16 * width, 32 * width]
        layers = [nn.Conv2d(few, many, (5, 1), (3, 1), (2, 0)) for few, many in pairwise(widths)]
        layers += [nn.Conv2d(widths[-1], widths[-1], (5, 1), padding=(2, 0))]
        self.layers = nn.ModuleList(map(weight_norm, layers))
        self.last = weight_norm(nn.Conv2d(widths[-1], 1, (3, 1), padding=(1, 0)))

    def forward(self, sound: Tensor) -> list[Tensor]:
        """What each layer sees."""
        padded = F.pad(sound, (0, -sound.shape[1] % self.period))
        return _layers(padded.unflatten(1, (-1, self.period)).unsqueeze(1), [*self.layers], self.last)


class Spectrum(nn.Module):
    """Looks at magnitudes of windows of one size (Jang et al. 2021, "UnivNet", arXiv 2106.07889, section 2.3)."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.size = size
        layers = [nn.Conv2d(1, width, (3, 9), padding=(1, 4))]
        layers += [nn.Conv2d(width, width, (3, 9), (1, 2), (1, 4)) for _ in range(3)]
        layers += [nn.Conv2d(width, width, (3, 3), padding=(1, 1))]
        self.layers = nn.ModuleList(map(weight_norm, layers))
        self.last = weight_norm(nn.Conv2d(width, 1, (3, 3), padding=(1, 1)))

    def forward(self, sound: Tensor) -> list[Tensor]:
        """What each layer sees."""
        with torch.autocast(sound.device.type, enabled=False):
            magnitude = stft(sound.float(), self.size, self.size // 4).abs()
        return _layers(magnitude.mT.unsqueeze(1), [*self.layers], self.last)


def discriminator_loss(real: Seen, fake: Seen, kind: Kind) -> Tensor:
    """How wrong opinions are on speech and on what was made, [batch], the mean over parts and places.

    Hinge: Lim and Ye 2017, "Geometric GAN", arXiv 1705.02894. Squares: Mao et al. 2017, "Least squares generative
    adversarial networks", arXiv 1611.04076, equation 9.
    """
    parts = zip(_opinions(real), _opinions(fake), strict=True)
    if kind == "hinge":
        return _mean([F.relu(1 - true) + F.relu(1 + false) for true, false in parts])
    return _mean([(true - 1).square() + false.square() for true, false in parts])


def generator_loss(fake: Seen, kind: Kind) -> Tensor:
    """How little is taken for speech of what was made, [batch]; the other side of `discriminator_loss`."""
    opinions = _opinions(fake)
    if kind == "hinge":
        return _mean([-each for each in opinions])
    return _mean([(each - 1).square() for each in opinions])


def feature_distance(real: Seen, fake: Seen) -> Tensor:
    """Mean difference of what layers see, relative to what they see in speech, [batch].

    The feature matching of HiFi-GAN, made relative as in Defossez et al. 2022, "EnCodec", arXiv 2210.13438, section
    3.4, so that no layer outweighs the others.
    """
    ratios = []
    for true_part, false_part in zip(real, fake, strict=True):
        # Without the last one, the opinion: that is what `generator_loss` is of.
        for true, false in zip(true_part[:-1], false_part[:-1], strict=True):
            ratios.append(_by_sample((true - false).abs()) / _by_sample(true.abs()).clamp(min=1e-5))
    return torch.stack(ratios).mean(dim=0)


def _layers(x: Tensor, layers: Sequence[nn.Module], last: nn.Module) -> list[Tensor]:
    """What each of the layers gives, one after the other, and the last one's opinion."""
    seen = []
    for layer in layers:
        x = F.leaky_relu(layer(x), _SLOPE)
        seen.append(x)
    return [*seen, last(x)]


def _opinions(seen: Seen) -> list[Tensor]:
    return [part[-1] for part in seen]


def _mean(parts: Sequence[Tensor]) -> Tensor:
    """The mean over parts of each sample's mean over places, [batch]."""
    return torch.stack([_by_sample(part) for part in parts]).mean(dim=0)


def _by_sample(tensor: Tensor) -> Tensor:
    """Each sample's mean, float32 [batch]."""
    return tensor.float().flatten(1).mean(dim=1)
