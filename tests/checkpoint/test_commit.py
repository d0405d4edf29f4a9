import os
import random
import shutil
import stat
import sys
from pathlib import Path

import pytest
import torch

from drivetrain.checkpoint.commit import Commits, StateTree, load
from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Exit, Failure


def state(value=1.0):
    return StateTree(
        {"networks/m/w": torch.full((8, 8), value), "optimizers/m/w/step": torch.tensor(value)}, {"step": value}
    )


@pytest.fixture
def commits(tmp_path):
    return Commits(tmp_path, Group())


def save(commits, *numbers, keep=9):
    return [commits.save(n, state(float(n)), {"recipe": "r"}, keep) for n in numbers]


def files(folder: Path):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_was_committed_is_loaded(commits):
    (commit,) = save(commits, 7)
    found = commits.latest()
    assert (
        (found.path.name, found.facts["sha256"]) == (commit.name, commit.manifest) == ("step-00000007", commit.manifest)
    )
    assert torch.equal(found.state.tensors["networks/m/w"], torch.full((8, 8), 7.0))
    assert found.state.values == {"step": 7.0}
    assert found.passed_over == ()


def test_no_commit_is_none(commits):
    assert commits.latest() is None


def test_the_highest_step_wins_whatever_the_clock_says(commits, tmp_path):
    save(commits, 9, 10, 100)
    os.utime(tmp_path / "checkpoints" / "step-00000009", (2e9, 2e9))
    assert commits.latest().path.name == "step-00000100"


def test_the_newest_are_kept(commits, tmp_path):
    save(commits, 1, 2, 3, 4, 5, keep=2)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["step-00000004", "step-00000005"]


@pytest.mark.parametrize("which", ["tensors", "values", "MANIFEST"])
@pytest.mark.parametrize("how", ["flipped", "torn", "missing", "longer"])
def test_s04_s05_s06_s07_a_damaged_commit_is_passed_over_by_name(commits, tmp_path, which, how):
    save(commits, 1, 2)
    (path,) = (tmp_path / "checkpoints" / "step-00000002").glob(f"{which}*")
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]
        path.write_bytes({"flipped": flipped, "torn": data[:middle], "longer": data + b"\n"}[how])
    found = commits.latest()
    assert found.path.name == "step-00000001"
    assert len(found.passed_over) == 1
    assert found.passed_over[0].startswith("step-00000002: ")


def test_s06_every_flipped_bit_is_found(commits, tmp_path):
    save(commits, 1, 2)
    commit = tmp_path / "checkpoints" / "step-00000002"
    generator = random.Random(0)
    for _ in range(400):
        path = generator.choice(files(commit))
        data = bytearray(path.read_bytes())
        spot, bit = generator.randrange(len(data)), generator.randrange(8)
        data[spot] ^= 1 << bit
        path.write_bytes(data)
        assert commits.latest().path.name == "step-00000001", (path.name, spot, bit)
        data[spot] ^= 1 << bit
        path.write_bytes(data)
    assert commits.latest().path.name == "step-00000002"


def test_s13_all_damaged_is_86_and_never_a_fresh_start(commits, tmp_path):
    save(commits, 1, 2)
    for path in files(tmp_path / "checkpoints"):
        path.write_bytes(b"x")
    with pytest.raises(Failure) as caught:
        commits.latest()
    assert caught.value.outcome.code == Exit.NO_VALID_COMMIT
    assert "step-00000001" in caught.value.outcome.cause


def test_s08_s09_pointers_and_other_files_mean_nothing(commits, tmp_path):
    save(commits, 3)
    (tmp_path / "checkpoints" / "latest").write_text("step-00000099")
    (tmp_path / "checkpoints" / "step-latest").mkdir()
    assert commits.latest().path.name == "step-00000003"


def test_s18_what_was_never_finished_is_not_a_commit_and_is_removed(commits, tmp_path):
    save(commits, 3)
    folder = tmp_path / "checkpoints"
    shutil.copytree(folder / "step-00000003", folder / ".tmp-step-00000009")
    shutil.copytree(folder / "step-00000003", folder / ".trash-step-00000001")
    assert commits.latest().path.name == "step-00000003"
    assert os.listdir(folder) == ["step-00000003"]


def test_a_commit_under_another_ones_name_is_passed_over(commits, tmp_path):
    save(commits, 3)
    folder = tmp_path / "checkpoints"
    shutil.copytree(folder / "step-00000003", folder / "step-00000009")
    found = commits.latest()
    assert found.path.name == "step-00000003"
    assert "of step 3" in found.passed_over[0]


def test_s17_a_link_in_a_commit_is_refused(commits, tmp_path):
    save(commits, 3)
    path = next((tmp_path / "checkpoints" / "step-00000003").glob("tensors*"))
    shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Failure) as caught:
        commits.latest()
    assert caught.value.outcome.code == Exit.SECURITY


def test_a_step_that_is_committed_again_replaces_a_damaged_commit(commits, tmp_path):
    save(commits, 3)
    next((tmp_path / "checkpoints" / "step-00000003").glob("tensors*")).write_bytes(b"x")
    save(commits, 3)
    assert commits.latest().passed_over == ()


def test_a_disk_that_refuses_is_74_and_leaves_the_commit_before_whole(commits, tmp_path, monkeypatch):
    save(commits, 1)
    real = os.fsync

    def refuse(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(Failure) as caught:
        save(commits, 2)
    monkeypatch.setattr(os, "fsync", real)
    assert caught.value.outcome.code == Exit.STORAGE
    assert commits.latest().path.name == "step-00000001"
    assert os.listdir(tmp_path / "checkpoints") == ["step-00000001"]


def test_x17_only_its_owner_may_read_a_commit(commits, tmp_path):
    os.umask(0)
    try:
        save(commits, 1)
    finally:
        os.umask(0o022)
    for path in (tmp_path / "checkpoints").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_x01_loading_unpickles_nothing(commits, tmp_path):
    save(commits, 1)
    seen = []
    watching = True
    sys.addaudithook(lambda event, args: seen.append(args) if watching and event == "pickle.find_class" else None)
    load(tmp_path / "checkpoints" / "step-00000001")
    watching = False
    assert seen == []
