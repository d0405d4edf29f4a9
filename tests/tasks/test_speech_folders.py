import json
import resource

import numpy as np
import pytest
import soundfile
import soxr
import torch
from hypothesis import given
from hypothesis import strategies as st

import drivetrain
import sounds
from drivetrain.cli.main import run as command
from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.speech.denoiser import Denoiser
from drivetrain.tasks.speech.folders import convert, enhanced, find_sounds, overlap_added, resampled
from drivetrain.tasks.speech.recipe import Denoiser as Settings

SETTINGS = Settings(rate=8000, seconds=0.2, width=4, depth=1)


def cut(sound, sizes):
    """Blocks of these sizes, the last one what is left."""
    ends = np.cumsum(sizes)
    return [block for block in np.split(sound, ends[ends < len(sound)]) if len(block)]


@given(st.integers(1, 300), st.lists(st.integers(1, 90), max_size=9), st.integers(1, 2), st.integers(2, 30))
def test_what_changes_nothing_gives_back_what_it_heard(frames, sizes, channels, half):
    sound = np.random.default_rng(frames).standard_normal((frames, channels)).astype(np.float32)
    chunks = []

    def same(chunk):
        chunks.append(chunk.shape)
        return chunk

    found = np.concatenate(list(overlap_added(cut(sound, sizes), same, 2 * half)))
    assert len(found) >= frames
    assert np.allclose(found[:frames], sound, atol=1e-6)
    assert not found[frames:].any()
    assert set(chunks) == {(2 * half, channels)}
    assert len(chunks) <= 1 + frames // half


@given(st.sampled_from([(8000, 44100), (44100, 16000), (48000, 48000)]), st.lists(st.integers(1, 5000), max_size=5))
def test_blocks_are_resampled_as_the_whole(rates, sizes):
    sound = np.random.default_rng(0).standard_normal((9000, 2)).astype(np.float32)
    found = np.concatenate(list(resampled(cut(sound, sizes), *rates, 2)))
    whole = soxr.resample(sound, *rates) if rates[0] != rates[1] else sound
    assert len(found) == pytest.approx(len(whole), abs=1)
    shared = min(len(found), len(whole))
    assert np.allclose(found[:shared], whole[:shared], atol=1e-4)


def network():
    torch.manual_seed(0)
    return Denoiser(SETTINGS).eval()  # a fresh one halves


def test_any_length_is_heard_with_little_in_memory():
    asked, most = 0, 0

    def endless():
        nonlocal asked
        for _ in range(200):
            asked += 4000
            yield np.full((4000, 1), 0.25, np.float32)

    given_back = 0
    for block in enhanced(network(), SETTINGS, endless(), 8000, 1):
        most = max(most, asked - given_back)
        given_back += len(block)
    assert given_back >= 800_000
    assert most <= 3 * 4000


def test_rate_channels_length_and_format_stay_and_the_sound_is_the_networks(tmp_path):
    source, to = tmp_path / "in", tmp_path / "out"
    stereo = np.stack([sounds.tone(50001, 44100), sounds.tone(50001, 44100, 700)], axis=1)
    sounds.write(source / "a.flac", stereo, 44100, subtype="PCM_24")
    sounds.write(source / "deep" / "b.wav", sounds.tone(123, 8000))
    sounds.write(source / "c.wav", sounds.tone(8001, 8000), subtype="FLOAT")
    told = []
    found = find_sounds(source)
    done = convert(network(), SETTINGS, found, source, to, lambda *stand: told.append(stand))
    assert not done.failed
    assert [path.relative_to(to).as_posix() for path in done.written] == ["a.flac", "c.wav", "deep/b.wav"]
    for path in done.written:
        heard, was = soundfile.info(str(path)), soundfile.info(str(source / path.relative_to(to)))
        for name in ("samplerate", "channels", "frames", "format", "subtype"):
            assert getattr(heard, name) == getattr(was, name)
    assert soundfile.read(to / "a.flac")[0][1000:-1000] == pytest.approx(stereo[1000:-1000] / 2, abs=2e-3)
    assert soundfile.read(to / "c.wav")[0] == pytest.approx(sounds.tone(8001, 8000) / 2, abs=1e-4)
    assert told[-1] == (58125, 58125)
    assert [read for read, _ in told] == sorted(read for read, _ in told)


def test_files_that_cannot_be_read_are_named_and_the_others_are_done(tmp_path):
    source, to = tmp_path / "in", tmp_path / "out"
    sounds.write(source / "good.wav", sounds.tone(4000, 8000))
    sounds.write(source / "none.wav", np.zeros(0))
    (source / "bad.flac").write_bytes(b"fLaC")
    flac = sounds.write(source / "cut.flac", np.random.default_rng(0).standard_normal(20000) * 0.1).read_bytes()
    (source / "cut.flac").write_bytes(flac[:9000])
    done = convert(network(), SETTINGS, find_sounds(source), source, to, lambda *stand: None)
    assert [path.name for path in done.written] == ["good.wav"]
    assert sorted(path.name for path in done.failed) == ["bad.flac", "cut.flac", "none.wav"]
    assert [path.name for path in to.rglob("*")] == ["good.wav"]


def test_a_place_that_is_full_ends_it_and_is_no_fault_of_the_file(tmp_path):
    sounds.write(tmp_path / "in" / "a.wav", sounds.tone(400_000, 8000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        found = find_sounds(tmp_path / "in")
        with pytest.raises(Failure, match=r"a\.wav: .*rror") as caught:
            convert(network(), SETTINGS, found, tmp_path / "in", tmp_path / "out", lambda *stand: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.outcome.code is Exit.STORAGE
    assert not list((tmp_path / "out").iterdir())


def test_a_folder_that_is_missing_empty_or_in_use_is_told(tmp_path):
    with pytest.raises(Failure, match="is no folder"):
        find_sounds(tmp_path / "nowhere")
    (tmp_path / "in").mkdir()
    with pytest.raises(Failure, match="no file to read") as caught:
        find_sounds(tmp_path / "in")
    assert caught.value.outcome.code is Exit.INPUT_MISSING
    with pytest.raises(Failure, match="is not empty") as caught:
        convert(network(), SETTINGS, {}, tmp_path, tmp_path, lambda *stand: None)
    assert caught.value.outcome.code is Exit.CANNOT_CREATE


def test_the_command_denoises_a_folder_and_names_what_it_cannot_read(tmp_path, capsys):
    recipe = sounds.tiny_recipe(sounds.folders(tmp_path))
    run = drivetrain.train(recipe, ["budget.steps=2", "schedule.warmup=null"], run=tmp_path / "run", progress=False).run
    noise, out = str(tmp_path / "noise"), tmp_path / "out"
    assert command(["infer", "speech", noise, str(out), "--run", str(run), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["written"]) == len(list(out.iterdir())) == 3
    (tmp_path / "noise" / "bad\x1b.wav").write_text("no sound")
    assert command(["infer", "speech", noise, str(tmp_path / "more"), "--run", str(run)]) == Exit.BAD_DATA
    told = capsys.readouterr()
    assert "3 of 4 files" in told.out
    assert "bad\\x1b.wav: " in told.err
    assert "1 of 4 files cannot be read" in told.err
    assert "\x1b" not in told.err


def test_a_run_of_another_task_is_a_bad_command(tiny, tmp_path):
    run = drivetrain.train(tiny, ["budget.steps=1", "schedule.warmup=null"], run=tmp_path / "run", progress=False).run
    sounds.write(tmp_path / "in" / "a.wav", sounds.tone(4000, 8000))
    with pytest.raises(Failure, match="is a run of task language_model") as caught:
        drivetrain.infer_speech(run, tmp_path / "in", tmp_path / "out")
    assert caught.value.outcome.code is Exit.BAD_COMMAND
