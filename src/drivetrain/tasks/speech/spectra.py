"""Spectra of sound, distances between them, and how much of a signal is in an estimate."""

from __future__ import annotations

import math

import torch
from torch import Tensor

WINDOWS = (0.010, 0.025, 0.050)
"""Seconds of the windows over which two sounds are compared."""
_MOST_DB = 100.0
_FAINT = 1e-2  # mel magnitude of what cannot be heard beside sound of power one
_SILENCE = 1e-10  # power below which a signal is none


def stft(sound: Tensor, size: int, hop: int) -> Tensor:
    """Complex spectrogram [..., size // 2 + 1, frames] of [..., samples] (float32), by a Hann window, centred."""
    flat, window = sound.reshape(-1, sound.shape[-1]), torch.hann_window(size, device=sound.device)
    found = torch.stft(flat, size, hop, window=window, return_complex=True, pad_mode="constant")
    return found.reshape(*sound.shape[:-1], *found.shape[-2:])


def istft(spectrum: Tensor, size: int, hop: int, samples: int) -> Tensor:
    """Sound [batch, samples] whose `stft` is nearest to this one [batch, size // 2 + 1, frames]."""
    window = torch.hann_window(size, device=spectrum.device)
    return torch.istft(spectrum, size, hop, window=window, length=samples)


def window_of(rate: int, seconds: float) -> int:
    """Samples of a window of about so many seconds, a power of two that is not shorter."""
    return 1 << math.ceil(math.log2(rate * seconds))


def stft_distance(estimate: Tensor, target: Tensor, rate: int) -> Tensor:
    """How far an estimate's spectra are from the target's, [batch] of [batch, samples], over several windows.

    Spectral convergence plus the mean difference of log magnitudes (Yamamoto et al. 2020, "Parallel WaveGAN", arXiv
    1910.11480, equations 4 to 6), the mean over the windows. The logarithm is of 1 + magnitude, so that silence is no
    abyss: both signals are about of power one, and white noise of that power has magnitudes about 10. Beside a silent
    target the convergence's divisor is 1, which is far below that of any sound.
    """
    total = torch.zeros(len(target), device=target.device)
    for seconds in WINDOWS:
        size = window_of(rate, seconds)
        found = stft(estimate, size, size // 4).abs().flatten(1)
        wanted = stft(target, size, size // 4).abs().flatten(1)
        convergence = (wanted - found).norm(dim=1) / wanted.norm(dim=1).clamp(min=1.0)
        logs = (wanted.log1p() - found.log1p()).abs().mean(dim=1)
        total = total + convergence + logs
    return total / len(WINDOWS)


def si_sdr(estimate: Tensor, target: Tensor) -> Tensor:
    """Scale-invariant signal-to-distortion ratio in dB, [batch] of [batch, samples], between -100 and 100.

    Le Roux et al. 2019, "SDR - half-baked or well done?", arXiv 1811.02508, equation 3; no means are subtracted. It
    means nothing where the target is silent, and is NaN there.
    """
    energy = target.square().sum(dim=1)
    scaled = ((estimate * target).sum(dim=1) / energy).unsqueeze(1) * target
    left = (estimate - scaled).square().sum(dim=1)
    found = scaled.square().sum(dim=1)
    ratio = torch.where(found == 0, -torch.inf, 10 * torch.log10(found / left))
    return torch.where(silent(target), torch.nan, ratio.clamp(-_MOST_DB, _MOST_DB))


def silent(sound: Tensor) -> Tensor:
    """Whether there is nothing to be heard, bool [batch] of [batch, samples]."""
    return sound.square().mean(dim=1) <= _SILENCE


def unit(sound: Tensor) -> Tensor:
    """The factor [batch, 1] that gives [batch, samples] a power of one; 1 for silence."""
    power = sound.square().mean(dim=1, keepdim=True)
    # Clamped as well: the branch that is not taken has a gradient too, and of 1 / 0 it would be NaN.
    return torch.where(power > _SILENCE, power.clamp(min=_SILENCE).rsqrt(), 1.0)


def log_mel(sound: Tensor, rate: int, size: int, hop: int, bands: int) -> Tensor:
    """Natural logarithm of mel magnitudes, float32 [batch, bands, frames] of [batch, samples] of about power one."""
    with torch.autocast(sound.device.type, enabled=False):
        magnitude = stft(sound.float(), size, hop).abs()
        return (_mel_bands(rate, size, bands).to(sound.device, non_blocking=True) @ magnitude).clamp(min=_FAINT).log()


def mel_distance(estimate: Tensor, target: Tensor, rate: int, bands: int = 80) -> Tensor:
    """Mean difference of log mel magnitudes, [batch] of [batch, samples]; windows of 32 ms.

    Kong et al. 2020, "HiFi-GAN", arXiv 2010.05646, the norm of equation 4 as a mean. Both are about of power one.
    """
    size = _window(rate)
    found = log_mel(estimate, rate, size, size // 4, bands)
    wanted = log_mel(target, rate, size, size // 4, bands)
    return (found - wanted).abs().mean(dim=(1, 2))


def mel_decibels(sound: Tensor, rate: int, bands: int = 80) -> Tensor:
    """Mel spectrogram in dB below its highest place, [bands, frames] of [samples], low bands first; windows of 32 ms.

    The mel of O'Shaughnessy 1987, 2595 log10(1 + f / 700), with triangular bands.
    """
    size = _window(rate)
    power = stft(sound.float(), size, size // 4).abs().square()
    with torch.autocast(sound.device.type, enabled=False):
        mel = _mel_bands(rate, size, bands).to(sound.device, non_blocking=True) @ power
    decibels = 10 * mel.clamp(min=1e-10).log10()
    return decibels - decibels.max()


def _window(rate: int) -> int:
    """Samples of a window near to 32 ms."""
    return 1 << round(rate * 0.032).bit_length() - 1


def _mel_bands(rate: int, size: int, bands: int) -> Tensor:
    """Weights [bands, size // 2 + 1] of the frequencies."""
    top = 2595 * math.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, bands + 2) / 2595) - 1)
    frequencies = torch.linspace(0, rate / 2, size // 2 + 1)
    # Each band rises from the centre of the one below to its own, and falls to that of the one above.
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (frequencies - low) / (centre - low), (high - frequencies) / (high - centre)
    return torch.minimum(rising, falling).clamp(min=0)
