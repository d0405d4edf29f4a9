from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import drivetrain
import sounds
from conftest import run_under_supervisor, trace
from drivetrain.checkpoint.commits import newest
from drivetrain.data.batch_reader import LocalBatch, MicroBatch
from drivetrain.engine.engine import Engine
from drivetrain.ledger.derive import lineage, samples_used
from drivetrain.ledger.ledger import read
from drivetrain.loop.step import Step
from drivetrain.optim.network_optimizer import build_network_optimizers
from drivetrain.optim.recipe import SGD, Constant
from drivetrain.optim.schedules import Horizon
from drivetrain.spec.amount import Scale
from drivetrain.spec.batches import Batches
from drivetrain.spec.exits import Exit
from drivetrain.spec.load import load
from drivetrain.spec.tree import RecipeMistakes
from drivetrain.tasks.speech import recipe as settings
from drivetrain.tasks.speech.discriminator import Discriminator, discriminator_loss, feature_distance, generator_loss
from drivetrain.tasks.speech.spectra import mel_distance
from drivetrain.tasks.speech.vocoder import Vocoder, settled
from drivetrain.tasks.speech.vocoding import Vocoding
from engines import alone

SMALL = settings.Vocoder(rate=8000, seconds=0.2, bands=20, latent=8, extra=4, width=16, depth=1)


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def vocoder(**changed):
    torch.manual_seed(0)
    return Vocoder(settings.Vocoder(**({"rate": 8000, "bands": 20, "latent": 8, "width": 16, "depth": 1} | changed)))


def discriminator(periods=(2, 3), spectra=True):
    torch.manual_seed(0)
    return Discriminator(settings.Discriminator(periods=periods, spectra=spectra, width=2), 8000)


def train(recipe, run, *overrides):
    return drivetrain.train(recipe, overrides, run=run, progress=False)


def scores(run):
    return [record["metrics"] for record in lineage(read(run / "ledger.jsonl")) if record["kind"] == "evaluation"]


# The generator


@pytest.mark.parametrize("samples", [256, 1000, 1601])
def test_a_copy_is_as_long_as_the_sound_and_a_frame_has_its_bands(samples):
    with torch.no_grad():
        copy = vocoder()(noise(2, samples))
    assert copy.sound.shape == (2, samples)
    assert copy.mel.shape == copy.guess.shape == (2, 20, samples // 64 + 1)
    assert copy.sound.dtype == copy.mel.dtype == torch.float32


@pytest.mark.parametrize("how", [{"rate": 48000, "seconds": 0.1}, {"rate": 44100, "window": 2048, "hop": 420}])
def test_other_rates_and_windows_do_as_well(how):
    with torch.no_grad():
        assert vocoder(**how)(noise(1, 5000)).sound.isfinite().all()


def test_twice_as_loud_gives_a_copy_twice_as_loud_and_samples_do_not_meet():
    model, sound = vocoder(), noise(3, 1600)
    with torch.no_grad():
        found = model(sound).sound
        assert torch.allclose(model(sound * 8).sound, found * 8, rtol=1e-3, atol=1e-3)
        assert torch.allclose(model(sound[1:2]).sound, found[1:2], atol=1e-5)


def test_every_frame_of_a_latent_has_mean_zero_and_power_one():
    latent = vocoder().encode(noise(2, 20, 30))
    assert latent.shape == (2, 8, 30)
    assert latent.mean(dim=1).abs().max() < 1e-5
    assert latent.square().mean(dim=1).flatten().tolist() == pytest.approx([1.0] * 60, abs=1e-2)
    assert torch.allclose(settled(latent), latent, rtol=1e-2)


def test_gradients_reach_every_weight_and_are_finite_also_of_silence():
    model = vocoder()
    copy = model(torch.cat([noise(1, 1600), torch.zeros(1, 1600)]))
    (copy.sound.abs().mean() + (copy.guess - copy.mel).abs().mean()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_the_mel_distance_is_zero_for_equals_and_grows_with_noise():
    target = noise(2, 4000)
    distances = [mel_distance(target + loud * noise(2, 4000, seed=1), target, 8000) for loud in (0.0, 0.1, 1.0)]
    assert not distances[0].any()
    assert (distances[0] < distances[1]).all()
    assert (distances[1] < distances[2]).all()


# The discriminator and the losses


@pytest.mark.parametrize("samples", [600, 1601])
def test_opinions_are_on_each_sample_by_itself_whatever_its_length(samples):
    model, sound = discriminator(), noise(3, samples)
    with torch.no_grad():
        seen, alone = model(sound), model(sound[1:2])
    assert len(seen) == 2 + 3
    for part, own in zip(seen, alone, strict=True):
        for layer, same in zip(part, own, strict=True):
            assert torch.allclose(layer[1:2], same, atol=1e-5)


@pytest.mark.parametrize(("periods", "spectra", "parts"), [((2, 3, 5), False, 3), ((), True, 3)])
def test_parts_can_be_left_out(periods, spectra, parts):
    assert len(discriminator(periods, spectra)(noise(1, 800))) == parts


def test_losses_are_those_of_their_papers():
    real, fake = [[torch.tensor([[0.5, 3.0]])]], [[torch.tensor([[-2.0, 0.0]])]]
    assert discriminator_loss(real, fake, "hinge").item() == pytest.approx((0.5 + 0) / 2 + (0 + 1) / 2)
    assert generator_loss(fake, "hinge").item() == pytest.approx(1.0)
    assert discriminator_loss(real, fake, "squares").item() == pytest.approx((0.25 + 4) / 2 + (4 + 0) / 2)
    assert generator_loss(fake, "squares").item() == pytest.approx((9 + 1) / 2)


def test_the_feature_distance_is_relative_and_zero_for_equals():
    seen = [[torch.tensor([[2.0, -2.0]]), torch.zeros(1, 1)]]
    other = [[torch.tensor([[3.0, -2.0]]), torch.ones(1, 1)]]
    assert feature_distance(seen, seen).item() == 0
    assert feature_distance(seen, other).item() == pytest.approx(0.25)


def step_of(task, index=1):
    """A real step of a vocoder's engine; plain SGD, so that a gradient shows in the weights."""
    torch.manual_seed(0)
    networks = task.networks()
    network_optimizers = build_network_optimizers(
        networks, SGD(lr=0.1, weight_decay=0.0), Constant(), Horizon(100, Scale(Batches(4)))
    )
    for network_optimizer in network_optimizers.values():
        network_optimizer.advance(4)
    engine = Engine(networks, network_optimizers, alone())
    batches = [{"clean": noise(2, 1600, seed=number)} for number in range(2)]
    micro = tuple(MicroBatch(b, 2, 2 * n, n, 0, np.arange(2 * n, 2 * n + 2)) for n, b in enumerate(batches))
    return engine, Step(engine, LocalBatch(index, 0, 4, micro, {}, 0, False), {"samples": 4})


def small_task(**changed):
    return Vocoding(
        settings.Vocoding(model=SMALL, discriminator=settings.Discriminator(periods=(2,), width=2), **changed)
    )


def weights(engine, name):
    return [parameter.detach().clone() for parameter in engine.networks[name].parameters()]


def same(before, after):
    return all(map(torch.equal, before, after))


@pytest.mark.parametrize("kind", ["hinge", "squares"])
def test_each_loss_moves_its_own_network_only(kind):
    task = small_task(adversarial=kind)
    engine, step = step_of(task)
    before = {name: weights(engine, name) for name in engine.networks}
    step.minimize("generator", partial(task._copying, step, kind))
    assert not same(before["generator"], weights(engine, "generator"))
    assert same(before["discriminator"], weights(engine, "discriminator"))
    assert all(parameter.grad is None for parameter in engine.networks["discriminator"].parameters())
    moved = weights(engine, "generator")
    step.minimize("discriminator", partial(task._telling, step, kind))
    assert same(moved, weights(engine, "generator"))
    assert not same(before["discriminator"], weights(engine, "discriminator"))


def test_the_discriminator_hears_what_the_generator_made_before_it_moved():
    task = small_task()
    engine, step = step_of(task)
    with torch.no_grad():
        fakes = [task._telling(step_of(task)[1], "hinge", engine.networks, m.batch) for m in step._batch.micro_batches]
    step.minimize("generator", partial(task._copying, step, "hinge"))
    step.minimize("discriminator", partial(task._telling, step, "hinge"))
    told = step.calls[1].result.read().losses["discriminator"]
    assert told == pytest.approx(sum(each["discriminator"].value.item() for each in fakes) / 4, rel=1e-5)


# Whole runs


def test_thirty_and_thirty_steps_are_sixty_bit_for_bit_and_copies_get_better_meanwhile(tmp_path):
    recipe = sounds.tiny_vocoder()
    train(recipe, tmp_path / "straight")
    assert train(recipe, tmp_path / "halves", "stop.at=[30]").step == 30
    assert train(recipe, tmp_path / "halves").step == 60
    assert trace(tmp_path / "halves") == trace(tmp_path / "straight")
    assert scores(tmp_path / "halves")[-1] == scores(tmp_path / "straight")[-1]
    assert {"generator.adversarial", "discriminator.discriminator"} <= set(last_losses(tmp_path / "straight"))
    distances = [score["held-out"]["stft_distance"] for score in scores(tmp_path / "straight")]
    assert distances[0] > distances[-1], "falls from step 20 on, where the discriminator begins"


def last_losses(run):
    return [record["losses"] for record in read(run / "ledger.jsonl") if record["kind"] == "step"][-1]


def test_two_processes_then_one_use_each_sample_once_and_score_alike(tmp_path):
    recipe = sounds.tiny_vocoder() | {"budget": {"steps": 8}, "evaluate": {"every": {"steps": 4}, "batch": 2}}
    recipe["networks"] = {"discriminator": {"start": 3}}
    resized = (["stop.at=[4]", "launch.processes=2"], Exit.STOPPED), ([], Exit.DONE)
    for run, attempts in (("resized", resized), ("alone", resized[1:])):
        for overrides, code in attempts:
            assert run_under_supervisor(recipe, tmp_path / run, *overrides).code == code
    used = [samples_used(lineage(read(tmp_path / run / "ledger.jsonl"))) for run in ("resized", "alone")]
    assert used[0] == used[1]
    for one, other in zip(scores(tmp_path / "resized"), scores(tmp_path / "alone"), strict=True):
        assert one["held-out"] == pytest.approx(other["held-out"], rel=1e-2)


ONCE = ("budget.steps=2", "networks.discriminator.start=2")


def test_a_generator_that_moves_every_second_step_stands_still_in_between(tmp_path):
    recipe = sounds.tiny_vocoder() | {"networks": {"generator": {"turns": [1, 2]}}}
    recipe |= {"checkpoint": {"every": {"steps": 1}, "keep": 3}}
    run = train(recipe, tmp_path / "run", "budget.steps=3").run
    commits = [newest(run).path.parent / f"step-{step:08d}" for step in (2, 3)]
    moved = {name: not torch.equal(*(tensor(commit, name) for commit in commits)) for name in NAMES}
    assert moved == {NAMES[0]: False, NAMES[1]: True}


NAMES = ("generator/decoder.first.weight", "discriminator/parts.0.last.parametrizations.weight.original1")


def tensor(commit, name):
    from drivetrain.checkpoint.commit import load

    return load(commit)[1].tensors[f"networks/{name}"]


def test_alone_in_half_precision_and_with_squares_it_trains_scores_and_shows(tmp_path):
    run = train(sounds.tiny_vocoder(adversarial="squares"), tmp_path / "half", *ONCE, "precision=bf16").run
    assert np.isfinite(list(scores(run)[-1]["held-out"].values())).all()
    shown = sorted(path.name for path in (run / "gallery" / "step-00000002").iterdir())
    assert shown == ["0-mel.png", "0-prediction.wav", "0-target.wav"]
    alone = train(sounds.tiny_vocoder(adversarial=None), tmp_path / "alone", "budget.steps=1", "networks=null").run
    assert set(last_losses(alone)) == {"mel", "spectrum"}


def test_a_run_copies_recordings_of_any_length(tmp_path):
    run = train(sounds.tiny_vocoder(), tmp_path / "run", *ONCE).run
    sounds.write(tmp_path / "in" / "a.wav", sounds.tone(5001, 11025), 11025)
    done = drivetrain.infer_speech(run, tmp_path / "in", tmp_path / "out")
    assert [path.name for path in done.written] == ["a.wav"]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("task.discriminator={periods: [], spectra: false}", "neither periods nor spectra"),
        ("task.model.hop=200", "sound gets lost"),
        ("task.adversarial=wgan", "hinge"),
        ("task.scores=[mos]", "pesq"),
    ],
)
def test_mistakes_are_told_before_anything_is_read(override, words):
    with pytest.raises(RecipeMistakes) as caught:
        load(sounds.tiny_vocoder(), [override])
    assert words in caught.value.details


@given(st.sampled_from([8000, 16000, 44100, 48000]), st.floats(0.1, 3))
def test_half_a_chunk_is_a_number_of_whole_hops(rate, seconds):
    model = settings.Vocoder(rate=rate, seconds=seconds)
    assert model.samples <= model.chunk < model.samples + 2 * model.hop_size
    assert model.chunk % (2 * model.hop_size) == 0
