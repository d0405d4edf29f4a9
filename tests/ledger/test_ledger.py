import json
import math
import os
import random
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.ledger.ledger import LedgerFile, contains, read
from drivetrain.spec.exits import Exit, Failure

STEP = {
    "time": 1.5,
    "step": 3,
    "start": 16,
    "stop": 24,
    "samples": 255,
    "losses": {"loss": 0.1 + 0.2},
    "counts": {"samples": 8},
    "norm": {"model": math.inf},
    "lr": {"model": 1e-3},
    "seconds": 0.25,
    "wait": 0.0,
}


def write(path, count=5):
    ledger = LedgerFile.open(path)
    for number in range(count):
        ledger.append({"kind": "note", "time": number / 3, "text": f"n{number}"})
        ledger.append_steps(1, [STEP | {"step": number}])
    ledger.close()


def test_what_was_appended_is_read(tmp_path):
    write(tmp_path / "l", 2)
    records = list(read(tmp_path / "l"))
    assert [r.kind for r in records] == ["note", "step"] * 2
    assert records[3].losses["loss"] == 0.1 + 0.2
    assert records[3].norm["model"] == math.inf
    assert records[3].samples == "00000000000000ff"


@given(st.floats(allow_nan=False, allow_infinity=False), st.text())
def test_floats_keep_their_bits_and_names_their_characters(value, name):
    with tempfile.TemporaryDirectory() as folder:
        ledger = LedgerFile.open(Path(folder) / "l")
        ledger.append_steps(1, [STEP | {"losses": {name: value}}])
        ledger.append({"kind": "note", "time": value, "text": name})
        ledger.close()
        step, note = read(Path(folder) / "l")
    assert (note.text, step.losses[name].hex(), note.time.hex()) == (name, value.hex(), value.hex())


@pytest.mark.parametrize("value", [numpy.float64(0.1), numpy.float32(0.5), 1, True])
def test_numbers_of_any_type_are_json_numbers(tmp_path, value):
    ledger = LedgerFile.open(tmp_path / "l")
    ledger.append_steps(1, [STEP | {"losses": {"loss": value}, "counts": {"samples": numpy.int64(8)}}])
    ledger.close()
    (record,) = read(tmp_path / "l")
    assert (record.losses, record.counts) == ({"loss": value}, {"samples": 8})


def test_a_ledger_goes_on_after_it_was_closed(tmp_path):
    write(tmp_path / "l", 2)
    write(tmp_path / "l", 2)
    assert len(list(read(tmp_path / "l"))) == 8


@pytest.mark.parametrize("cut", [1, 7, 60])
def test_a_torn_last_line_is_cut_off_and_told(tmp_path, cut):
    path = tmp_path / "l"
    write(path, 2)
    path.write_bytes(path.read_bytes()[:-cut])
    assert len(list(read(path))) == 3
    LedgerFile.open(path).close()
    records = list(read(path))
    assert [r.kind for r in records] == ["note", "step", "note", "repair"]
    assert records[-1].bytes > 0


def test_a_torn_line_of_any_length_is_cut_off(tmp_path):
    path = tmp_path / "l"
    ledger = LedgerFile.open(path)
    ledger.append({"kind": "note", "text": "short"})
    ledger.append({"kind": "note", "text": "x" * 3_000_000})
    ledger.close()
    path.write_bytes(path.read_bytes()[:-1])
    LedgerFile.open(path).close()
    assert [r.kind for r in read(path)] == ["note", "repair"]


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from drivetrain.ledger.ledger import LedgerFile
from drivetrain.spec.exits import Failure

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writes beyond the limit fall short, as on a full disk
path = Path(sys.argv[1])
ledger = LedgerFile.open(path)
ledger.append({"kind": "note", "text": "short"})
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 70, resource.RLIM_INFINITY))
try:
    ledger.append({"kind": "note", "text": "x" * 500})
except Failure as failure:
    code = failure.outcome.code
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
ledger.append({"kind": "miss", "step": 1, "code": int(code), "cause": "full"})
"""


def test_what_did_not_fit_on_the_disk_does_not_spoil_what_follows(tmp_path):
    subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path / "l")], check=True)
    assert [r.to_json().get("code") for r in read(tmp_path / "l")] == [None, int(Exit.STORAGE)]


def lines_of(path):
    return path.read_bytes().splitlines(keepends=True)


def falsified(lines, how, at, generator):
    lines = list(lines)
    if how == "dropped":
        del lines[at]
    elif how == "doubled":
        lines.insert(at, lines[at])
    elif how == "reordered":
        lines[at], lines[at + 1] = lines[at + 1], lines[at]
    else:
        spot = generator.randrange(len(lines[at]) - 1)
        flipped = lines[at][spot] ^ (1 << generator.randrange(8))
        lines[at] = lines[at][:spot] + bytes([flipped]) + lines[at][spot + 1 :]
    return b"".join(lines)


@pytest.mark.parametrize("how", ["dropped", "doubled", "reordered", "flipped"])
def test_falsified_records_are_found_and_named(tmp_path, how):
    path = tmp_path / "l"
    write(path, 10)
    original = lines_of(path)
    generator = random.Random(5)
    for _ in range(40):
        at = generator.randrange(len(original) - 2)
        path.write_bytes(falsified(original, how, at, generator))
        with pytest.raises(Failure) as caught:
            list(read(path))
        assert caught.value.outcome.code == Exit.STORAGE
        assert abs(caught.value.outcome.where["line"] - (at + 1)) <= 1


def test_x17_only_its_owner_may_read_it(tmp_path):
    os.umask(0)
    try:
        write(tmp_path / "l", 1)
    finally:
        os.umask(0o022)
    assert stat.S_IMODE((tmp_path / "l").stat().st_mode) == 0o600


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_text("")
    (tmp_path / "l").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Failure) as caught:
        LedgerFile.open(tmp_path / "l")
    assert caught.value.outcome.code == Exit.SECURITY
    assert (tmp_path / "elsewhere").read_text() == ""


def test_a_folder_in_its_place_is_74(tmp_path):
    (tmp_path / "l").mkdir()
    with pytest.raises(Failure) as caught:
        LedgerFile.open(tmp_path / "l")
    assert caught.value.outcome.code == Exit.STORAGE


def test_each_line_is_plain_json(tmp_path):
    write(tmp_path / "l", 3)
    for line in lines_of(tmp_path / "l"):
        json.loads(line)


def test_no_ledger_is_66(tmp_path):
    with pytest.raises(Failure) as caught:
        list(read(tmp_path / "nowhere"))
    assert caught.value.outcome.code == Exit.INPUT_MISSING


@pytest.mark.parametrize("how", ["removed", "replaced", "with its folder"])
def test_a_ledger_that_is_not_in_its_place_any_more_cannot_be_made_durable(tmp_path, how):
    path = tmp_path / "run" / "ledger.jsonl"
    path.parent.mkdir()
    ledger = LedgerFile.open(path)
    ledger.append({"kind": "note", "time": 1.0, "text": "n"})
    ledger.sync()
    match how:
        case "removed":
            path.unlink()
        case "replaced":
            (tmp_path / "copy").write_bytes(path.read_bytes())
            os.rename(tmp_path / "copy", path)
        case "with its folder":
            os.rename(path.parent, tmp_path / "gone")
    with pytest.raises(Failure, match="was removed or replaced while the run wrote it") as caught:
        ledger.sync()
    assert caught.value.outcome.code == Exit.STORAGE
    ledger.close()


@pytest.mark.parametrize("block", [1, 7, 100, 1 << 20])
def test_a_ledger_contains_the_records_that_it_has(tmp_path, monkeypatch, block):
    monkeypatch.setattr("drivetrain.ledger.ledger._BLOCK", block)
    write(tmp_path / "l", 2)
    chains = [record.chain for record in read(tmp_path / "l")]
    assert all(contains(tmp_path / "l", chain) for chain in chains)
    lines = (tmp_path / "l").read_bytes().splitlines(keepends=True)
    (tmp_path / "l").write_bytes(b"".join(lines[:-1]))
    assert not contains(tmp_path / "l", chains[-1])
    (tmp_path / "l").write_bytes(b"")
    assert not contains(tmp_path / "l", chains[0])
