"""Streams are read from local folders of data files, as `datasets` reads them from the hub."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from drivetrain.cli.main import run
from drivetrain.data import documents, hub, text_columns, unfinished
from drivetrain.data.indexed import open_indexed
from drivetrain.data.inputs import find_shards
from drivetrain.data.prepare import Preparation, encoding, prepare
from drivetrain.spec.exits import Exit, Failure

datasets = pytest.importorskip("datasets")

TEXTS = [f"document {n}: " + "the quick brown fox; " * (n % 17) + "☃" for n in range(300)]
SUFFIXES = (".bin", ".documents", ".json")


def write_parquet(folder, lines=TEXTS, files=3):
    from pyarrow import Table, parquet

    folder.mkdir()
    for number, part in enumerate(np.array_split(np.arange(len(lines)), files)):
        table = Table.from_pydict({"n": part, "text": [lines[n] for n in part]})
        parquet.write_table(table, folder / f"train-{number:05}-of-{files:05}.parquet", row_group_size=40)
    return folder


def write_jsonl(folder, lines=TEXTS, files=3):
    folder.mkdir()
    for number, part in enumerate(np.array_split(np.arange(len(lines)), files)):
        with gzip.open(folder / f"train-{number}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps({"text": lines[n]}) + "\n" for n in part)
    return folder


def do(to, folder):
    found = find_shards([f"hub:{folder}"])
    return prepare(Preparation(Path(to), tuple(found), encoding(None, eod="0")))


def texts(name):
    opened = open_indexed(name)
    spans = zip(opened.offsets[:-1], opened.offsets[1:], strict=True)
    return [bytes(opened.tokens[a : b - 1].tolist()).decode() for a, b in spans]


def content(name):
    return {suffix: Path(f"{name}{suffix}").read_bytes() for suffix in SUFFIXES}


@pytest.fixture
def small_steps(monkeypatch):
    """Many tasks in little text, each durable when it is done."""
    monkeypatch.setattr(documents, "_TASK", 1500)
    monkeypatch.setattr(text_columns, "_ROWS", 7)
    monkeypatch.setattr(unfinished, "_SYNC", 0.0)


@pytest.mark.parametrize("write", [write_parquet, write_jsonl])
def test_a_stream_is_its_shards_in_order(tmp_path, write):
    write(tmp_path / "data")
    manifest = do(tmp_path / "out", tmp_path / "data")
    assert texts(tmp_path / "out") == TEXTS
    assert [entry["path"] for entry in manifest["inputs"]] == [
        f"hub:{tmp_path / 'data'}, train, shard {shard} of 3" for shard in range(3)
    ]
    assert manifest["inputs"][0]["revision"] is None  # of the hub


class Killed(BaseException):
    pass


def test_stopped_anywhere_it_goes_on_to_the_same_bytes_and_reads_no_shard_again(tmp_path, monkeypatch, small_steps):
    write_parquet(tmp_path / "data")
    do(tmp_path / "whole", tmp_path / "data")
    real, read, starts, calls, limit = os.fsync, hub.Hub.tables, [], 0, 0

    def fsync(file):
        nonlocal calls
        calls += 1
        if calls > limit:
            raise Killed
        return real(file)

    def tables(self, shard, rows):
        starts[-1].append(shard)
        return read(self, shard, rows)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(hub.Hub, "tables", tables)
    for _ in range(99):
        calls, limit = 0, limit + 5
        starts.append([])
        try:
            do(tmp_path / "out", tmp_path / "data")
            break
        except Killed:
            pass
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    firsts = [shards[0] for shards in starts if shards]
    assert firsts == sorted(firsts)
    assert set(firsts) == {0, 1, 2}  # each start went on in the shard that was unfinished


DRIVER = """
from drivetrain.cli.main import main
from drivetrain.data import documents, text_columns, unfinished
documents._TASK, text_columns._ROWS, unfinished._SYNC = 1500, 7, 0.0
main()
"""


def test_killed_and_started_again_with_two_workers_it_writes_the_same_files(tmp_path, small_steps):
    write_jsonl(tmp_path / "data", TEXTS * 2)
    do(tmp_path / "whole", tmp_path / "data")
    journal, inputs = tmp_path / "out.preparing" / "journal.jsonl", f"hub:{tmp_path / 'data'}"
    command = ["data", "prepare", inputs, "--to", str(tmp_path / "out"), "--eod", "0", "--workers"]
    process = subprocess.Popen([sys.executable, "-c", DRIVER, *command, "1"], stdout=subprocess.DEVNULL)
    while process.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < 15):
        time.sleep(0.001)
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert run([*command, "2"]) == 0
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_a_folder_that_changed_is_another_input(tmp_path, small_steps):
    write_jsonl(tmp_path / "data", ["a", "b", "c"])
    found = find_shards([f"hub:{tmp_path / 'data'}"])
    os.utime(tmp_path / "data" / "train-1.jsonl.gz", (1, 1))
    with pytest.raises(Failure, match="changed while it was read") as caught:
        prepare(Preparation(tmp_path / "out", tuple(found), encoding(None, eod="0")))
    assert caught.value.outcome.code == Exit.BAD_DATA
    with pytest.raises(Failure, match="other inputs") as caught:
        do(tmp_path / "out", tmp_path / "data")
    assert caught.value.outcome.code == Exit.INCOMPATIBLE


def test_every_failure_has_its_code(tmp_path, capsys, monkeypatch):
    data = write_parquet(tmp_path / "data", TEXTS[:9])
    (data / "train-00000-of-00003.parquet").rename(data / "test.parquet")
    broken = write_jsonl(tmp_path / "broken", TEXTS[:9])
    (broken / "train-2.jsonl.gz").write_bytes((broken / "train-2.jsonl.gz").read_bytes()[:-9])
    (tmp_path / "script").mkdir()
    (tmp_path / "script" / "script.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "a.txt").write_text("a")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    for arguments, code, words in (
        ([f"hub:{data}"], Exit.BAD_DATA, "--split is one of train, test"),
        ([f"hub:{data}", "--split", "trian"], Exit.BAD_DATA, "did you mean 'train'"),
        ([f"hub:{data}", "--config", "en"], Exit.BAD_DATA, "'en' not found"),
        ([f"hub:{data}", "--split", "train", "--field", "txt"], Exit.BAD_DATA, "did you mean 'text'"),
        ([f"hub:{data}", "--split", "train", "--field", "n"], Exit.BAD_DATA, "no text"),
        ([f"hub:{data}", "--kind", "text"], Exit.BAD_COMMAND, "for files"),
        ([f"hub:{data}", tmp_path / "a.txt"], Exit.BAD_COMMAND, "apart"),
        ([tmp_path / "a.txt", "--config", "en"], Exit.BAD_COMMAND, "none is given"),
        ([f"hub:{broken}"], Exit.BAD_DATA, "shard 2 cannot be read"),
        ([f"hub:{tmp_path / 'nowhere'}"], Exit.INPUT_MISSING, "nowhere"),
        ([f"hub:{tmp_path / 'script'}"], Exit.BAD_DATA, "script"),
        (["hub:someone/something@main"], Exit.PEER_UNAVAILABLE, "someone/something"),
    ):
        found = run(["data", "prepare", *map(str, arguments), "--to", str(tmp_path / "out"), "--workers", "1"])
        error = capsys.readouterr().err
        assert (found, words in error) == (code, True), error
        shutil.rmtree(tmp_path / "out.preparing", ignore_errors=True)
    assert not (tmp_path / "ran").exists()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(Failure, match="needs datasets") as caught:
        find_shards([f"hub:{data}"])
    assert caught.value.outcome.code == Exit.INPUT_MISSING
