"""Commits that several ranks write, each what it counts: what is read of them, and what is refused."""

import json
import os
import random
from collections import Counter

import pytest
import torch
from torch import nn

from drivetrain.checkpoint.boxes import Box
from drivetrain.checkpoint.commit import StateTree, load, verify
from drivetrain.checkpoint.commits import Commit, CommitFailure, newest, pick
from drivetrain.checkpoint.export import export
from drivetrain.checkpoint.files import read_file
from drivetrain.checkpoint.initial import load_initial
from drivetrain.checkpoint.inspection import difference, rows
from drivetrain.checkpoint.manifest import Damaged
from drivetrain.checkpoint.recipe import Init
from drivetrain.checkpoint.retention import pin
from drivetrain.checkpoint.snapshot import pieces_of
from drivetrain.checkpoint.state import capture
from drivetrain.checkpoint.stored import StoredCommit, dealt
from drivetrain.checkpoint.tensors import parse_tensors, write_tensors
from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.mesh import MeshSizes
from states import Ranks, committer, cut, same, save, save_in_parts, state

MESHES = [MeshSizes(tensor=2), MeshSizes(replicate=2, shard=2), MeshSizes(shard=2, tensor=2)]


def tree(step=1):
    """Tensors of several types and shapes: one shorter than there are ranks, one without numbers, one without rows."""
    tensors = {
        "networks/m/w": torch.arange(70.0).reshape(10, 7) + step,
        "networks/m/short": torch.tensor([1.0, -0.0]),
        "networks/m/none": torch.empty(0, 3),
        "networks/m/half": torch.randn(5, 3, 2).bfloat16(),
        "networks/m/odd": torch.arange(11, dtype=torch.uint8),
        "optimizers/m/w/step": torch.tensor(float(step)),
    }
    return StateTree(tensors, {"step": step})


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("world", [2, 3, 4, *MESHES], ids=str)
def test_what_ranks_have_written_is_loaded_whole(tmp_path, world, blocking):
    expected = tree()
    commit = Ranks(tmp_path, world, blocking=blocking).save(7, cut(expected, world))
    assert isinstance(commit, Commit), commit
    metadata, found = load(tmp_path / "checkpoints" / commit.name)
    same(found.tensors, expected.tensors)
    assert found.values == {"step": 1}
    assert metadata["sha256"] == commit.manifest
    assert verify(tmp_path / "checkpoints" / commit.name)["format"] == 2
    files = os.listdir(tmp_path / "checkpoints" / commit.name)
    writers = [rank for rank, part in enumerate(cut(expected, world)) if part.tensors]
    assert {name for name in files if name.startswith("boxes")} == {f"boxes-{rank:05d}.json" for rank in writers}
    assert commit.bytes == sum(file["size"] for file in metadata["files"].values())


def test_any_mesh_reads_what_another_has_written(tmp_path):
    expected = tree()
    for world in (1, 2, 4, *MESHES):
        run = tmp_path / str(world)
        run.mkdir()
        if world == 1:
            save(run, 1)
            expected = state(1.0)
        else:
            expected = tree()
            Ranks(run, world).save(1, cut(expected, world))
        for readers in (1, 2, 3, MeshSizes(shard=2, tensor=2)):
            for held in cut(expected, readers):
                found = newest(run, whole=False)
                assert found.state.tensors == {}
                own = found.read(lambda name, whole, held=held: held.boxes.get(name, Box.of_whole(whole)))
                wanted = {name: held.tensors.get(name, expected.tensors[name]) for name in expected.tensors}
                same(own, wanted)


def test_what_nobody_wants_is_not_read(tmp_path):
    Ranks(tmp_path, 2).save(1, cut(tree(), 2))
    found = newest(tmp_path, whole=False)
    for path in (tmp_path / "checkpoints" / "step-00000001").glob("tensors-00001-*"):
        path.unlink()

    def first_rows(name, whole):
        return Box(whole, (0, 0), (5, 7)) if name == "networks/m/w" else None

    same(found.read(first_rows), {"networks/m/w": tree().tensors["networks/m/w"][:5]})
    with pytest.raises(Failure) as caught:
        found.read(lambda name, whole: Box.of_whole(whole))
    assert caught.value.outcome.code == Exit.STORAGE
    assert "tensors-00001-00000.safetensors is missing" in caught.value.outcome.cause


def test_files_are_dealt_so_that_each_is_one_rank_s_and_loads_are_even():
    files = {f"tensors-{n:05d}.safetensors": 10 + n % 3 for n in range(20)}
    shares = [dealt(files, rank, 3) for rank in range(3)]
    assert sorted(name for share in shares for name in share) == sorted(files)
    loads = [sum(files[name] for name in share) for share in shares]
    assert max(loads) - min(loads) <= 12
    assert dealt({}, 0, 3) == []


def rewrite(folder, change):
    """Make a commit's manifest, and files by name, be what `change` leaves of them, with hashes that fit."""
    from hashlib import sha256

    line = (folder / "MANIFEST.json").read_bytes().split(b"\n")[0]
    manifest = json.loads(line)
    change(manifest, folder)
    for name in manifest["files"]:
        data = (folder / name).read_bytes()
        manifest["files"][name] = {"size": len(data), "sha256": sha256(data).hexdigest()}
    line = json.dumps(manifest).encode()
    (folder / "MANIFEST.json").write_bytes(line + b"\n" + sha256(line).hexdigest().encode() + b"\n")


def boxes(change, rank=1):
    def changed(manifest, folder):
        path = folder / f"boxes-{rank:05d}.json"
        content = json.loads(path.read_text())
        path.write_text(json.dumps(change(content)))

    return changed


def shifted(content):
    content["networks/m/w"]["offset"][0] -= 1
    return content


def without(name):
    return lambda content: {key: box for key, box in content.items() if key != name}


def claiming(**claims):
    return lambda content: content | {"networks/m/w": content["networks/m/w"] | claims}


def lost(manifest, folder):
    del manifest["files"]["tensors-00001-00000.safetensors"]


def twice(manifest, folder):
    (folder / "tensors-00001-00001.safetensors").write_bytes((folder / "tensors-00001-00000.safetensors").read_bytes())
    manifest["files"]["tensors-00001-00001.safetensors"] = {}


def turned(manifest, folder):
    """All boxes agree, and no file has tensors of their shapes."""
    for rank in (0, 1):
        claim = {"whole": [7, 10], "offset": [0, 5 * rank], "shape": [7, 5]}
        boxes(lambda content, claim=claim: content | {"networks/m/w": claim}, rank)(manifest, folder)


def whole_twice(manifest, folder):
    """Every rank says that it has what has no rows."""
    write_tensors(folder / "tensors-00001-00001.safetensors", pieces_of({"optimizers/m/w/step": torch.tensor(2.0)}))
    manifest["files"]["tensors-00001-00001.safetensors"] = {}


def halved(manifest, folder):
    """The parts of one tensor are of several types."""
    name = "tensors-00001-00000.safetensors"
    tensors = parse_tensors(read_file(folder / name))
    (folder / name).unlink()
    write_tensors(folder / name, pieces_of(tensors | {"networks/m/w": tensors["networks/m/w"].half()}))


HUGE = 1 << 50
GHOST = {"networks/m/ghost": {"whole": [2], "offset": [0], "shape": [2]}}


@pytest.mark.parametrize(
    "change",
    [
        lost,
        twice,
        turned,
        whole_twice,
        halved,
        boxes(lambda content: content | GHOST),
        boxes(shifted),
        boxes(without("networks/m/w")),
        boxes(lambda content: {}),
        boxes(lambda content: []),
        boxes(lambda content: content | {"networks/m/other": content["networks/m/w"]}),
        boxes(claiming(whole=[HUGE, 7])),
        boxes(claiming(whole=[HUGE, 7], offset=[0, 0], shape=[HUGE, 7])),
        boxes(claiming(shape=[4, 6])),
        boxes(claiming(shape="x")),
        boxes(claiming(offset=None)),
    ],
    ids=[
        *(
            "a file lost",
            "a file twice",
            "turned",
            "a whole twice",
            "two types",
            "a ghost",
            "shifted",
            "no box",
            "no boxes",
            "a list",
            "a box of nothing",
        ),
        *("several shapes", "a petabyte", "another shape", "no shape", "no offset"),
    ],
)
@pytest.mark.parametrize("world", [2, MeshSizes(tensor=2)], ids=["rows", "columns"])
def test_x08_parts_that_do_not_fit_together_are_damage_for_every_reader(tmp_path, change, world):
    save_in_parts(tmp_path, 1, world=2)
    Ranks(tmp_path, world).save(2, cut(tree(), world))
    folder = tmp_path / "checkpoints" / "step-00000002"
    verify(folder)
    rewrite(folder, change)
    for read in (verify, load):
        with pytest.raises(Damaged):
            read(folder)
    for whole in (True, False):
        found = newest(tmp_path, whole=whole)
        assert found.step == 1
        assert len(found.passed_over) == 1


def values(content):
    """Every place in a JSON value, as the container and the key."""
    found = []
    for key in content if isinstance(content, dict) else range(len(content)):
        found.append((content, key))
        if isinstance(content[key], dict | list):
            found += values(content[key])
    return found


ODD = (0, -1, 1 << 31, 1 << 63, 1 << 80, 1e300, 0.5, True, None, "", "x", [], {}, [[]], [0] * 99, {"whole": 1})


def test_x06_x08_whatever_boxes_and_headers_say_it_is_damage_and_nothing_worse(tmp_path):
    """Hashes fit, as they would where somebody means harm."""
    generator = random.Random(3)
    Ranks(tmp_path, 2).save(1, cut(tree(), 2))
    folder = tmp_path / "checkpoints" / "step-00000001"
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}

    def spoil(manifest, folder):
        name = generator.choice(["boxes-00000.json", "boxes-00001.json", "tensors-00001-00000.safetensors"])
        data = kept[name]
        length = len(data) if name.startswith("boxes") else int.from_bytes(data[:8], "little")
        start = len(data) - length if name.startswith("boxes") else 8
        content = json.loads(data[start : start + length])
        for _ in range(generator.randint(1, 2)):
            container, key = generator.choice(values(content))
            container[key] = generator.choice(ODD)
        text = json.dumps(content).encode()
        if start:
            text = len(text).to_bytes(8, "little") + text + data[start + length :]
        (folder / name).write_bytes(text)

    ended = Counter()
    for _ in range(400):
        rewrite(folder, spoil)
        for read in (verify, load, lambda path: StoredCommit.verified(path, Group())):
            try:
                read(folder)
                ended["whole"] += 1  # what was put there is what was there
            except Damaged:
                ended["damaged"] += 1
        for name, data in kept.items():
            (folder / name).write_bytes(data)
    assert ended["damaged"] > 900


@pytest.mark.parametrize("world", [3, *MESHES], ids=str)
@pytest.mark.parametrize("how", ["flipped", "torn", "missing"])
def test_s04_s05_s06_damage_of_any_part_passes_the_commit_over(tmp_path, how, world):
    save_in_parts(tmp_path, 1, world=world)
    save_in_parts(tmp_path, 2, world=world)
    for path in sorted((tmp_path / "checkpoints" / "step-00000002").iterdir()):
        data = path.read_bytes()
        if how == "missing":
            path.unlink()
        else:
            middle = len(data) // 2
            flipped = data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]
            path.write_bytes({"flipped": flipped, "torn": data[:middle]}[how])
        for whole in (True, False):
            found = newest(tmp_path, whole=whole)
            assert (found.step, len(found.passed_over)) == (1, 1)
        path.write_bytes(data)
        os.chmod(path, 0o600)
    assert newest(tmp_path).step == 2


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_that_cannot_write_fails_the_commit_as_a_whole(tmp_path, victim, monkeypatch):
    ranks = Ranks(tmp_path, 3)
    assert isinstance(ranks.save(1, cut(state(1.0), 3)), Commit)

    def refuse():
        raise OSError(28, "No space left on device")

    ranks.all[victim].before = refuse
    failed = ranks.save(2, cut(state(2.0), 3))
    assert isinstance(failed, CommitFailure)
    assert failed.code == Exit.STORAGE
    assert f"No space left on device (rank {victim})" in failed.cause
    assert os.listdir(tmp_path / "checkpoints") == ["step-00000001"]
    ranks.all[victim].before = lambda: None
    assert ranks.all[0].failures == 1
    assert isinstance(ranks.save(3, cut(state(3.0), 3)), Commit)
    assert newest(tmp_path).step == 3


def test_n08_a_bit_that_flips_in_one_rank_s_snapshot_is_refused_and_the_rank_named(tmp_path):
    ranks = Ranks(tmp_path, 3)

    def flip():
        ranks.all[2]._arena._memory[8] ^= 1

    ranks.all[2].before = flip
    failed = ranks.save(2, cut(state(2.0), 3))
    assert failed.code == Exit.CORRUPTION_SUSPECTED
    assert "networks/m/w changed in memory" in failed.cause
    assert "(rank 2)" in failed.cause


def test_parts_of_several_types_are_no_commit(tmp_path):
    first, second = cut(tree(), 2)
    odd = StateTree(second.tensors | {"networks/m/w": second.tensors["networks/m/w"].half()}, {}, second.boxes)
    failed = Ranks(tmp_path, 2).save(1, [first, odd])
    assert "networks/m/w has parts of several types" in failed.cause


def test_parts_that_do_not_make_up_a_whole_are_no_commit(tmp_path):
    trees = cut(tree(), 2)
    moved = trees[1].boxes | {"networks/m/w": Box((10, 7), (4, 0), (5, 7))}
    for wrong in (StateTree({}, {}), StateTree(trees[1].tensors, {}, moved), StateTree(trees[1].tensors, {})):
        failed = Ranks(tmp_path, 2).save(1, [trees[0], wrong])
        assert isinstance(failed, CommitFailure), wrong
        assert "networks/m/" in failed.cause
        assert os.listdir(tmp_path / "checkpoints") == []


def test_a_rank_that_counts_nothing_writes_nothing(tmp_path):
    first, _ = cut(state(), 1), None
    commit = Ranks(tmp_path, 2).save(1, [*first, StateTree({}, {})])
    assert isinstance(commit, Commit)
    assert all("00001" not in name for name in os.listdir(tmp_path / "checkpoints" / commit.name) if "0-0" not in name)
    same(newest(tmp_path).state.tensors, state().tensors)


@pytest.mark.parametrize(
    "lie",
    [
        {"../../etc/passwd": {"size": 1, "sha256": ""}},
        {"tensors-00000-00000.safetensors": {"size": 1, "sha256": ""}},
        {"values-00000.json": {"size": len('{"step": 1.0}'), "sha256": ""}},
        {"tensors-00001-00009.safetensors": {"size": 1, "sha256": ""}},
    ],
    ids=["elsewhere", "another rank's", "values", "not there"],
)
def test_what_a_rank_says_of_its_files_is_looked_at(tmp_path, lie):
    ranks = Ranks(tmp_path, 2)
    leader = ranks.all[0]
    folder = leader.next_folder(1)
    for rank, own in zip(ranks.all, cut(state(), 2), strict=True):
        rank.begin(1, own, {}, folder)
        while rank.busy(1):
            pass
    parts = [rank.part() for rank in ranks.all]
    parts[1]["files"] |= lie
    leader.seal(parts)
    assert isinstance(leader.wait(), CommitFailure)
    assert os.listdir(tmp_path / "checkpoints") == []


def test_a_part_that_is_dropped_leaves_nothing(tmp_path):
    """Another rank has begun none, and the run ends."""
    ranks = Ranks(tmp_path, 2)
    ranks.all[0].begin(1, cut(state(), 2)[0], {}, ranks.all[0].next_folder(1))
    while ranks.all[0].busy(1):
        pass
    ranks.all[0].drop()
    ranks.all[0].close()
    assert os.listdir(tmp_path / "checkpoints") == []


# What else is done with commits is done with those in parts, too.


def net(seed=0):
    torch.default_generator.manual_seed(seed)
    return nn.ModuleDict({"body": nn.Linear(3, 5), "head": nn.Linear(5, 2, bias=False)})


@pytest.fixture
def run(tmp_path):
    """A run of two ranks with commits of step 1 and, of other weights, step 2."""
    ranks = Ranks(tmp_path / "run", 2)
    (tmp_path / "run").mkdir()
    for step in (1, 2):
        tensors = capture({"model": net(step)}, {}) | {"optimizers/model/head.weight/exp_avg": torch.ones(2, 5)}
        assert isinstance(ranks.save(step, cut(StateTree(tensors, {}), 2)), Commit)
    return tmp_path / "run"


@pytest.mark.parametrize("place", ["", "checkpoints/step-00000002"])
def test_weights_begin_at_a_commit_in_parts_and_files_without_them_are_not_kept(run, place):
    networks = {"model": net(7)}
    report = load_initial(Init(from_=str(run / place)), networks)
    assert sorted(report.loaded) == ["model/body.bias", "model/body.weight", "model/head.weight"]
    same(networks["model"].state_dict(), net(2).state_dict())
    assert report.bytes == sum(tensor.nbytes for tensor in net().state_dict().values())


def test_weights_that_do_not_fit_are_told_by_their_whole_shapes(run):
    networks = {"model": nn.ModuleDict({"body": nn.Linear(3, 4), "head": nn.Linear(5, 2, bias=False)})}
    with pytest.raises(Failure, match=r"model/body.weight is \(5, 3\) float32, the network has \(4, 3\) float32"):
        load_initial(Init(from_=str(run)), networks)


def test_commits_in_parts_are_compared_tensor_by_tensor_with_any_other(run, tmp_path):
    found = difference(run / "checkpoints" / "step-00000001", run / "checkpoints" / "step-00000002")
    assert found.equal == 1
    assert sorted(found.tensors) == [f"networks/model/{name}" for name in ("body.bias", "body.weight", "head.weight")]
    whole = tmp_path / "whole"
    whole.mkdir()
    writer = committer(whole)
    writer.begin(2, newest(run).state, {"recipe": "r", "position": 16})
    writer.wait()
    rewrite(whole / "checkpoints" / "step-00000002", lambda manifest, _: manifest.pop("format"))  # also of an older one
    found = difference(run, whole)
    assert (found.metadata, found.tensors, found.equal) == ({}, {}, 4)


def test_a_commit_in_parts_is_exported_whole(run, tmp_path):
    export(pick(run, "1"), tmp_path / "out", {})
    same(parse_tensors(read_file(tmp_path / "out" / "model.safetensors")), net(1).state_dict())


def test_rotation_keeps_and_pins_commits_in_parts_and_looks_at_those_that_others_have_made(run):
    pin(run, "step-00000001")
    (run / "checkpoints" / "step-00000002" / "boxes-00001.json").write_text("{}")  # does not verify: for a person
    assert save_in_parts(run, 3, 4, world=3, keep=1)[-1].removed == ("step-00000003",)
    there = {row.name: row.damage for row in rows(run, every_byte=True)}
    assert "boxes-00001.json has 2 bytes" in there.pop("step-00000002")
    assert there == {"step-00000004": "", "step-00000001": ""}


# Formats.


def of_format(number, more=None):
    def change(manifest, folder):
        manifest["format"] = number
        if more is not None:
            manifest["files"] = {}
            manifest["parts"] = more

    return change


def refused(read, folder):
    with pytest.raises(Failure) as caught:
        read()
    assert caught.value.outcome.code == Exit.INCOMPATIBLE
    assert folder.name in caught.value.outcome.cause
    assert "is a commit of format 3, and this version of drivetrain knows formats up to 2" in caught.value.outcome.cause


@pytest.mark.parametrize("more", [None, ["something", "new"]])
def test_a_commit_of_a_newer_format_is_76_wherever_it_is_read_and_stays(run, tmp_path, more):
    folder = run / "checkpoints" / "step-00000002"
    rewrite(folder, of_format(3, more))
    for read in (
        lambda: newest(run),
        lambda: newest(run, whole=False),
        lambda: pick(run, "2"),
        lambda: verify(folder),
        lambda: load(folder),
        lambda: rows(run, every_byte=False),
        lambda: rows(run, every_byte=True),
        lambda: difference(run, run),
        lambda: load_initial(Init(from_=str(run)), {"model": net()}),
        lambda: load_initial(Init(from_=str(folder)), {"model": net()}),
    ):
        refused(read, folder)
    save_in_parts(run, 3, 4, 5, keep=1)
    assert sorted(os.listdir(run / "checkpoints")) == ["step-00000002", "step-00000005"]


@pytest.mark.parametrize("number", [0, -1, "3", 2.0, None, True])
def test_a_format_that_makes_no_sense_is_damage(run, number):
    rewrite(run / "checkpoints" / "step-00000002", of_format(number))
    assert newest(run).step == 1


def test_a_commit_without_a_format_is_of_the_first(tmp_path):
    """As all that were made before there were parts."""
    save(tmp_path, 1)
    folder = tmp_path / "checkpoints" / "step-00000001"
    rewrite(folder, lambda manifest, _: manifest.pop("format"))
    same(newest(tmp_path).state.tensors, state(1.0).tensors)
    assert "format" not in verify(folder)
