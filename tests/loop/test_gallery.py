"""What a gallery takes, and what it refuses by name."""

import re
import wave

import numpy as np
import pytest
import torch

from drivetrain import Exit, Failure
from drivetrain.loop.gallery import Gallery

GRAY = np.arange(12).reshape(3, 4) / 11
COLOURS = np.arange(36).reshape(3, 4, 3) / 35


def whole(picture):
    return np.round(picture * 255).astype(np.uint8)


def content(run, name):
    return (run / "gallery" / "step-00000001" / name).read_bytes()


@pytest.mark.parametrize(
    ("given", "colours"),
    [
        (whole(COLOURS), COLOURS),
        (COLOURS, COLOURS),
        (torch.tensor(COLOURS, dtype=torch.float32, requires_grad=True), COLOURS),
        (torch.tensor(whole(COLOURS)), COLOURS),
        (torch.tensor(COLOURS).permute(2, 0, 1).contiguous().permute(1, 2, 0), COLOURS),
        (GRAY, np.repeat(GRAY[:, :, None], 3, axis=2)),
        (whole(GRAY)[:, :, None], np.repeat(GRAY[:, :, None], 3, axis=2)),
    ],
)
def test_a_picture_may_be_whole_numbers_or_floats_gray_or_coloured_array_or_tensor(tmp_path, given, colours):
    Gallery(tmp_path, 1).picture("given", given)
    Gallery(tmp_path, 1).picture("plain", whole(colours))
    assert content(tmp_path, "given.png") == content(tmp_path, "plain.png")


@pytest.mark.parametrize(
    ("given", "found", "hint"),
    [
        (torch.zeros(3, 8, 9), "float32 [3, 8, 9]", "permute(1, 2, 0)"),
        (np.zeros((8, 9, 4), np.uint8), "uint8 [8, 9, 4]", ""),
        (np.zeros(8), "float64 [8]", ""),
        (np.zeros((0, 9)), "float64 [0, 9]", ""),
        (np.zeros((8, 9), np.int64), "int64 [8, 9]", ""),
        (np.full((8, 9), -0.5), "floats from -0.5 to -0.5", "clip(0, 1)"),
        (np.arange(6.0).reshape(2, 3), "floats from 0 to 5", "clip(0, 1)"),
        (np.full((8, 9), np.nan), "numbers that are not finite", ""),
        ([[0, 1]], "list", "numpy.asarray"),
    ],
)
def test_another_picture_is_refused_by_name_with_what_it_is(tmp_path, given, found, hint):
    with pytest.raises(Failure, match=re.escape("gallery.picture('mel') takes uint8, or floats from 0 to 1")) as caught:
        Gallery(tmp_path, 1).picture("mel", given)
    assert caught.value.outcome.code == Exit.INTERNAL
    assert f"it was given {found}, at " in caught.value.outcome.cause
    assert hint in caught.value.outcome.hint
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "given",
    [
        np.array([0.0, 0.5, 2.0, -2.0]),
        torch.tensor([[0.0, 0.5, 2.0, -2.0]], requires_grad=True),
        torch.tensor([0.0, 0.5, 2.0, -2.0], dtype=torch.bfloat16),
    ],
)
def test_a_sound_may_be_an_array_or_a_tensor_of_floats_and_what_is_too_loud_is_cut_off(tmp_path, given):
    Gallery(tmp_path, 1).audio("bell", given, 8000)
    with wave.open(str(tmp_path / "gallery" / "step-00000001" / "bell.wav")) as file:
        assert file.getframerate() == 8000
        assert np.frombuffer(file.readframes(9), "<i2").tolist() == [0, 16384, 32767, -32767]


@pytest.mark.parametrize(
    ("given", "rate", "found"),
    [
        (np.zeros(9, np.int16), 8000, "int16 [9]"),
        (np.zeros((2, 9)), 8000, "float64 [2, 9]"),
        (np.array([0.0, np.inf]), 8000, "numbers that are not finite"),
        ([0.0], 8000, "list"),
        (np.zeros(9), 8000.5, "8000.5"),
        (np.zeros(9), 0, "0"),
    ],
)
def test_another_sound_is_refused_by_name_with_what_it_is(tmp_path, given, rate, found):
    with pytest.raises(Failure, match=re.escape("gallery.audio('bell') takes")) as caught:
        Gallery(tmp_path, 1).audio("bell", given, rate)
    assert f"it was given {found}, at " in caught.value.outcome.cause
