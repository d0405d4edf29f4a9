import json
import os

import numpy as np
import pytest
import soundfile

import sounds
from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.speech import audio
from drivetrain.tasks.speech.recipe import Folder, Responses


def shelf(folder, cache, skip=False, rate=8000):
    return audio.shelf(folder, rate, cache / "sources.json", skip=skip)


def only(path, cache, rate=8000, kind=Folder):
    (clip,) = shelf(kind(path=str(path)), cache, rate=rate).clips
    return audio.whole(clip, rate)


def test_wav_flac_and_numpy_files_are_read_mono_at_the_rate_that_is_asked_for(tmp_path):
    left, right = sounds.tone(16000, 16000, 300), sounds.tone(16000, 16000, 500)
    for name in ("a.wav", "b.flac"):
        path = sounds.write(tmp_path / name[0] / name, np.stack([left, right], axis=1), 16000)
        assert only(path, tmp_path, 16000) == pytest.approx((left + right) / 2, abs=1e-3)
        lower = only(path, tmp_path)
        assert len(lower) == 8000
        wanted = (sounds.tone(8000, 8000, 300) + sounds.tone(8000, 8000, 500)) / 2
        assert lower[500:-500] == pytest.approx(wanted[500:-500], abs=1e-3)
    np.save(tmp_path / "room.npy", np.stack([left, right]).astype(np.float32))
    room = only(tmp_path / "room.npy", tmp_path, 8000, Responses)
    assert room == pytest.approx((left + right) / 2, abs=1e-6)


def test_a_segment_of_a_long_file_lies_within_it_and_a_short_file_is_there_whole(tmp_path):
    ramp = np.arange(32000) / 40000
    sounds.write(tmp_path / "ramp.wav", ramp, 16000, subtype="FLOAT")
    (clip,) = shelf(Folder(path=str(tmp_path / "ramp.wav")), tmp_path).clips
    for place in (0.0, 0.3, 0.999999):
        found = audio.segment(clip, 16000, 1600, place)
        start = int(place * (32000 - 1600 + 1))
        assert found == pytest.approx(ramp[start : start + 1600], abs=1e-6)
        assert len(audio.segment(clip, 8000, 800, place)) == 800
    assert len(audio.segment(clip, 8000, 30000, 0.9)) == 16000


def damaged(root):
    """One file of each kind that cannot be read, by name, and what is said of it."""
    whole = sounds.write(root / "good.wav", sounds.tone(4000, 8000))
    content = whole.read_bytes()
    (root / "cut.wav").write_bytes(content[:5000])
    flac = sounds.write(root / "x.flac", np.random.default_rng(0).standard_normal(20000) * 0.1).read_bytes()
    (root / "x.flac").unlink()
    (root / "cut.flac").write_bytes(flac[:9000])
    (root / "text.wav").write_text("no sound")
    sounds.write(root / "nan.wav", np.array([0.0, np.nan]), subtype="FLOAT")
    sounds.write(root / "none.wav", np.zeros(0))
    return {
        "cut.wav": "it is cut off: 4956 of 8000 bytes",
        "cut.flac": "",
        "text.wav": "Format not recognised",
        "nan.wav": "is not finite",
        "none.wav": "it holds no sound",
    }


def test_every_unreadable_file_is_named_and_ends_the_run(tmp_path):
    why = damaged(tmp_path / "a")
    with pytest.raises(Failure) as caught:
        shelf(Folder(path=str(tmp_path / "a")), tmp_path)
    assert caught.value.outcome.code is Exit.BAD_DATA
    assert "and 4 more" in caught.value.outcome.cause
    for name, words in why.items():
        (line,) = [line for line in caught.value.details.splitlines() if name in line]
        assert words in line


def test_by_policy_unreadable_files_are_left_out_and_told(tmp_path):
    why = damaged(tmp_path / "a")
    found = shelf(Folder(path=str(tmp_path / "a")), tmp_path, skip=True)
    assert [clip.seen.path for clip in found.clips] == [str(tmp_path / "a" / "good.wav")]
    assert len(found.skipped) == len(why)


def test_an_array_of_objects_is_refused_and_never_unpickled(tmp_path):
    np.save(tmp_path / "bad.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(Failure, match="Object arrays cannot be loaded"):
        shelf(Responses(path=str(tmp_path)), tmp_path)


def test_what_a_file_holds_is_remembered_and_a_change_is_another_mark(tmp_path, monkeypatch):
    path = sounds.write(tmp_path / "a" / "x.wav", sounds.tone(4000, 8000))
    first = shelf(Folder(path=str(tmp_path / "a")), tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(audio, "_counted", None)
        assert shelf(Folder(path=str(tmp_path / "a")), tmp_path).marks == first.marks
    sounds.write(path, sounds.tone(4000, 8000, 301))
    assert shelf(Folder(path=str(tmp_path / "a")), tmp_path).marks != first.marks
    assert len(json.loads((tmp_path / "sources.json").read_text())) == 1


def test_a_file_that_changes_while_the_run_reads_it_is_named(tmp_path):
    path = sounds.write(tmp_path / "x.wav", sounds.tone(4000, 8000))
    (clip,) = shelf(Folder(path=str(path)), tmp_path).clips
    os.utime(path, ns=(1, 1))
    with pytest.raises(Failure, match="was changed or replaced"):
        audio.whole(clip, 8000)


def test_the_path_below_the_folder_decides_the_part_wherever_the_folder_lies(tmp_path):
    parts = {}
    for place in ("here", "there/deeper"):
        sounds.folders(tmp_path / place)
        for part in ("train", "validation"):
            folder = Folder(path=str(tmp_path / place / "speech"), part=part, split=(0.6, 0.4, 0.0))
            chosen = audio.part_of(shelf(folder, tmp_path), folder)
            names = [os.path.relpath(clip.seen.path, folder.path) for clip in chosen.clips]
            assert parts.setdefault(part, names) == names
    assert len({*parts["train"], *parts["validation"]}) == 20 == sum(map(len, parts.values()))


def test_a_key_keeps_a_speaker_in_one_part(tmp_path):
    sounds.folders(tmp_path, speakers=12, files=2)
    speakers = []
    for part in ("train", "validation"):
        folder = Folder(path=str(tmp_path / "speech"), part=part, split=(0.6, 0.4, 0.0), key="^(s[0-9]+)/")
        chosen = audio.part_of(shelf(folder, tmp_path), folder)
        speakers.append({os.path.relpath(clip.seen.path, folder.path).split("/")[0] for clip in chosen.clips})
    assert not speakers[0] & speakers[1]
    assert len(speakers[0] | speakers[1]) == 12
    folder = Folder(path=str(tmp_path / "speech"), part="train", key="(z)")
    with pytest.raises(Failure, match=r"key '\(z\)' is not in 's0/0.wav'"):
        shelf(folder, tmp_path)


def test_a_library_that_is_missing_is_named_with_its_extra():
    with pytest.raises(Failure, match="sound needs no_such_library") as caught:
        audio.require_libraries(["no_such_library"])
    assert caught.value.outcome.code is Exit.INPUT_MISSING
    assert "drivetrain[speech]" in caught.value.outcome.hint


def test_a_wav_that_was_written_to_a_pipe_is_read(tmp_path):
    path = sounds.write(tmp_path / "x.wav", sounds.tone(4000, 8000))
    content = bytearray(path.read_bytes())
    at = content.index(b"data") + 4
    content[at : at + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    assert len(only(path, tmp_path)) == 4000
    assert soundfile.info(str(path)).frames == 4000
