import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sounds
from drivetrain.tasks.speech.denoiser import Denoiser, changed, features
from drivetrain.tasks.speech.picture import heat
from drivetrain.tasks.speech.recipe import Denoiser as Settings
from drivetrain.tasks.speech.spectra import istft, mel_decibels, si_sdr, silent, stft, stft_distance, unit

SETTINGS = Settings(rate=8000, seconds=0.2, width=4, depth=2)


def network(settings=SETTINGS):
    torch.manual_seed(0)
    return Denoiser(settings).eval()


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("samples", [256, 1000, 1601])
def test_a_fresh_denoiser_gives_half_of_any_sound_of_any_length(samples):
    sound = noise(2, samples)
    with torch.no_grad():
        assert torch.allclose(network()(sound), sound / 2, atol=1e-5)


def trained_like():
    model = network()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def test_twice_as_loud_gives_twice_as_much_and_samples_do_not_meet():
    model, sound = trained_like(), noise(3, 1600)
    with torch.no_grad():
        found = model(sound)
        assert torch.allclose(model(sound * 8), found * 8, rtol=1e-3, atol=1e-4)
        assert torch.allclose(model(sound[1:2]), found[1:2], atol=1e-5)
        assert not model(torch.zeros(1, 1600)).any()


def test_gradients_are_finite_also_of_silence():
    model = trained_like()
    sound = torch.cat([noise(1, 1600), torch.zeros(1, 1600)])
    found = model(sound)
    (found.abs().mean() + stft_distance(found, torch.zeros(2, 1600), 8000).sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("rate", "window", "hop"), [(8000, 256, 64), (16000, 512, 128), (44100, 1024, 256), (48000, 1024, 256)]
)
def test_windows_follow_from_the_rate(rate, window, hop):
    assert (Settings(rate=rate).window_size, Settings(rate=rate).hop_size) == (window, hop)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"window": 256, "hop": 200}, "sound gets lost"),
        ({"seconds": 0.1, "rate": 8000, "window": 1024}, "shorter than a window"),
    ],
)
def test_windows_that_lose_sound_are_mistakes(settings, words):
    with pytest.raises(ValueError, match=words):
        Settings(**settings)


@given(st.integers(400, 3000))
def test_sound_comes_back_from_its_spectrum(samples):
    sound = noise(1, samples)
    assert torch.allclose(istft(stft(sound, 256, 64), 256, 64, samples), sound, atol=1e-4)


def test_zeros_halve_and_turn_nothing_and_phases_turn_as_told():
    spectrum = stft(noise(1, 800), 256, 64)
    change = torch.zeros(1, 3, *spectrum.shape[1:])
    assert torch.allclose(changed(spectrum, change), spectrum / 2)
    change[:, 1], change[:, 2] = -1, 2  # 1 + re, im = 0, 2: a quarter turn
    assert torch.allclose(changed(spectrum, change), spectrum * 0.5j, atol=1e-5)
    assert features(spectrum).shape == change.shape


def test_si_sdr_is_what_its_paper_says():
    target, error = noise(1, 4000).double(), noise(1, 4000, seed=1).double()
    error -= (error * target).sum() / target.square().sum() * target
    estimate = target + 0.1 * error
    wanted = 10 * torch.log10(target.square().sum() / (0.01 * error.square().sum()))
    assert si_sdr(estimate, target).item() == pytest.approx(wanted.item())
    assert si_sdr(estimate * 7, target).item() == pytest.approx(wanted.item())
    assert si_sdr(target, target) == 100
    assert si_sdr(torch.zeros(1, 4000).double(), target) == -100
    assert si_sdr(estimate, torch.zeros(1, 4000)).isnan()
    assert si_sdr(estimate * torch.nan, target).isnan()
    assert silent(torch.stack([target[0], target[0] * 0])).tolist() == [False, True]


def test_the_stft_distance_is_zero_for_equals_and_grows_with_noise():
    target = noise(2, 4000)
    distances = [stft_distance(target + loud * noise(2, 4000, seed=1), target, 8000) for loud in (0.0, 0.1, 1.0)]
    assert not distances[0].any()
    assert (distances[0] < distances[1]).all()
    assert (distances[1] < distances[2]).all()


def test_unit_gives_power_one_and_leaves_silence():
    sound = torch.stack([noise(1000) * 0.01, torch.zeros(1000)])
    scaled = sound * unit(sound)
    assert scaled[0].square().mean().item() == pytest.approx(1.0, rel=1e-4)
    assert not scaled[1].any()


def test_a_tone_is_one_bright_line_of_the_mel_picture():
    low, high = (mel_decibels(torch.from_numpy(sounds.tone(8000, 8000, pitch)), 8000) for pitch in (300, 2000))
    assert low.shape == (80, 126)
    assert low.max() == 0
    assert low[:, 60].argmax() < high[:, 60].argmax()
    picture = heat(low.numpy())
    assert picture.shape == (162, 252, 3)
    assert picture.dtype == np.uint8
    brightest = picture.sum(axis=2)[:, 120].argmax()
    assert brightest == pytest.approx(2 * (79 - int(low[:, 60].argmax())), abs=1)
