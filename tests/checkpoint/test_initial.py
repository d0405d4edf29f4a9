import hashlib

import pytest
import torch
from torch import nn

from drivetrain.checkpoint.boxes import Box
from drivetrain.checkpoint.commit import StateTree
from drivetrain.checkpoint.initial import freeze, load_initial
from drivetrain.checkpoint.recipe import Init
from drivetrain.checkpoint.snapshot import pieces_of
from drivetrain.checkpoint.state import capture
from drivetrain.checkpoint.tensors import write_tensors
from drivetrain.spec.exits import Exit, Failure
from states import committer


def net(seed=0, head=2, prefix="body"):
    torch.default_generator.manual_seed(seed)
    return nn.ModuleDict({prefix: nn.Linear(3, 4), "norm": nn.BatchNorm1d(4), "head": nn.Linear(4, head)})


@pytest.fixture
def run(tmp_path):
    """A run with one commit of network `model`, and a file of its tensors."""
    networks = {"model": net()}
    writer = committer(tmp_path)
    writer.begin(3, StateTree(capture(networks, {}), {}), {})
    writer.wait()
    write_tensors(tmp_path / "w.safetensors", pieces_of(networks["model"].state_dict()))
    return tmp_path


def init(run, **settings):
    return Init(**{"from_": str(run)} | settings)


def failure(code, match, settings, networks):
    before = {name: tensor.clone() for name, tensor in capture(networks, {}).items()}
    with pytest.raises(Failure, match=match) as caught:
        load_initial(settings, networks)
    assert caught.value.outcome.code == code
    assert all(torch.equal(before[name], tensor) for name, tensor in capture(networks, {}).items())


@pytest.mark.parametrize("place", ["", "checkpoints/step-00000003", "w.safetensors"])
def test_weights_come_from_a_run_a_commit_or_a_file(run, place):
    networks = {"model": net(seed=4)}
    report = load_initial(init(run / place), networks)
    assert len(report.loaded) == 9
    assert report.bytes == sum(tensor.nbytes for tensor in net().state_dict().values())
    commit = run / "checkpoints" / "step-00000003"
    source = run / place if place.endswith("safetensors") else commit
    data = source.read_bytes() if source.is_file() else (commit / "MANIFEST.json").read_bytes().split(b"\n")[0]
    digest = hashlib.sha256(data).hexdigest()
    assert (report.source, report.digest) == (source.name, digest)
    assert str(report) == f"9 tensors loaded, {report.bytes:,} bytes of {source.name} (sha256 {digest[:12]})"
    assert torch.equal(networks["model"]["body"].weight, net()["body"].weight)


def test_a_place_that_is_not_there_is_66_and_damage_65(run, tmp_path):
    failure(Exit.INPUT_MISSING, "nothing at", init(tmp_path / "nowhere"), {"model": net()})
    (run / "w.safetensors").write_bytes(b"\xff" * 40)
    failure(Exit.BAD_DATA, "damaged", init(run / "w.safetensors"), {"model": net()})


def test_c05_by_default_everything_must_fit(run):
    failure(Exit.INCOMPATIBLE, r"head.weight is \(2, 4\) float32.*has \(5, 4\)", init(run), {"model": net(head=5)})
    failure(Exit.INCOMPATIBLE, "perhaps renamed from model/body", init(run), {"model": net(prefix="trunk")})


def test_names_are_mapped_by_their_beginning_and_the_report_says_so(run):
    networks = {"model": net(seed=4, prefix="trunk")}
    report = load_initial(init(run, map={"body.": "trunk."}), networks)
    assert ("model/body.weight", "model/trunk.weight") in report.renamed
    assert "2 of them renamed" in str(report)
    assert torch.equal(networks["model"]["trunk"].weight, net()["body"].weight)
    other = {"student": net(seed=4)}
    assert len(load_initial(init(run, map={"model/": "student/"}), other).renamed) == 9


def test_a_new_head_stays_as_drawn_and_the_old_one_is_left_out(run):
    networks = {"model": net(seed=4, head=5)}
    drawn = networks["model"]["head"].weight.clone()
    report = load_initial(init(run, map={"head.": None}, fresh=["head"]), networks)
    assert set(report.fresh) == {"model/head.weight", "model/head.bias"} == set(report.left_out)
    assert torch.equal(networks["model"]["head"].weight, drawn)
    assert torch.equal(networks["model"]["body"].weight, net()["body"].weight)


def test_what_a_map_or_a_pattern_never_meets_is_a_mistake(run):
    failure(Exit.BAD_RECIPE, "no name there begins with 'nobody.'", init(run, map={"nobody.": "x."}), {"model": net()})
    failure(Exit.INCOMPATIBLE, "two tensors the name", init(run, map={"head.": "body."}), {"model": net()})
    with pytest.raises(Failure, match="'nothing' names no parameter"):
        freeze(init(run, freeze=("nothing",)), {"model": net()})


def test_a_table_is_not_frozen_by_a_pattern(run):
    rows = {"model/table_user": Box((9, 2), (0, 0), (9, 2)), "model/elsewhere": None}
    with pytest.raises(Failure, match=r"'user\$' names the table model/table_user.*lr 0") as failed:
        freeze(init(run, freeze=("body", "user$")), {"model": net()}, rows)
    assert failed.value.outcome.code is Exit.BAD_RECIPE
    assert freeze(init(run, freeze=("body", "elsewhere")), {"model": net()}, rows) == 2


def test_one_part_of_several_networks(run):
    networks = {"model": net(seed=4), "other": net(seed=5)}
    before = networks["other"]["body"].weight.clone()
    load_initial(init(run, part="model"), networks)
    assert torch.equal(networks["other"]["body"].weight, before)
    failure(Exit.BAD_RECIPE, "no network 'nobody'", init(run, part="nobody"), networks)
    failure(Exit.BAD_RECIPE, "a file of one network", init(run / "w.safetensors"), networks)


def test_frozen_parameters_do_not_train(run):
    networks = {"model": net()}
    assert freeze(init(run, freeze=(r"body\.",)), networks) == 2
    assert [name for name, p in networks["model"].named_parameters() if not p.requires_grad] == [
        "body.weight",
        "body.bias",
    ]
    networks = {"model": net()}
    assert freeze(init(run, freeze=True, fresh=("head",)), networks) == 4
    assert [name for name, p in networks["model"].named_parameters() if p.requires_grad] == ["head.weight", "head.bias"]
