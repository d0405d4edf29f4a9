import json
import os
import random
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch

from drills.storage import MEMORY
from drivetrain.checkpoint.commit import PART, StateTree, _parts, load, verify
from drivetrain.checkpoint.commits import Commit, CommitFailure, clean, newest, pick
from drivetrain.checkpoint.files import read_file
from drivetrain.checkpoint.manifest import Damaged
from drivetrain.checkpoint.snapshot import TensorBytes
from drivetrain.spec.exits import Exit, Failure
from states import committer, save, state


def files(folder: Path):
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("blocking", [True, False])
def test_what_was_committed_is_loaded(tmp_path, blocking):
    (commit,) = save(tmp_path, 7, blocking=blocking)
    found = newest(tmp_path)
    assert (found.path.name, found.metadata["sha256"]) == (commit.name, commit.manifest)
    assert commit.name == "step-00000007"
    assert torch.equal(found.state.tensors["networks/m/w"], torch.full((8, 8), 7.0))
    assert found.state.values == {"step": 7.0}
    assert found.passed_over == ()


def test_no_commit_is_none(tmp_path):
    assert newest(tmp_path) is None


def test_s12_the_highest_step_wins_whatever_the_clock_says(tmp_path):
    save(tmp_path, 9, 10, 100)
    os.utime(tmp_path / "checkpoints" / "step-00000009", (2e9, 2e9))
    assert newest(tmp_path).path.name == "step-00000100"


def test_training_may_change_the_tensors_while_they_are_written(tmp_path):
    writer = committer(tmp_path)
    go = threading.Event()
    writer.before = go.wait
    live = state(1.0)
    writer.begin(1, live, {})
    assert writer.finished() is None
    live.tensors["networks/m/w"].fill_(2.0)
    go.set()
    assert isinstance(writer.wait(), Commit)
    assert torch.equal(newest(tmp_path).state.tensors["networks/m/w"], torch.full((8, 8), 1.0))


def test_large_states_are_in_several_files_and_odd_shapes_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr("drivetrain.checkpoint.commit.PART", 1 << 16)
    tensors = {
        f"networks/m/{n}": (torch.randn(n * 97 + 1, 53) * 100).to(dtype)
        for n, dtype in enumerate([torch.float32, torch.bool, torch.bfloat16, torch.float64, torch.int16, torch.uint8])
    }
    tensors["networks/m/t"] = torch.randn(9, 11).T
    tensors["networks/m/none"] = torch.empty(0, 3)
    for blocking in (True, False):
        run = tmp_path / str(blocking)
        run.mkdir()
        writer = committer(run, blocking=blocking)
        writer.begin(1, StateTree(tensors, {}), {})
        writer.wait()
        found = newest(run).state.tensors
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[name], tensors[name]) for name in tensors)
        assert all(found[name].dtype == tensors[name].dtype for name in tensors)
        assert len(list((run / "checkpoints" / "step-00000001").glob("tensors-*"))) > 1
    assert PART > 1 << 16


def test_a_state_is_dealt_to_files_of_about_one_size_which_are_neither_many_nor_large():
    def dealt(count):
        data = torch.empty(1, dtype=torch.uint8).expand(4 << 20)  # of one byte in memory
        pieces = [TensorBytes(str(n), torch.uint8, (len(data),), data, 0) for n in range(count)]
        return [len(part) for part in _parts(pieces)]

    assert dealt(0) == [0]
    assert dealt(3) == [3]
    assert dealt(40) == [5] * 8
    assert dealt(1000) == [16] * 62 + [8]


def test_n08_a_bit_that_flips_between_snapshot_and_writing_is_refused_and_the_tensor_named(tmp_path):
    save(tmp_path, 1)
    writer = committer(tmp_path)

    def flip():
        writer._arena._memory[200] ^= 1

    writer.before = flip
    (result,) = save(tmp_path, 2, writer=writer)
    assert result.code == Exit.CORRUPTION_SUSPECTED
    assert "networks/m/w changed in memory" in result.cause
    assert newest(tmp_path).path.name == "step-00000001"


@pytest.mark.parametrize("which", ["tensors", "values", "MANIFEST"])
@pytest.mark.parametrize("how", ["flipped", "torn", "missing", "longer"])
def test_s04_s05_s06_s07_a_damaged_commit_is_passed_over_by_name(tmp_path, which, how):
    save(tmp_path, 1, 2)
    (path,) = (tmp_path / "checkpoints" / "step-00000002").glob(f"{which}*")
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]
        path.write_bytes({"flipped": flipped, "torn": data[:middle], "longer": data + b"\n"}[how])
    found = newest(tmp_path)
    assert found.path.name == "step-00000001"
    assert len(found.passed_over) == 1
    assert found.passed_over[0].startswith("step-00000002: ")


def test_s06_every_flipped_bit_is_found(tmp_path):
    save(tmp_path, 1, 2)
    commit = tmp_path / "checkpoints" / "step-00000002"
    generator = random.Random(0)
    for _ in range(400):
        path = generator.choice(files(commit))
        data = bytearray(path.read_bytes())
        spot, bit = generator.randrange(len(data)), generator.randrange(8)
        data[spot] ^= 1 << bit
        path.write_bytes(data)
        assert newest(tmp_path).path.name == "step-00000001", (path.name, spot, bit)
        data[spot] ^= 1 << bit
        path.write_bytes(data)
    assert newest(tmp_path).path.name == "step-00000002"


def test_s13_all_damaged_is_86_and_never_a_fresh_start(tmp_path):
    save(tmp_path, 1, 2)
    for path in files(tmp_path / "checkpoints"):
        path.write_bytes(b"x")
    with pytest.raises(Failure) as caught:
        newest(tmp_path)
    assert caught.value.outcome.code == Exit.NO_VALID_COMMIT
    assert "step-00000001" in caught.value.outcome.cause


def test_s08_s09_pointers_and_other_files_mean_nothing(tmp_path):
    save(tmp_path, 3)
    (tmp_path / "checkpoints" / "latest").write_text("step-00000099")
    (tmp_path / "checkpoints" / "step-latest").mkdir()
    assert newest(tmp_path).path.name == "step-00000003"


def test_s18_what_was_never_finished_is_not_a_commit_and_is_removed(tmp_path):
    save(tmp_path, 3)
    folder = tmp_path / "checkpoints"
    shutil.copytree(folder / "step-00000003", folder / ".tmp-step-00000009")
    shutil.copytree(folder / "step-00000003", folder / ".trash-step-00000001")
    clean(tmp_path)
    assert newest(tmp_path).path.name == "step-00000003"
    assert os.listdir(folder) == ["step-00000003"]


def test_a_commit_under_another_ones_name_is_passed_over(tmp_path):
    save(tmp_path, 3)
    folder = tmp_path / "checkpoints"
    shutil.copytree(folder / "step-00000003", folder / "step-00000009")
    found = newest(tmp_path)
    assert found.path.name == "step-00000003"
    assert "of step 3" in found.passed_over[0]


def test_s17_a_link_in_a_commit_is_refused(tmp_path):
    save(tmp_path, 3)
    path = next((tmp_path / "checkpoints" / "step-00000003").glob("tensors*"))
    shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Failure) as caught:
        newest(tmp_path)
    assert caught.value.outcome.code == Exit.SECURITY


def test_a_step_that_is_committed_again_replaces_a_damaged_commit(tmp_path):
    save(tmp_path, 3)
    next((tmp_path / "checkpoints" / "step-00000003").glob("tensors*")).write_bytes(b"x")
    save(tmp_path, 3)
    assert newest(tmp_path).passed_over == ()


@pytest.mark.parametrize("call", ["fsync", "rename", "write", "mkdir", "statvfs"])
def test_s03_a_disk_that_refuses_misses_the_commit_and_leaves_the_one_before_whole(tmp_path, monkeypatch, call):
    save(tmp_path, 1)
    with monkeypatch.context() as patched:

        def refuse(*_, **__):
            raise OSError(5, "Input/output error")

        patched.setattr(os, call, refuse)
        writer = committer(tmp_path)
        results = save(tmp_path, 2, 3, writer=writer)
    assert [type(result) for result in results] == [CommitFailure, CommitFailure]
    assert writer.failures == 2
    assert newest(tmp_path).path.name == "step-00000001"
    assert os.listdir(tmp_path / "checkpoints") == ["step-00000001"]
    assert isinstance(save(tmp_path, 4, writer=writer)[0], Commit)
    assert writer.failures == 0


def test_s16_a_run_directory_that_is_gone_misses_the_commit(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    writer = committer(run)
    save(run, 1, writer=writer)
    shutil.rmtree(run)
    (result,) = save(run, 2, writer=writer)
    assert isinstance(result, CommitFailure)
    assert result.code == Exit.STORAGE


def test_a_commit_is_picked_by_name_or_step_and_must_be_whole(tmp_path):
    save(tmp_path, 1, 2)
    assert pick(tmp_path, "step-00000001").step == pick(tmp_path, "1").step == 1
    with pytest.raises(Failure) as caught:
        pick(tmp_path, "7")
    assert caught.value.outcome.code == Exit.INPUT_MISSING
    files(tmp_path / "checkpoints" / "step-00000002")[1].write_bytes(b"x")
    with pytest.raises(Failure) as caught:
        pick(tmp_path, "2")
    assert caught.value.outcome.code == Exit.BAD_DATA


def test_x17_only_its_owner_may_read_a_commit(tmp_path):
    os.umask(0)
    try:
        save(tmp_path, 1)
    finally:
        os.umask(0o022)
    for path in (tmp_path / "checkpoints").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_x01_loading_unpickles_nothing(tmp_path):
    save(tmp_path, 1)
    seen = []
    watching = True
    sys.addaudithook(lambda event, args: seen.append(args) if watching and event == "pickle.find_class" else None)
    load(tmp_path / "checkpoints" / "step-00000001")
    watching = False
    assert seen == []


@pytest.mark.parametrize(
    "manifest",
    [
        {"step": 1, "files": {"../../etc/passwd": {"size": 1, "sha256": ""}}},
        {"step": 1, "files": {"tensors-00000.pt": {"size": 1, "sha256": ""}}},
        {"step": 1, "files": {"/etc/passwd": {"size": 1, "sha256": ""}}},
    ],
)
def test_x07_names_in_a_manifest_cannot_leave_the_commit(tmp_path, manifest):
    forge(tmp_path, manifest)
    with pytest.raises(Failure) as caught:
        newest(tmp_path)
    assert caught.value.outcome.code == Exit.SECURITY


@pytest.mark.parametrize(
    "manifest",
    [
        [],
        {"files": {}},
        {"step": "1", "files": {}},
        {"step": 1, "files": []},
        {"step": 1, "files": {"values-00000.json": 3}},
        {"step": 1, "files": {"values-00000.json": {"size": 1 << 50, "sha256": ""}}},
        {"step": 1, "files": {}, "_target_": "os.system", "epoch": "x"},
    ],
)
def test_x06_x08_a_manifest_that_makes_no_sense_is_damage(tmp_path, manifest):
    forge(tmp_path, manifest)
    with pytest.raises(Failure) as caught:
        newest(tmp_path)
    assert caught.value.outcome.code == Exit.NO_VALID_COMMIT


def forge(run, manifest):
    """A commit of step 1 whose manifest is sealed, whatever it says."""
    import hashlib

    folder = run / "checkpoints" / "step-00000001"
    folder.mkdir(parents=True)
    (folder / "values-00000.json").write_text("{}")
    line = json.dumps(manifest).encode()
    (folder / "MANIFEST.json").write_bytes(line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n")


def test_x08_a_file_that_claims_a_terabyte_is_not_read(tmp_path):
    save(tmp_path, 1)
    path = next((tmp_path / "checkpoints" / "step-00000001").glob("tensors*"))
    os.truncate(path, 1 << 40)
    with pytest.raises(Damaged, match="bytes instead of"):
        verify(tmp_path / "checkpoints" / "step-00000001")


def test_x09_a_folder_that_is_exchanged_while_it_is_read_is_not_followed(tmp_path):
    """Its files are opened through the folder that was opened first, so what is swapped in is never seen."""
    save(tmp_path, 1)
    folder = tmp_path / "checkpoints"
    stop = threading.Event()
    evil = tmp_path / "evil"
    shutil.copytree(folder / "step-00000001", evil)
    next(evil.glob("tensors*")).write_bytes(b"evil")

    def swap():
        while not stop.is_set():
            os.rename(folder / "step-00000001", tmp_path / "aside")
            os.symlink(evil, folder / "step-00000001")
            os.unlink(folder / "step-00000001")
            os.rename(tmp_path / "aside", folder / "step-00000001")
            time.sleep(random.random() / 100)

    thread = threading.Thread(target=swap)
    thread.start()
    outcomes = set()
    for turn in range(3000):
        if turn >= 300 and "whole" in outcomes:
            break
        try:
            _, found = load(folder / "step-00000001")
            assert torch.equal(found.tensors["networks/m/w"], torch.full((8, 8), 1.0))
            outcomes.add("whole")
        except Damaged as damage:
            outcomes.add("absent" if "cannot be opened" in str(damage) or "no manifest" in str(damage) else str(damage))
        except Failure as failure:
            outcomes.add("refused" if failure.outcome.code == Exit.SECURITY else failure.outcome.cause)
    stop.set()
    thread.join()
    assert {"whole"} <= outcomes <= {"whole", "absent", "refused"}


def test_s17_a_commit_that_is_a_link_is_refused(tmp_path):
    save(tmp_path, 1)
    folder = tmp_path / "checkpoints"
    os.rename(folder / "step-00000001", tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", folder / "step-00000001")
    with pytest.raises(Failure) as caught:
        newest(tmp_path)
    assert caught.value.outcome.code == Exit.SECURITY
    with pytest.raises(Failure):
        read_file(folder / "step-00000001")


def duel(step):
    """A state in which every tensor of both networks tells its step; two steps do not share a file's bytes."""
    names = [f"{kind}/{network}/w" for kind in ("networks", "optimizers") for network in ("generator", "discriminator")]
    tensors = {f"{name}{'/exp_avg' if name[0] == 'o' else ''}": torch.full((64, 64), float(step)) for name in names}
    return StateTree(tensors, {"step": step})


@pytest.fixture
def scratch():
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


def killed_at(run, call):
    """How a process ends that commits step 2 and is killed before its `call`-th call that changes the disk."""
    pid = os.fork()
    if pid == 0:
        left = [call]

        def counted(function):
            def called(*arguments, **options):
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments, **options)

            return called

        for name in ("open", "write", "fsync", "rename", "mkdir", "unlink", "rmdir"):
            setattr(os, name, counted(getattr(os, name)))
        writer = committer(run, keep=1)
        writer.begin(2, duel(2), {})
        writer.wait()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_killed_between_any_two_calls_of_a_commit_both_networks_are_of_one_step(scratch, monkeypatch):
    monkeypatch.setattr("drivetrain.checkpoint.commit.PART", 64 * 64 * 4)  # each tensor is a file of its own
    (scratch / "before").mkdir()
    writer = committer(scratch / "before")
    writer.begin(1, duel(1), {})
    writer.wait()
    found = []
    for call in range(500):
        run = scratch / str(call)
        shutil.copytree(scratch / "before", run)
        ended = killed_at(run, call)
        clean(run)
        values = {float(value) for tensor in newest(run).state.tensors.values() for value in tensor.unique()}
        assert len(values) == 1, (call, values)
        found.append(values.pop())
        if ended == 0:
            break
    assert ended == 0
    assert found == sorted(found)
    assert found.count(1.0) > 15
    assert found.count(2.0) > 2
