import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sounds
from drivetrain.data.opening import open_source
from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.speech.distort import Distorter, band_limited, clipped, louder, peaked, power, reverberated
from drivetrain.tasks.speech.mixtures import at_snr
from drivetrain.tasks.speech.recipe import Distort, Folder, Harmonics, Responses, SpeechFolders

EVERYTHING = Distort(reverb=0.5, equalizer=0.5, clip=0.5, band=0.5, noise=0.5)


def opened(root, seed=0, **settings):
    where = {
        "path": str(root / "speech"),
        "background": Folder(path=str(root / "noise")),
        "responses": Responses(path=str(root / "rooms")),
        "rate": 8000,
        "seconds": 0.3,
        "distort": EVERYTHING,
    }
    return open_source(SpeechFolders(**(where | settings)), seed, root / "sources.json")


def read(source, ids, positions):
    return source.read(np.array(ids), np.array(positions))


def same(one, other):
    return all(np.array_equal(one[name], other[name]) for name in one)


def test_a_sample_is_a_function_of_seed_and_position_whoever_reads_it_and_with_whom(tmp_path):
    source = opened(sounds.folders(tmp_path))
    together = read(source, range(20), range(100, 120))
    elsewhere = pickle.loads(pickle.dumps(source))
    for number in reversed(range(20)):
        (alone,) = read(elsewhere, [number], [100 + number])
        assert same(alone, together[number])
        assert {part.dtype for part in alone.values()} == {np.dtype(np.float32)}
        assert {len(part) for part in alone.values()} == {2400}
    assert not same(read(source, [3], [7])[0], together[3])
    assert not same(read(opened(tmp_path, seed=1), [3], [103])[0], together[3])
    assert opened(tmp_path, seed=1).fingerprint == source.fingerprint


def test_the_fingerprint_follows_every_file(tmp_path):
    source = opened(sounds.folders(tmp_path))
    found = {source.fingerprint}
    for path in (tmp_path / "speech/s1/2.wav", tmp_path / "noise/1.flac"):
        sounds.write(path, sounds.tone(2000, 8000, 777))
        found.add(opened(tmp_path).fingerprint)
    np.save(tmp_path / "rooms" / "1.npy", np.ones(5))
    found.add(opened(tmp_path).fingerprint)
    assert len(found) == 4


def test_what_is_left_out_is_in_the_notes(tmp_path):
    sounds.folders(tmp_path)
    (tmp_path / "noise" / "1.flac").write_bytes(b"fLaC, they said")
    with pytest.raises(Failure, match=r"noise/1\.flac"):
        opened(tmp_path)
    source = opened(tmp_path, unreadable="skip", part="train")
    (note,) = source.notes
    assert note.startswith("background: unreadable and left out: 1: ")
    assert "1.flac" in note


def test_the_peak_is_at_the_level_and_the_mixture_is_speech_plus_noise(tmp_path):
    source = opened(sounds.folders(tmp_path), level=(-6.0, -6.0), snr=(5.0, 5.0), distort=Distort())
    for sample in read(source, range(20), range(20)):
        assert np.abs(sample["mixture"]).max() == pytest.approx(10 ** (-6 / 20), abs=1e-5)
        assert np.array_equal(sample["speech"], sample["clean"])
        ratio = 10 * np.log10(power(sample["speech"]) / power(sample["mixture"] - sample["speech"]))
        assert ratio == pytest.approx(5.0, abs=0.01)


@given(st.floats(-30, 60), st.floats(1e-3, 1), st.floats(1e-3, 1), st.integers(0, 99))
def test_noise_is_as_loud_as_the_snr_has_it(snr, loud, soft, seed):
    draw = np.random.default_rng(seed)
    speech, noise = loud * draw.standard_normal(50), soft * draw.standard_normal(50)
    assert 10 * np.log10(power(speech) / power(at_snr(speech, noise, snr))) == pytest.approx(snr, abs=1e-6)
    assert np.array_equal(at_snr(np.zeros(50), noise, snr), noise)
    assert not at_snr(speech, np.zeros(50), snr).any()


def test_silent_files_give_finite_samples(tmp_path):
    sounds.folders(tmp_path)
    for path in (tmp_path / "speech").rglob("*.wav"):
        sounds.write(path, np.zeros(2000))
    for sample in read(opened(tmp_path), range(20), range(20)):
        assert all(np.isfinite(part).all() for part in sample.values())
        assert sample["mixture"].any()
        assert not sample["speech"].any()


def test_computed_voices_are_the_same_for_any_seed_and_their_noise_is_not():
    settings = Harmonics(rate=8000, seconds=0.5, samples=50)
    one, other = (open_source(settings, seed, Path("none")) for seed in (0, 1))
    assert one.fingerprint == other.fingerprint
    first, second = read(one, [7], [3])[0], read(other, [7], [3])[0]
    scale = np.abs(first["clean"]).max() / np.abs(second["clean"]).max()
    assert first["clean"] == pytest.approx(second["clean"] * scale, abs=1e-5)
    assert not np.allclose(first["mixture"], second["mixture"], atol=1e-2)
    assert same(read(one, [7, 8], [3, 9])[0], first)


def test_parts_of_computed_voices_share_none():
    parts = [
        open_source(Harmonics(rate=8000, seconds=0.1, samples=60, part=part), 0, Path("none"))
        for part in ("train", "validation", "test")
    ]
    assert sum(map(len, parts)) == 60


def test_nothing_says_the_rate():
    with pytest.raises(Failure, match="needs rate and seconds") as caught:
        open_source(Harmonics(), 0, Path("none"))
    assert caught.value.outcome.code is Exit.BAD_RECIPE


def test_without_effects_sound_stays_the_same_and_with_them_it_is_as_loud():
    sound = sounds.tone(4000, 8000) + sounds.tone(4000, 8000, 1234)
    room = Distorter(
        Distort(reverb=0.3, equalizer=0.3, clip=0.3, band=0.3), 8000, lambda draw: np.array([0.0, 1.0, 0.5])
    )
    plain = Distorter(Distort(), 8000)
    changed = []
    for seed in range(30):
        assert plain(sound, np.random.default_rng(seed)) is sound
        found = room(sound, np.random.default_rng(seed))
        assert np.array_equal(found, room(sound, np.random.default_rng(seed)))
        assert power(found) == pytest.approx(power(sound))
        changed.append(not np.allclose(found, sound))
        assert not room(np.zeros(100), np.random.default_rng(seed)).any()
    assert 10 < sum(changed) < 30


def test_direct_sound_is_not_delayed_by_a_room():
    sound = np.random.default_rng(0).standard_normal(500)
    assert reverberated(sound, np.array([0.0, 0.0, 0.1, 2.0])) == pytest.approx(2 * sound)
    assert reverberated(sound, np.array([1.0, 0.5]))[1:] == pytest.approx(sound[1:] + sound[:-1] / 2)


def test_filters_do_what_they_say_at_their_frequencies():
    def gain(change, pitch):
        sound = sounds.tone(16000, 16000, pitch)
        return 10 * np.log10(power(change(sound)[4000:]) / power(sound[4000:]))

    assert gain(lambda s: peaked(s, 16000, 1000.0, 9.0), 1000) == pytest.approx(9.0, abs=0.05)
    assert gain(lambda s: peaked(s, 16000, 1000.0, 9.0), 60) == pytest.approx(0.0, abs=0.2)
    assert gain(lambda s: band_limited(s, 16000, (200.0, 4000.0)), 1000) == pytest.approx(0.0, abs=0.1)
    assert gain(lambda s: band_limited(s, 16000, (200.0, 4000.0)), 50) < -30
    assert gain(lambda s: band_limited(s, 16000, (200.0, 4000.0)), 7000) < -30
    loud = clipped(sounds.tone(16000, 16000), 6.0)
    assert np.abs(loud).max() == pytest.approx(0.3 / 10 ** (6 / 20), rel=1e-3)
    assert power(louder(loud, 0.25)) == pytest.approx(0.25)


def test_hiss_is_as_loud_as_it_says():
    settings = Distort(noise=1.0, hiss=(20.0, 20.0))
    sound = sounds.tone(4000, 8000)
    hiss = Distorter(settings, 8000).hiss(sound, np.random.default_rng(0))
    assert 10 * np.log10(power(sound) / power(hiss)) == pytest.approx(20.0)
