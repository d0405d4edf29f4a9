"""Small folders of sound, and recipes that train on them in a few milliseconds a step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile

REAL = Path(__file__).parents[2] / "shared" / "data" / "speech"
"""Spoken digits, noises and rooms, where they are at hand: fg, bg, rir."""


def tone(frames, rate, pitch=300.0, loudness=0.3):
    return loudness * np.sin(2 * np.pi * pitch * np.arange(frames) / rate)


def write(path, sound, rate=8000, **how):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, sound, rate, **how)
    return path


def folders(root, speakers=4, files=5, rate=8000):
    """speech/SPEAKER/N.wav, noise/N.flac at twice the rate, rooms/N.npy."""
    draw = np.random.default_rng(0)
    for speaker in range(speakers):
        for number in range(files):
            sound = tone(1000 + 700 * number, rate, 150.0 + 40 * speaker + 10 * number)
            write(root / "speech" / f"s{speaker}" / f"{number}.wav", sound, rate)
    for number in range(3):
        write(root / "noise" / f"{number}.flac", 0.1 * draw.standard_normal(3000 + 9000 * number), 2 * rate)
    (root / "rooms").mkdir()
    for number in range(2):
        np.save(root / "rooms" / f"{number}.npy", draw.standard_normal(800) * np.exp(-np.arange(800) / 100))
    return root


def tiny_recipe(root, **source):
    """A denoiser that takes some ten milliseconds a step on `folders`."""
    where = {
        "kind": "speech",
        "path": str(root / "speech"),
        "background": {"path": str(root / "noise")},
        "responses": {"path": str(root / "rooms")},
        "split": [0.7, 0.3, 0.0],
        "distort": {"reverb": 0.5, "equalizer": 0.5, "clip": 0.5, "band": 0.5, "noise": 0.5},
    } | source
    return {
        "name": "tiny-speech",
        "task": {
            "kind": "speech",
            "model": {"kind": "denoiser", "rate": 8000, "seconds": 0.2, "width": 4, "depth": 2},
            "shown": 3,
        },
        "data": {
            "train": {"sources": [where | {"part": "train"}]},
            "validation": {"held-out": where | {"part": "validation"}},
        },
        "lanes": 4,
        "batch": {"size": 4, "micro": 2},
        "budget": {"steps": 60},
        "optimizer": {"kind": "adamw", "lr": 2e-3, "clip": 1.0},
        "schedule": {"kind": "cosine", "warmup": {"steps": 5}, "length": {"steps": 60}},
        "checkpoint": {"every": {"steps": 25}},
        "evaluate": {"every": {"steps": 30}, "batch": 2},
        "launch": {"threads": 1},
    }


VOCODER = {
    "kind": "vocoder",
    "rate": 8000,
    "seconds": 0.1,
    "bands": 20,
    "latent": 8,
    "extra": 4,
    "width": 16,
    "depth": 1,
}


def tiny_vocoder(**task):
    """A vocoder against a discriminator from step 20 on, on computed voices."""
    voices = {"kind": "harmonics", "samples": 30, "split": [0.8, 0.2, 0.0], "snr": [0, 10]}
    return {
        "name": "tiny-vocoder",
        "task": {
            "kind": "vocoder",
            "model": VOCODER,
            "discriminator": {"periods": [2], "width": 2},
            "shown": 1,
        }
        | task,
        "data": {
            "train": {"sources": [voices | {"part": "train"}]},
            "validation": {"held-out": voices | {"part": "validation"}},
        },
        "lanes": 4,
        "batch": {"size": 4},
        "budget": {"steps": 60},
        "networks": {"discriminator": {"start": 20}},
        "optimizer": {"kind": "adamw", "lr": 5e-3, "clip": 1.0},
        "schedule": {"kind": "constant"},
        "checkpoint": {"every": {"steps": 25}},
        "evaluate": {"every": {"steps": 20}, "batch": 2},
        "launch": {"threads": 1},
    }


def tiny_enhancer(stage_one, **task):
    """An enhancer in the latent space of a run of `tiny_vocoder`."""
    recipe = tiny_vocoder()
    del recipe["networks"]
    return recipe | {
        "name": "tiny-enhancer",
        "task": {
            "kind": "enhancer",
            "model": VOCODER,
            "denoiser": {"width": 4, "depth": 2},
            "flow": {"width": 16, "depth": 1, "steps": 2},
            "shown": 1,
        }
        | task,
        "init": {"from": str(stage_one), "part": "generator", "freeze": True},
    }
