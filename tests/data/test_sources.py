import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.data.opening import open_source
from drivetrain.data.recipe import Text, Tokens
from drivetrain.data.windows import Windows
from drivetrain.spec.exits import Exit, Failure


def text(path, **settings):
    return Text(path=str(path), context=4, **settings)


@given(st.integers(1, 7), st.integers(0, 60))
def test_windows_predict_each_token_once(context, length):
    windows = Windows(np.arange(length), context, "")
    rows = windows.read(np.arange(len(windows)), np.arange(len(windows)))
    predicted = rows[:, 1:].flatten().tolist()
    assert predicted == list(range(1, 1 + len(windows) * context))
    assert length - 1 - len(predicted) < context


def test_text_is_read_in_order_of_relative_paths_with_a_zero_after_each(tmp_path):
    (tmp_path / "b.txt").write_text("bb")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "z.txt").write_text("aaa")
    (tmp_path / "no.bin").write_text("never")
    source = open_source(text(tmp_path), 0, tmp_path / "cache.json")
    assert bytes(source.read(np.array([0]), np.array([0]))[0]) == b"aaa\0b"


def test_parts_share_the_files_out_for_ever(tmp_path):
    for number in range(60):
        (tmp_path / f"{number}.txt").write_text(f"{number:04}-" * 3)
    size = {
        part: len(open_source(text(tmp_path, part=part, holdout=0.3), 0, tmp_path / "c"))
        for part in ("all", "train", "validation")
    }
    assert abs(size["train"] + size["validation"] - size["all"]) <= 1
    assert 0.1 < size["validation"] / size["all"] < 0.5


def test_the_fingerprint_follows_content_and_names(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("some text to read")
    before = open_source(text(tmp_path), 0, tmp_path / "c").fingerprint
    assert open_source(text(tmp_path), 0, tmp_path / "c").fingerprint == before
    path.write_text("some text to reaD")
    changed = open_source(text(tmp_path), 0, tmp_path / "c").fingerprint
    path.rename(tmp_path / "b.txt")
    assert len({before, changed, open_source(text(tmp_path), 0, tmp_path / "c").fingerprint}) == 3


def test_file_names_need_not_be_unicode_nor_contents(tmp_path):
    try:
        (tmp_path / os.fsdecode(b"\xff.txt")).write_bytes(b"\xfe\xff\x80 not text")
    except OSError:
        pytest.skip("this file system wants Unicode names")
    for part in ("all", "train"):
        source = open_source(text(tmp_path, part=part, holdout=1e-9), 0, tmp_path / "c")
        assert bytes(source.read(np.array([0]), np.array([0]))[0]) == b"\xfe\xff\x80 n"


@pytest.mark.parametrize("what", ["dangling link", "pipe", "folder that cannot be listed"])
def test_a_file_that_cannot_be_read_is_named_and_never_left_out(tmp_path, what, monkeypatch):
    (tmp_path / "good.txt").write_text("good text")
    bad = tmp_path / "bad.txt"
    if what == "dangling link":
        bad.symlink_to("nowhere")
    elif what == "pipe":
        os.mkfifo(bad)
    else:
        bad.mkdir()
        listed = os.scandir

        def scandir(path):  # root may list every folder, so no permission can be taken from it
            if Path(path) == bad:
                raise PermissionError(13, "Permission denied", str(bad))
            return listed(path)

        monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(Failure) as caught:
        open_source(text(tmp_path), 0, tmp_path / "c")
    assert caught.value.outcome.code == (Exit.BAD_DATA if what == "pipe" else Exit.INPUT_MISSING)
    assert str(bad) in caught.value.outcome.cause


def test_text_that_is_too_large_for_memory_is_refused_with_advice(tmp_path):
    with (tmp_path / "a.txt").open("wb") as file:
        file.truncate((4 << 30) + 1)  # a hole: it takes no disk
    with pytest.raises(Failure, match="not held in memory") as caught:
        open_source(text(tmp_path), 0, tmp_path / "c")
    assert caught.value.outcome.code == Exit.BAD_DATA
    assert "token file" in caught.value.outcome.hint


def test_the_standard_library_is_there_and_splits():
    train = open_source(Text(path="python-stdlib", context=128, part="train"), 0, None)
    validation = open_source(Text(path="python-stdlib", context=128, part="validation"), 0, None)
    assert len(train) > 5 * len(validation) > 100


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda folder: text(folder / "nowhere"), Exit.INPUT_MISSING),
        (lambda folder: text(folder), Exit.BAD_DATA),
        (lambda folder: Tokens(path=str(folder / "nowhere"), context=4), Exit.INPUT_MISSING),
        (lambda folder: Tokens(path=str(folder / "odd.bin"), context=4), Exit.BAD_DATA),
        (lambda folder: Tokens(path=str(folder / "short.bin"), context=4), Exit.BAD_DATA),
        (lambda folder: Tokens(path=str(folder / "ok.bin"), context=4, vocabulary=10), Exit.BAD_DATA),
    ],
    ids=["no text", "no text in folder", "no token file", "odd size", "too short", "token beyond the vocabulary"],
)
def test_unusable_input_is_named(tmp_path, make, code):
    (tmp_path / "odd.bin").write_bytes(b"x" * 101)
    (tmp_path / "short.bin").write_bytes(b"x" * 8)
    np.arange(50, dtype="<u2").tofile(tmp_path / "ok.bin")
    with pytest.raises(Failure) as caught:
        open_source(make(tmp_path), 0, tmp_path / "cache.json")
    assert caught.value.outcome.code == code
    assert str(tmp_path) in caught.value.outcome.cause


def test_a_token_beyond_the_vocabulary_is_named_by_its_place(tmp_path):
    np.arange(50, dtype="<u2").tofile(tmp_path / "t.bin")
    with pytest.raises(Failure, match="token 10 is 10"):
        open_source(Tokens(path=str(tmp_path / "t.bin"), context=4, vocabulary=10), 0, tmp_path / "cache.json")


def test_tokens_are_windows_of_the_file(tmp_path):
    np.arange(50, dtype="<u2").tofile(tmp_path / "t.bin")
    source = open_source(Tokens(path=str(tmp_path / "t.bin"), context=4, vocabulary=50), 0, tmp_path / "cache.json")
    assert len(source) == 12
    assert source.read(np.array([2, 0]), np.array([0, 1])).tolist() == [[8, 9, 10, 11, 12], [0, 1, 2, 3, 4]]


def test_an_unchanged_token_file_is_not_hashed_again_and_a_changed_one_is(tmp_path):
    path, cache = tmp_path / "t.bin", tmp_path / "cache.json"
    np.arange(50, dtype="<u2").tofile(path)
    settings = Tokens(path=str(path), context=4)
    digest = open_source(settings, 0, cache).fingerprint
    remembered = json.loads(cache.read_text())
    (key,) = remembered
    cache.write_text(json.dumps({key: remembered[key] | {"digest": "from the cache"}}))
    assert open_source(settings, 0, cache).fingerprint == "from the cache"
    status = path.stat()
    (np.arange(50, dtype="<u2") ^ 1).tofile(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert open_source(settings, 0, cache).fingerprint not in ("from the cache", digest)


@pytest.mark.parametrize("kind", ["tokens", "text"])
def test_data_workers_open_the_same_files_again_and_no_others(tmp_path, kind):
    path = tmp_path / f"a.{'bin' if kind == 'tokens' else 'txt'}"
    path.write_bytes(bytes(range(200)) * 500)
    settings = Tokens(path=str(path), context=4, dtype="uint8") if kind == "tokens" else text(tmp_path)
    source = open_source(settings, 0, tmp_path / "cache.json")
    sent, ids = pickle.dumps(source), np.array([7, 3])
    assert len(sent) < 1000
    again = pickle.loads(sent)
    assert again.fingerprint == source.fingerprint
    assert (again.read(ids, ids) == source.read(ids, ids)).all()
    path.write_bytes(bytes(range(1, 201)) * 500)
    with pytest.raises(Failure, match="changed") as caught:
        pickle.loads(sent)
    assert caught.value.outcome.code == Exit.BAD_DATA
