"""What a small denoiser reaches on real recordings in five minutes, on a speaker and a noise that it never heard.

`python benchmarks/speech.py --folder speech_data`, where `fg` has spoken digits (DIGIT_SPEAKER_TAKE.wav, 8 kHz), `bg`
noises and `rir` responses of rooms. Recipe `denoise`, one run for each noise that is held out. Told are the gain over
the mixture in SI-SDR as the last evaluation has it, and that of whole files that `infer speech` has denoised.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

import drivetrain
from drivetrain.tasks.speech.mixtures import at_snr
from drivetrain.tasks.speech.spectra import si_sdr

HEARD, HELD_OUT = ("george", "jackson"), "lucas"
NOISES = ("noise1.wav", "noise2.wav", "noise3.wav")
FILES, SNR = 40, 2.5  # files that are denoised whole, decibels of the speech in them above the noise


def recipe(folder: Path, noise: str, steps: int, threads: int) -> dict[str, Any]:
    """`denoise` on the other noises and speakers, small enough for a CPU."""
    heard = [name for name in NOISES if name != noise]
    speech, background, rooms = (str(folder / name) for name in ("fg", "bg", "rir"))
    source = {
        "name": "digits",
        "kind": "speech",
        "path": speech,
        "include": [f"*_{speaker}_*.wav" for speaker in HEARD],
        "background": {"path": background, "include": heard},
        "responses": {"path": rooms, "include": ["rir1.wav", "rir2.wav"]},
        "snr": [-5, 10],
        "distort": {"reverb": 0.2, "equalizer": 1.0, "gains": [-20, 20], "band": 0.2, "noise": 0.3},
    }
    held_out = {
        "kind": "speech",
        "path": speech,
        "include": [f"*_{HELD_OUT}_*.wav"],
        "part": "all",
        "background": {"path": background, "include": [noise], "part": "all"},
        "responses": None,
        "snr": [-5, 10],
        "distort": {"reverb": 0.0},
    }
    return {
        "base": "denoise",
        "name": "digits",
        "task": {"model": {"rate": 8000, "seconds": 1.0, "width": 8, "depth": 3}},
        "data": {"train": {"sources": [source], "workers": 0}, "validation": {"recordings": held_out}},
        "lanes": 4,
        "batch": {"size": 8, "micro": 8},
        "budget": {"steps": steps},
        "optimizer": {"lr": 2e-3},
        "schedule": {"warmup": {"steps": 20}, "length": {"steps": steps}},
        "evaluate": {"every": {"steps": steps}, "batch": 25},
        "checkpoint": {"every": {"steps": steps}},
        "launch": {"threads": threads},
        "watch": {"tensorboard": False},
    }


def measure(folder: Path, noise: str, steps: int, threads: int) -> dict[str, Any]:
    """One run with this noise held out."""
    with tempfile.TemporaryDirectory() as scratch:
        run, mixed, denoised = (Path(scratch) / name for name in ("run", "mixed", "denoised"))
        written = Path(scratch) / "digits.yaml"
        written.write_text(json.dumps(recipe(folder, noise, steps, threads)))
        started = time.perf_counter()
        result = drivetrain.train(written, run=run, progress=False)
        seconds = time.perf_counter() - started
        clean = mixtures(folder, noise, mixed)
        drivetrain.infer_speech(run, mixed, denoised)
        gains = [gain(name, sound, mixed, denoised) for name, sound in clean.items()]
    return {
        "held_out": noise,
        "steps": steps,
        "seconds": round(seconds),
        "gain_db": round(result.metrics["recordings"]["si_sdr_improvement"], 2),
        "whole_files_gain_db": round(statistics.fmean(gains), 2),
        "whole_files_least_db": round(min(gains), 2),
    }


def mixtures(folder: Path, noise: str, to: Path) -> dict[str, np.ndarray]:
    """Write files of the held-out speaker with the held-out noise; the clean speech by their names."""
    to.mkdir()
    background, _ = soundfile.read(folder / "bg" / noise, dtype="float32")
    clean = {}
    for path in sorted((folder / "fg").glob(f"*_{HELD_OUT}_*.wav"))[:FILES]:
        speech, rate = soundfile.read(path, dtype="float32")
        start = len(clean) * len(speech) % (len(background) - len(speech))
        mixture = speech + at_snr(speech, background[start : start + len(speech)], SNR)
        soundfile.write(to / path.name, mixture, rate, subtype="FLOAT")
        clean[path.name] = speech
    return clean


def gain(name: str, clean: np.ndarray, mixed: Path, denoised: Path) -> float:
    """Decibels of SI-SDR that a file has won."""
    before, after = (torch.from_numpy(soundfile.read(at / name, dtype="float32")[0]) for at in (mixed, denoised))
    target = torch.from_numpy(clean)
    return float(si_sdr(after[None], target[None]) - si_sdr(before[None], target[None]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--noise", choices=NOISES, action="append", help="held out; default: noise2.wav, noise3.wav")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    for noise in given.noise or NOISES[1:]:
        print(json.dumps(measure(given.folder.resolve(), noise, given.steps, given.threads)), flush=True)


if __name__ == "__main__":
    main()
