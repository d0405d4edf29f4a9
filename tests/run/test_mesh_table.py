"""What a run does beside its steps, on every mesh as on one process."""

import json
import os
from itertools import product
from math import prod

import pytest
import torch
from safetensors.torch import load_file

import meshed
from conftest import run_under_supervisor, tensors, trace
from drivetrain.cli.main import run as command
from drivetrain.launch.inbox import post
from drivetrain.ledger.derive import lineage
from drivetrain.ledger.ledger import read
from drivetrain.run.proof import prove
from drivetrain.spec.commands import Command
from drivetrain.spec.exits import Exit
from drivetrain.tasks.language_model.hugging_face import from_layout

# One at a time: each starts as many processes as this machine has cores, or more.
pytestmark = [
    pytest.mark.xdist_group("meshes"),
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("forked", "importable"),
]


def meshes(*some: str) -> list[str]:
    """What `make test` has of the meshes; `make drill-meshes` has all."""
    return list(meshed.MESHES) if "DRILL" in os.environ else list(some)


def of_kind(run, kind):
    return [record for record in lineage(read(run / "ledger.jsonl")) if record["kind"] == kind]


def asked(name):
    return meshed.laid_out(meshed.MESHES[name])


TABLE = meshes("tensor", "replicate x shard", "pipeline")


def everything() -> dict:
    """A step that is not finite, one that stands out, and all that is measured."""
    return meshed.recipe(nan=meshed.ids_of(7, 5, 6), spike=meshed.ids_of(14, 2, 3)) | {
        "guard": {
            "nonfinite": "rollback",
            "spike": {"window": 8, "deviations": 50.0, "action": "rollback"},
            "rollback": {"back": 2, "every": 1},
        },
        "statistics": {"every": {"steps": 5}, "gradients": False, "histograms": True},
        "telemetry": {"every": {"steps": 10}},
        "average": {"decay": 0.5},
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """By the mesh's name a run of everything; "" is one process."""
    found = {}

    def run_of(name):
        if name not in found:
            found[name] = tmp_path_factory.mktemp("everything") / "run"
            mesh = asked(name) if name else ()
            assert run_under_supervisor(everything(), found[name], *mesh).code is Exit.DONE
        return found[name]

    return run_of


@pytest.mark.parametrize("name", TABLE)
def test_what_a_run_undoes_scores_shows_and_measures_is_that_of_one_process(name, runs):
    run, one = runs(name), runs("")
    undone = [[(each["step"], each["to"], each["samples"]) for each in of_kind(at, "rollback")] for at in (run, one)]
    assert [step for step, _, _ in undone[1]] == [7, 14]
    assert undone[0] == undone[1]
    assert trace(run).samples == trace(one).samples
    assert of_kind(run, "step")[13]["skipped"] == {"model": "quarantined"}
    for here, there in zip(of_kind(run, "evaluation"), of_kind(one, "evaluation"), strict=True):
        assert here["metrics"]["windows"] == pytest.approx(there["metrics"]["windows"], rel=1e-5)
    texts = [[show["text"] for show in of_kind(at, "show")] for at in (run, one)]
    assert len(texts[1]) == 2
    assert texts[1][-1]["sample"].startswith("abc")
    assert texts[0] == texts[1]
    require_same_statistics(of_kind(run, "statistics"), of_kind(one, "statistics"))
    require_heard(of_kind(run, "telemetry"), prod(meshed.MESHES[name].values()))


@pytest.mark.parametrize("name", TABLE)
def test_commands_read_a_run_of_a_mesh_like_any_other(name, runs, tmp_path, capsys):
    run, one = runs(name), runs("")
    scored = of_kind(run, "evaluation")[-1]["metrics"]["windows"]
    assert said(capsys, "evaluate", run)["metrics"]["windows"] == pytest.approx(scored, rel=1e-6)
    for weights, kind in (("averaged", "averages"), ("trained", "networks")):
        said(capsys, "export", run, "--to", tmp_path / weights, "--weights", weights)
        exported = from_layout(load_file(tmp_path / weights / "model.safetensors"), meshed.MODEL)
        there = networks_in(run, kind)
        assert all(torch.equal(tensor, there[f"model/{path}"]) for path, tensor in exported.items())
    assert not torch.equal(there["model/norm.weight"], networks_in(run, "averages")["model/norm.weight"])
    greedy = ("--prompt", "abc", "--tokens", "20", "--temperature", "0")
    assert said(capsys, "generate", run, *greedy) == said(capsys, "generate", one, *greedy)
    said(capsys, "checkpoint", "pin", run, "20")
    assert [(row["pinned"], row["damage"]) for row in said(capsys, "checkpoint", "verify", run)] == [(True, "")]
    apart = said(capsys, "checkpoint", "diff", run, one)
    assert apart["equal"] + len(apart["tensors"]) == len(tensors(one))
    assert "parallel." in json.dumps(said(capsys, "diff", run, one))
    assert prove(run).steps == 20


def said(capsys, *arguments):
    """What a command says for programs."""
    assert command([*map(str, arguments), "--json"]) == Exit.DONE
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", meshes("replicate x shard"))
def test_a_task_asks_something_of_all_processes_of_a_mesh(name, tmp_path):
    recipe = meshed.recipe() | {"task": {"kind": "meshed:Helped", "folder": str(tmp_path)}}
    assert run_under_supervisor(recipe, tmp_path / "run", *asked(name), "budget.steps=3").code is Exit.DONE


PAIRS = [("tensor", "bf16", "export"), ("replicate x shard", "fp32", "sharded run")]
if "DRILL" in os.environ:
    PAIRS = list(product(meshed.MESHES, ["fp32", "bf16"], ["export", "run", "sharded run"]))


@pytest.mark.parametrize(("name", "kept", "source"), PAIRS)
def test_a_run_begins_on_a_mesh_with_the_bits_of_another_one_or_of_an_export(tiny, tmp_path, name, kept, source):
    before = tmp_path / "before"
    tiny["task"]["model"]["depth"] = 2  # a block for each stage
    mesh = asked("shard") if source == "sharded run" else ()
    assert run_under_supervisor(tiny, before, *mesh, most_steps=3).code is Exit.STOPPED
    wanted = networks_in(before)
    if source == "export":
        assert command(["export", str(before), "--to", str(tmp_path / "export")]) == 0
    begun = tiny | {"init": {"from": str(tmp_path / "export" if source == "export" else before)}}
    still = ["optimizer.lr=0", "optimizer.weight_decay=0"]  # so that a commit has what training began with
    if kept == "bf16":
        still += ["precision=bf16", "parameters.dtype=bf16"]
    assert run_under_supervisor(begun, tmp_path / "run", *asked(name), *still, most_steps=1).code is Exit.STOPPED
    found = networks_in(tmp_path / "run")
    assert found.keys() == wanted.keys()
    for tensor, there in wanted.items():
        assert torch.equal(found[tensor], there.to(found[tensor].dtype)), tensor
    masters = networks_in(tmp_path / "run", "masters")
    assert bool(masters) == (kept == "bf16")
    assert all(torch.equal(each, wanted[tensor]) for tensor, each in masters.items())


def networks_in(run, kind="networks"):
    """The newest commit's tensors of a kind, by NETWORK/NAME."""
    return {name.removeprefix(f"{kind}/"): each for name, each in tensors(run).items() if name.startswith(f"{kind}/")}


def require_same_statistics(found, wanted):
    assert len(wanted) == 4
    for here, there in zip(found, wanted, strict=True):
        assert here["networks"]["model"] == pytest.approx(there["networks"]["model"], rel=1e-4)
        for what, histogram in there["histograms"]["model"].items():
            own = here["histograms"]["model"][what]
            assert sum(own["counts"]) == sum(histogram["counts"])
            assert (own["low"], own["high"]) == pytest.approx((histogram["low"], histogram["high"]), rel=1e-3)


def require_heard(telemetry, world):
    assert [record["step"] for record in telemetry] == [10, 20]
    for record in telemetry:
        assert record["world"] == world
        for spread in record["ranks"].values():
            assert 0 < spread["least"] <= spread["most"]
            assert 0 <= spread["rank"] < world
        # No two processes take the same time to the last bit: all have told theirs.
        assert record["ranks"]["own_seconds"]["least"] < record["ranks"]["own_seconds"]["most"]


@pytest.mark.parametrize("name", meshes("tensor"))
def test_deadlines_and_commands_act_on_all_ranks_of_a_mesh_and_a_replay_is_bit_equal(name, tmp_path):
    run, again = tmp_path / "run", tmp_path / "again"
    plain = meshed.recipe() | {"schedule": {"kind": "constant"}, "checkpoint": {"every": None}}
    late = run_under_supervisor(plain, run, *asked(name), "stop.deadline=0.001")
    assert (late.code, late.where["last_committed_step"]) == (Exit.STOPPED, late.where["step"])
    for verb, argument in (("set", "optimizer.lr=0.5"), ("save", ""), ("pause", ""), ("resume", ""), ("stop", "")):
        post(run, Command(verb, argument))
    assert run_under_supervisor(plain, run, *asked(name)).code is Exit.STOPPED
    told = {record["verb"]: record for record in of_kind(run, "command")}
    assert not any(record.get("refused") for record in told.values())
    assert {"set", "save", "pause", "resume", "stop"} <= told.keys()
    assert told["save"]["step"] in {record["step"] for record in of_kind(run, "commit")}
    assert run_under_supervisor(plain, run, *asked(name)).code is Exit.DONE
    changed = told["set"]["step"]
    assert 0 < changed < 20
    rates = {record["step"]: record["lr"]["model"] for record in of_kind(run, "step")}
    assert rates == {step: 0.5 if step > changed else 0.01 for step in range(1, 21)}
    # Had a rank done it at another step, its weights would be others than those of a run that does it at this one.
    assert run_under_supervisor(plain, again, *asked(name), replay=str(run)).code is Exit.DONE
    assert trace(again) == trace(run)
