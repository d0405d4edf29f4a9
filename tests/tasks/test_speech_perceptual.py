from importlib.util import find_spec

import numpy as np
import pytest
import torch

import drivetrain
import sounds
from drivetrain.loop.metrics import Mean
from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.speech import audio
from drivetrain.tasks.speech.harmonics import Voices
from drivetrain.tasks.speech.perceptual import add_scores, require_scores

RATE = 8000
pytestmark = pytest.mark.skipif(find_spec("pystoi") is None, reason="without the extra `scores`")
with_pesq = pytest.mark.skipif(find_spec("pesq") is None, reason="pesq is built from source, by a compiler")


def voice(seconds=1.5):
    return torch.from_numpy(Voices(1, RATE, int(RATE * seconds)).take(0, np.random.default_rng(0))).float()


def scored(name, estimate, target, rate=RATE):
    metrics = {name: Mean()}
    add_scores(metrics, [name], torch.stack(estimate), torch.stack(target), rate)
    return metrics[name]


@pytest.mark.parametrize("name", ["stoi", pytest.param("pesq", marks=with_pesq)])
def test_noise_costs_score_and_silence_has_none(name):
    clean = voice()
    noise = torch.randn(len(clean), generator=torch.Generator().manual_seed(0)) * clean.std()
    good, bad = (scored(name, [clean + loud * noise], [clean]).value() for loud in (0.01, 1.0))
    assert good > bad > 0
    silent = scored(name, [clean, clean * 0], [clean, clean * 0])
    assert silent.state()[1] == 1


@with_pesq
def test_other_rates_are_heard_at_those_that_pesq_knows():
    clean = torch.from_numpy(np.repeat(voice().numpy(), 3))
    assert scored("pesq", [clean], [clean], 3 * RATE).value() > 4


def test_scores_stand_beside_the_metrics_of_an_evaluation(tmp_path):
    recipe = sounds.tiny_vocoder(scores=["stoi"], shown=0)
    recipe["task"]["model"] = sounds.VOCODER | {"seconds": 1.0}
    once = ["budget.steps=1", "networks=null"]
    found = drivetrain.train(recipe, once, run=tmp_path / "run", progress=False).metrics["held-out"]
    assert -1 <= found["stoi"] <= 1


def test_a_library_that_is_missing_is_named_with_the_extra(monkeypatch):
    monkeypatch.setattr(audio, "find_spec", lambda name: None)
    with pytest.raises(Failure, match="pesq") as caught:
        require_scores(["pesq"])
    assert caught.value.outcome.code is Exit.INPUT_MISSING
    assert "drivetrain[scores]" in caught.value.outcome.hint
