import json
import os

import pytest

from drivetrain.cli.main import run as command
from drivetrain.spec.exits import Exit
from states import save


@pytest.fixture
def run(tmp_path):
    save(tmp_path, 1, 2, 3)
    return tmp_path


def said(capsys, *arguments):
    code = command([str(argument) for argument in ("checkpoint", *arguments)])
    out = capsys.readouterr()
    return code, out.out, out.err


def told(capsys, *arguments):
    code, out, _ = said(capsys, *arguments, "--json")
    return code, json.loads(out)


def damage(run, step):
    path = next((run / "checkpoints" / f"step-{step:08d}").glob("tensors*"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_list_shows_the_newest_first(run, capsys):
    code, rows = told(capsys, "list", run)
    assert code == Exit.DONE
    assert [(row["step"], row["position"], row["damage"]) for row in rows] == [(3, 24, ""), (2, 16, ""), (1, 8, "")]
    _, out, _ = said(capsys, "list", run)
    assert out.index("step-00000003") < out.index("step-00000001")


def test_verify_reads_every_byte_and_its_code_says_what_is_left(run, capsys):
    assert told(capsys, "verify", run)[0] == Exit.DONE
    damage(run, 3)
    assert told(capsys, "list", run)[1][0]["damage"] == ""  # the manifest is whole
    code, out, err = said(capsys, "verify", run)
    assert code == Exit.BAD_DATA
    assert "does not have its SHA-256" in " ".join(out.split())
    assert "step-00000003" in err
    for step in (1, 2):
        damage(run, step)
    assert said(capsys, "verify", run)[0] == Exit.NO_VALID_COMMIT


def test_a_pin_keeps_a_commit_from_rotation_and_can_be_taken_away(run, capsys):
    assert told(capsys, "pin", run, "1") == (Exit.DONE, {"commit": "step-00000001", "pinned": True})
    assert [row["pinned"] for row in told(capsys, "list", run)[1]] == [False, False, True]
    save(run, 4, keep=1)
    assert sorted(os.listdir(run / "checkpoints")) == ["step-00000001", "step-00000004"]
    told(capsys, "pin", run, "step-00000001", "--off")
    save(run, 5, keep=1)
    assert os.listdir(run / "checkpoints") == ["step-00000005"]
    assert said(capsys, "pin", run, "77")[0] == Exit.INPUT_MISSING


def test_rm_spares_pinned_ones_and_the_last_whole_one_unless_forced(run, capsys):
    said(capsys, "pin", run, "2")
    assert said(capsys, "rm", run, "2")[0] == Exit.BAD_COMMAND
    assert told(capsys, "rm", run, "2", "--force") == (Exit.DONE, {"removed": "step-00000002"})
    assert said(capsys, "rm", run, "1")[0] == Exit.DONE
    code, _, err = said(capsys, "rm", run, "3")
    assert code == Exit.BAD_COMMAND
    assert "the only whole commit" in err
    assert said(capsys, "rm", run, "3", "--force")[0] == Exit.DONE
    assert os.listdir(run / "checkpoints") == []


def test_diff_tells_every_tensor_whose_bits_differ(run, capsys):
    one, two = (run / "checkpoints" / f"step-0000000{step}" for step in (1, 2))
    code, found = told(capsys, "diff", one, two)
    assert code == Exit.DONE
    assert found["facts"]["position"] == [8, 16]
    assert found["tensors"]["networks/m/w"] == "64 of 64 numbers differ, by at most 1"
    assert told(capsys, "diff", run, run / "checkpoints" / "step-00000003")[1] == {
        "facts": {},
        "tensors": {},
        "equal": 2,
    }
    assert said(capsys, "diff", one, run / "nothing")[0] == Exit.INPUT_MISSING


def test_a_folder_that_is_no_run_is_66(tmp_path, capsys):
    for verb in ("list", "verify"):
        assert said(capsys, verb, tmp_path)[0] == Exit.INPUT_MISSING
