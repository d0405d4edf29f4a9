import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import drivetrain
import sounds
from conftest import run_under_supervisor, trace
from drivetrain.data.opening import open_source
from drivetrain.ledger.derive import lineage, samples_used
from drivetrain.ledger.ledger import read
from drivetrain.loop.gallery import Gallery
from drivetrain.spec.exits import Exit
from drivetrain.spec.load import load
from drivetrain.spec.tree import RecipeMistakes
from drivetrain.tasks.speech.mixtures import open_harmonics
from drivetrain.tasks.speech.recipe import Denoiser, Harmonics, Speech
from drivetrain.tasks.speech.task import SpeechTask

SAMPLES = {name: np.zeros(1600, np.float32) for name in ("mixture", "speech", "clean")}


@pytest.fixture
def recipe(tmp_path):
    return sounds.tiny_recipe(sounds.folders(tmp_path))


def train(recipe, run, *overrides):
    return drivetrain.train(recipe, overrides, run=run, progress=False)


def task(**settings):
    return SpeechTask(Speech(model=Denoiser(rate=8000, seconds=0.2, width=4, depth=1), **settings))


def test_thirty_and_thirty_steps_are_sixty_bit_for_bit_whoever_reads(recipe, tmp_path):
    train(recipe, tmp_path / "straight")
    assert train(recipe, tmp_path / "halves", "stop.at=[30]", "data.train.workers=0").step == 30
    assert train(recipe, tmp_path / "halves", "data.train.workers=2").step == 60
    assert trace(tmp_path / "halves") == trace(tmp_path / "straight")
    halves, straight = ([*scores(tmp_path / run)][-1] for run in ("halves", "straight"))
    assert halves == straight


def scores(run):
    return [record["metrics"] for record in lineage(read(run / "ledger.jsonl")) if record["kind"] == "evaluation"]


def test_two_processes_then_one_use_each_sample_once_and_score_alike(recipe, tmp_path):
    recipe["budget"] = {"steps": 12}
    recipe["evaluate"] = {"every": {"steps": 6}, "batch": 2}
    resized = (["stop.at=[6]", "launch.processes=2"], Exit.STOPPED), ([], Exit.DONE)
    for run, attempts in (("resized", resized), ("alone", resized[1:])):
        for overrides, code in attempts:
            assert run_under_supervisor(recipe, tmp_path / run, *overrides).code == code
    used = [samples_used(lineage(read(tmp_path / run / "ledger.jsonl"))) for run in ("resized", "alone")]
    assert used[0] == used[1]
    for resized, alone in zip(scores(tmp_path / "resized"), scores(tmp_path / "alone"), strict=True):
        assert resized["held-out"] == pytest.approx(alone["held-out"], rel=1e-3, abs=1e-3)


def test_exactly_the_first_samples_are_shown_to_ear_and_eye(recipe, tmp_path):
    once = ["budget.steps=1", "schedule.warmup=null", "watch.tensorboard=true"]
    run = train(recipe, tmp_path / "run", *once).run
    folder = run / "gallery" / "step-00000001"
    kinds = ("input.wav", "mel.png", "prediction.wav", "target.wav")
    assert sorted(path.name for path in folder.iterdir()) == [f"{n}-{kind}" for n in range(3) for kind in kinds]
    opened = open_source(load(recipe).recipe.data.validation["held-out"], 0, tmp_path / "cache.json")
    for number, sample in enumerate(opened.read(np.arange(3), np.arange(3))):
        for name, part in (("input", "mixture"), ("target", "speech")):
            heard, rate = soundfile.read(folder / f"{number}-{name}.wav")
            assert rate == 8000
            assert heard == pytest.approx(sample[part], abs=1e-4)
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    heard = ("input", "prediction", "target")
    assert sorted(events.Tags()["audio"]) == [f"gallery/{n}-{name}" for n in range(3) for name in heard]
    (picture,) = events.Images("gallery/0-mel")
    assert picture.encoded_image_string == (folder / "0-mel.png").read_bytes()
    assert (picture.width, picture.height) == (52, 486)


def test_half_precision_trains_scores_and_shows(recipe, tmp_path):
    run = train(recipe, tmp_path / "run", "budget.steps=2", "schedule.warmup=null", "precision=bf16").run
    assert np.isfinite(list(scores(run)[-1]["held-out"].values())).all()
    assert (run / "gallery" / "step-00000002" / "2-mel.png").is_file()


def test_exact_mode_gives_the_same_bits_on_one_and_two_processes(recipe, tmp_path):
    recipe |= {"exact": True, "batch": {"size": 4, "micro": 1}, "budget": {"steps": 6}}
    recipe["evaluate"] = {"every": {"steps": 3}, "batch": 2}
    for processes in (1, 2):
        outcome = run_under_supervisor(recipe, tmp_path / str(processes), f"launch.processes={processes}")
        assert outcome.code == Exit.DONE
    assert trace(tmp_path / "1").losses == trace(tmp_path / "2").losses
    assert scores(tmp_path / "1") == scores(tmp_path / "2")


def test_nothing_is_shown_where_nothing_is_asked_for(recipe, tmp_path):
    run = train(recipe, tmp_path / "run", "budget.steps=1", "schedule.warmup=null", "task.shown=0").run
    assert not (run / "gallery").exists()


def test_a_png_is_what_other_programs_read(tmp_path):
    dots = np.random.default_rng(0).integers(0, 256, (7, 5, 3)).astype(np.uint8)
    Gallery(tmp_path, 3).picture("dots", dots)
    with Image.open(tmp_path / "gallery" / "step-00000003" / "dots.png") as picture:
        assert np.array_equal(np.asarray(picture), dots)


def test_files_that_are_left_out_are_counted_in_the_ledger(recipe, tmp_path):
    (tmp_path / "noise" / "2.flac").write_text("no sound")
    once = ["budget.steps=1", "schedule.warmup=null"]
    with pytest.raises(drivetrain.Failure, match=r"noise/2\.flac"):
        train(recipe, tmp_path / "run", *once)
    skip = ["data.train.sources[0].unreadable=skip", "data.validation.held-out.unreadable=skip"]
    run = train(recipe, tmp_path / "other", *once, *skip).run
    notes = [record["text"] for record in read(run / "ledger.jsonl") if record["kind"] == "note"]
    left_out = [note for note in notes if "left out: 1: " in note]
    assert [note.partition(": ")[0] for note in left_out] == ["data.train.sources[0]", "data.validation.held-out"]
    assert "2.flac" in left_out[0]


def test_the_target_is_the_speech_or_what_it_was_before():
    parts = {name: np.full(1600, value, np.float32) for name, value in (("mixture", 3), ("speech", 2), ("clean", 1))}
    for target, value in (("speech", 2), ("clean", 1)):
        batch = task(target=target).collate([parts, parts])
        assert batch["mixture"].shape == (2, 1600)
        assert (batch["mixture"] == 3).all()
        assert (batch["target"] == value).all()


def test_losses_do_not_depend_on_how_loud_a_sample_is_or_how_a_batch_is_cut():
    subject = task()
    nets = subject.networks()
    source = open_harmonics(Harmonics(rate=8000, seconds=0.2, samples=6), None, 0)
    samples = source.read(np.arange(6), np.arange(6))
    whole = subject.loss(nets, subject.collate(samples))
    parts = [subject.loss(nets, subject.collate(samples[cut])) for cut in (slice(0, 2), slice(2, 6))]
    soft = subject.loss(nets, subject.collate([{k: v / 16 for k, v in sample.items()} for sample in samples]))
    for name, term in whole.items():
        assert sum(part[name].value.item() for part in parts) == pytest.approx(term.value.item(), rel=1e-4)
        assert soft[name].value.item() == pytest.approx(term.value.item(), rel=1e-3)


def test_silent_speech_has_no_si_sdr_and_a_fresh_denoiser_improves_nothing():
    subject = task()
    nets = subject.networks()
    source = open_harmonics(Harmonics(rate=8000, seconds=0.2, samples=6), None, 0)
    samples = source.read(np.arange(2), np.arange(2))
    metrics = subject.metrics()
    with torch.no_grad():
        subject.evaluate(nets, subject.collate([*samples, SAMPLES]), metrics)
    assert metrics["si_sdr"].state()[1] == 2
    assert metrics["loss"].state()[1] == 3
    assert metrics["si_sdr_improvement"].value() == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("data.train.sources[0].responses=null", "distort.reverb needs responses"),
        ("data.train.sources[0].snr=[5, -5]", "snr goes from 5 up to -5"),
        ("data.train.sources[0].level=[-3, 3]", "above full scale"),
        ("data.train.sources[0].key='['", "is no regular expression"),
        ("data.train.sources[0].key=abc", "has 0 groups"),
        ("data.train.sources[0]={kind: jsonl, path: x}", "the task reads sources of kind speech or harmonics"),
        ("data.validation.held-out.part=all", "they have samples in common"),
        ("task.model.rate=4000", "greater than or equal to 8000"),
        ("task.loss={wave: 0, spectrum: 0}", "every weight is 0"),
    ],
)
def test_mistakes_are_told_before_anything_is_read(recipe, override, words):
    with pytest.raises(RecipeMistakes) as caught:
        load(recipe, [override])
    assert words in caught.value.details


def test_rate_and_length_of_sources_are_the_models(recipe):
    source = load(recipe, ["task.model.rate=16000"]).recipe.data.train.sources[0]
    assert (source.rate, source.seconds) == (16000, 0.2)


@pytest.mark.skipif(not (sounds.REAL / "fg").is_dir(), reason=f"no recordings in {sounds.REAL}")
def test_real_recordings_of_held_out_speakers_are_read(tmp_path):
    where = {"key": "_([a-z]+)_", "split": [0.6, 0.4, 0]}
    where |= {"path": str(sounds.REAL / "fg"), "background": {"path": str(sounds.REAL / "bg")}}
    recipe = sounds.tiny_recipe(sounds.folders(tmp_path), **where, responses={"path": str(sounds.REAL / "rir")})
    run = train(recipe, tmp_path / "run", "budget.steps=2", "schedule.warmup=null", "evaluate.budget.samples=20").run
    assert np.isfinite(scores(run)[-1]["held-out"]["si_sdr"])
