import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from drivetrain.launch import rundir
from drivetrain.launch.rundir import prepare
from drivetrain.spec.exits import Exit, Failure


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    monkeypatch.setattr(rundir, "SCRATCH", tmp_path / "drivetrain-0")
    return tmp_path / "drivetrain-7"  # as another user's submission names it


def test_a_scratch_folder_is_made_for_its_user_alone(scratch):
    prepare(scratch / "abc" / "run")
    assert scratch.stat().st_mode & 0o777 == 0o700
    assert (scratch / "abc" / "run" / "logs").is_dir()
    prepare(scratch / "abc" / "run")


def open_to_others(scratch, monkeypatch):
    scratch.mkdir(mode=0o755)


def a_link(scratch, monkeypatch):
    (scratch.parent / "elsewhere").mkdir(mode=0o700)
    scratch.symlink_to("elsewhere")


def anothers(scratch, monkeypatch):
    scratch.mkdir(mode=0o700)
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)


@pytest.mark.parametrize("found", [open_to_others, a_link, anothers])
def test_a_scratch_folder_that_is_not_its_users_alone_is_refused(scratch, monkeypatch, found):
    found(scratch, monkeypatch)
    with pytest.raises(Failure, match="drivetrain-7 is another's, a link, or open") as refused:
        prepare(scratch / "run")
    assert refused.value.outcome.code is Exit.SECURITY
    assert not (scratch / "run").exists()


def test_nodes_in_containers_whose_processes_are_numbered_alike_look_at_it_at_once(tmp_path, monkeypatch):
    touch = Path.touch
    monkeypatch.setattr(os, "getpid", lambda: 1)

    def and_meanwhile_another(path):
        touch(path)
        monkeypatch.setattr(Path, "touch", touch)
        monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="another"))
        prepare(tmp_path / "run")

    monkeypatch.setattr(Path, "touch", and_meanwhile_another)
    prepare(tmp_path / "run")
    assert list((tmp_path / "run" / "logs").iterdir()) == []
