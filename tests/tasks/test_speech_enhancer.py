import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import drivetrain
import sounds
from conftest import tensors, trace
from drivetrain.cli.main import run as command
from drivetrain.ledger.derive import lineage
from drivetrain.ledger.ledger import read
from drivetrain.spec.load import load
from drivetrain.spec.tree import RecipeMistakes
from drivetrain.tasks.speech import recipe as settings
from drivetrain.tasks.speech.enhancing import Enhancing
from drivetrain.tasks.speech.flow import Flow, path, solved

SMALL = settings.Vocoder(rate=8000, seconds=0.1, bands=20, latent=8, extra=4, width=16, depth=1)


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# The flow


@given(st.floats(0, 0.99))
def test_the_velocity_is_that_of_the_path_from_start_to_end(time):
    start, end = noise(1, 4, 5).double(), noise(1, 4, 5, seed=1).double()
    place, velocity = path(start, end, torch.tensor([time]).double())
    later, same = path(start, end, torch.tensor([time + 0.01]).double())
    assert torch.allclose((later - place) / 0.01, velocity)
    assert torch.equal(velocity, same), "the conditional path is a straight line"
    assert torch.allclose(path(start, end, torch.zeros(1))[0], start)
    assert torch.allclose(path(start, end, torch.ones(1))[0], end, atol=1e-3)


@pytest.mark.parametrize(("solver", "order"), [("euler", 1), ("midpoint", 2)])
def test_twice_as_many_steps_bring_as_much_as_the_solvers_order_says(solver, order):
    start = torch.ones(2, 1, 1, dtype=torch.float64)

    def off(steps):
        """dx/dt = -x t, from 1, is exp(-1/2) at time 1."""
        found = solved(lambda place, time: -place * time[:, None, None], start, steps, solver)
        return abs(found[0].item() - np.exp(-0.5))

    assert off(32) / off(64) == pytest.approx(2**order, rel=0.1)


def flow():
    torch.manual_seed(0)
    return Flow(settings.Flow(width=16, depth=2), latent=8, bands=20)


def test_the_flow_tells_times_apart_once_it_has_learnt_and_samples_do_not_meet():
    model, latent, heard = flow(), noise(3, 8, 30), noise(3, 20, 30, seed=1)
    times = torch.tensor([0.0, 0.5, 0.5])
    with torch.no_grad():
        assert torch.equal(model(latent, times, heard), model(latent, times * 0, heard)), "blocks start without it"
        for block in model.frames.blocks:
            torch.nn.init.normal_(block.film.weight, std=0.1)
        found = model(latent, times, heard)
        assert torch.allclose(model(latent[1:2], times[1:2], heard[1:2]), found[1:2], atol=1e-5)
        assert not torch.allclose(model(latent, times * 0, heard)[1], found[1], atol=1e-3)


# The task


def task(**changed):
    return Enhancing(
        settings.Enhancing(
            model=SMALL,
            denoiser=settings.UNet(width=4, depth=2),
            flow=settings.Flow(width=16, depth=1, steps=2, **changed),
        )
    )


def networks(subject):
    torch.manual_seed(0)
    return {name: network.eval() for name, network in subject.networks().items()}


def test_what_is_enhanced_depends_on_its_own_sound_only_and_is_as_loud():
    subject = task()
    nets, sound = networks(subject), noise(3, 800)
    with torch.no_grad():
        found = subject.changed(nets, sound)
        assert torch.allclose(subject.changed(nets, sound[1:2]), found[1:2], atol=1e-4)
        assert torch.allclose(subject.changed(nets, sound * 8), found * 8, rtol=1e-2, atol=1e-2)
        denoised = nets["denoiser"](sound)
        assert torch.allclose(found.square().mean(dim=1), denoised.square().mean(dim=1), rtol=1e-3)
        assert not subject.changed(nets, torch.zeros(1, 800)).any()


def test_both_halves_of_a_chunk_start_with_the_same_noise():
    subject = task(temperature=1.0)
    half = SMALL.chunk // 2 // SMALL.hop_size
    drawn = subject._noise(torch.zeros(2, 8, 2 * half + 1))
    assert torch.equal(drawn[:, :, :half], drawn[:, :, half : 2 * half])
    assert torch.equal(drawn[0], drawn[1])
    assert drawn[0, :, :half].std() > 0.5


def test_each_loss_reaches_its_own_network_only():
    subject = task()
    nets = networks(subject)
    batch = {name: noise(2, 800, seed=seed) for seed, name in enumerate(("mixture", "speech", "clean"))}
    losses = subject.loss(nets, batch)
    losses["flow"].value.backward(retain_graph=True)
    assert all(parameter.grad is None for name in ("denoiser", "generator") for parameter in nets[name].parameters())
    assert any(parameter.grad is not None for parameter in nets["flow"].parameters())
    losses["wave"].value.backward()
    assert any(parameter.grad is not None for parameter in nets["denoiser"].parameters())


# Whole runs


@pytest.fixture(scope="module")
def stage_one(tmp_path_factory):
    run = tmp_path_factory.mktemp("stage") / "one"
    drivetrain.train(
        sounds.tiny_vocoder(), ["budget.steps=3", "networks.discriminator.start=2"], run=run, progress=False
    )
    return run


def train(recipe, run, *overrides):
    return drivetrain.train(recipe, overrides, run=run, progress=False)


def test_stage_one_stays_bit_for_bit_and_twelve_steps_are_twelve_also_in_halves(stage_one, tmp_path):
    recipe = sounds.tiny_enhancer(stage_one) | {"budget": {"steps": 12}, "evaluate": {"every": {"steps": 6}}}
    train(recipe, tmp_path / "straight")
    assert train(recipe, tmp_path / "halves", "stop.at=[6]").step == 6
    assert train(recipe, tmp_path / "halves").step == 12
    assert trace(tmp_path / "halves") == trace(tmp_path / "straight")
    before, after = tensors(stage_one), tensors(tmp_path / "straight")
    kept = [name for name in after if name.startswith("networks/generator/")]
    assert len(kept) > 30
    assert all(torch.equal(before[name], after[name]) for name in kept)
    assert not [name for name in after if "generator" in name and not name.startswith("networks/")]
    *_, last = (r for r in lineage(read(tmp_path / "halves" / "ledger.jsonl")) if r["kind"] == "evaluation")
    assert np.isfinite(list(last["metrics"]["held-out"].values())).all()
    shown = sorted(path.name for path in (tmp_path / "straight" / "gallery" / "step-00000012").iterdir())
    assert shown == ["0-denoised.wav", "0-input.wav", "0-mel.png", "0-prediction.wav", "0-target.wav"]


def test_recordings_are_enhanced_in_half_precision_too(stage_one, tmp_path, capsys):
    run = train(sounds.tiny_enhancer(stage_one), tmp_path / "run", "budget.steps=1", "precision=bf16").run
    sounds.write(tmp_path / "in" / "a.wav", sounds.tone(5001, 11025), 11025)
    assert command(["infer", "speech", str(tmp_path / "in"), str(tmp_path / "out"), "--run", str(run)]) == 0
    assert "1 of 1 files" in capsys.readouterr().out


def test_without_a_frozen_stage_one_there_is_no_recipe(stage_one):
    for override in ("init=null", "init.freeze=false", "init.part=null"):
        with pytest.raises(RecipeMistakes) as caught:
            load(sounds.tiny_enhancer(stage_one), [override])
        assert "init: {from: RUN, part: generator, freeze: true}" in caught.value.details


def test_another_size_than_stage_ones_is_told_by_name(stage_one, tmp_path):
    with pytest.raises(drivetrain.Failure) as caught:
        train(sounds.tiny_enhancer(stage_one), tmp_path / "run", "task.model.width=8")
    assert "generator/" in str(caught.value) + caught.value.details


def test_a_denoiser_that_is_trained_already_can_be_taken_too(stage_one, tmp_path):
    denoiser = sounds.tiny_recipe(sounds.folders(tmp_path))
    denoiser["task"]["model"] |= {"seconds": 0.1}
    noiseless = train(denoiser, tmp_path / "denoiser", "budget.steps=1", "schedule.warmup=null").run
    recipe = sounds.tiny_enhancer(stage_one)
    recipe["init"] = [recipe["init"], {"from": str(noiseless), "part": "denoiser", "map": {"model/": "denoiser/"}}]
    run = train(recipe, tmp_path / "run", "budget.steps=1", "optimizer.lr=0", "optimizer.weight_decay=0").run
    before, after = tensors(noiseless), tensors(run)
    kept = {name: name.replace("/model/", "/denoiser/") for name in before if name.startswith("networks/model/")}
    assert all(torch.equal(before[name], after[other]) for name, other in kept.items())
