"""The plan that is made beside a run, and what becomes of the process that makes it."""

import json
import os
import signal
import subprocess
import sys

import pytest

import plans
from conftest import run_under_supervisor, tiny_recipe, trace
from drivetrain.cli.main import run as command
from drivetrain.loop.plan_beside import AFTER, PlanBeside, PlanRequest
from drivetrain.run.proof import prove
from drivetrain.spec.affects import bits_digest, plan_digest
from drivetrain.spec.exits import Exit
from drivetrain.spec.load import load
from processes import family, wait_until
from records import of_kind

STEPS = 100
MESH = ("launch.processes=2", "parallel={shard: 2}")

pytestmark = [pytest.mark.usefixtures("importable"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return plans.corpus(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory, forked):
    """A run on two processes, planned beside its first attempt, stopped, and ended by a second one."""
    folder = tmp_path_factory.mktemp("planned")
    recipe = plans.recipe(tiny_recipe(corpus), STEPS) | {"stop": {"at": [STEPS - 5]}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        assert run_under_supervisor(recipe, folder / "run", *MESH).code is Exit.STOPPED
        assert run_under_supervisor(recipe, folder / "run", *MESH).code is Exit.DONE
    return folder / "run"


def test_a_run_has_its_plan_in_the_ledger_once_however_often_it_is_started(run):
    assert len(of_kind(run, "attempt")) == 2
    (plan,) = of_kind(run, "plan")
    assert (plan.attempt, plan.failed, plan.world, plan.mesh) == (1, None, 2, {"shard": 2})
    (rank,) = plan.planned.ranks.values()
    assert rank.later.bytes == sum(rank.later.kinds.values()) > rank.later.kinds["optimizer"] > 0
    assert rank.flops > 0
    assert rank.sent > 0


def test_a_commit_has_as_many_bytes_as_were_planned(run):
    (plan,) = of_kind(run, "plan")
    assert {commit.written for commit in of_kind(run, "commit")} == {plan.planned.ranks["0"].written}


def test_a_plan_changes_no_bit_and_is_no_step(run, corpus, tmp_path, forked):
    recipe = plans.recipe(tiny_recipe(corpus), STEPS) | {"telemetry": {"plan": None}, "callbacks": []}
    assert run_under_supervisor(recipe, tmp_path / "run", *MESH).code is Exit.DONE
    assert of_kind(tmp_path / "run", "plan") == []
    assert trace(tmp_path / "run").losses == trace(run).losses
    assert prove(run).steps == STEPS


def test_the_report_shows_what_was_planned_beside_what_was_measured(run, capsys):
    assert command(["report", str(run), "--json"]) == Exit.DONE
    told = json.loads(capsys.readouterr().out)["plan"]
    (plan,) = of_kind(run, "plan")
    assert told["rows"]["memory"]["planned"] == plan.planned.ranks["0"].later.bytes
    assert told["rows"]["memory"]["measured"] > 0
    assert told["rows"]["commit"]["planned"] == told["rows"]["commit"]["measured"]
    assert told["flops"] == 2 * plan.planned.ranks["0"].flops
    # That of the stop was not planned, and headers, boxes and plain values come on top.
    disk = told["rows"]["disk"]
    assert disk["planned"] == plan.planned.state
    assert 2 * disk["planned"] < disk["measured"] < 3 * disk["planned"]
    assert command(["report", str(run)]) == Exit.DONE
    shown = capsys.readouterr().out
    assert "planned beside the run" in shown
    assert "FLOPs a step planned" in shown


class Ledger:
    """Takes what is told."""

    def __init__(self):
        self.told = []

    def record(self, record):
        self.told.append(record)


def beside(content=None, *, least=0.0, last=100, refused=None):
    ledger = Ledger()
    request = PlanRequest("of", 1, {}, content or {}, refused)
    return PlanBeside(request, least, last, ledger), ledger.told


def made_until_told(plan, told):
    for step in range(1, AFTER + 1):
        plan.after(step)
    wait_until(lambda: plan.after(AFTER + 1) or told, 300)


def test_what_is_over_soon_is_not_planned(monkeypatch):
    plan, told = beside(least=60.0)
    monkeypatch.setattr(PlanBeside, "_begin", lambda _: told.append("begun"))
    for step in range(1, 20):
        plan.after(step)
    assert told == []
    plan, told = beside(least=60.0, last=10**9)
    for step in range(1, 20):
        plan.after(step)
    assert told == ["begun"]


def test_a_plan_that_fails_is_told_with_its_reason_and_nothing_else_happens():
    tree = {"name": "x", "task": {"kind": "language_model"}, "budget": {"steps": 1}}
    content = {"recipe": tree, "origins": {}, "modules": None, "world": 1, "lanes": 1, "epoch": None}
    plan, (told) = beside(content)
    made_until_told(plan, told)
    plan.close()
    (record,) = told
    assert record.planned is None
    assert "78" in record.failed


def test_samples_that_the_run_alone_may_read_are_not_read_for_a_plan(tmp_path, forked):
    """The task needs samples, and its source is the user's own."""
    import paced

    recipe = paced.recipe(tmp_path, after=99) | {"telemetry": {"plan": 0.0001}}
    assert run_under_supervisor(recipe, tmp_path / "run").code is Exit.DONE
    (plan,) = of_kind(tmp_path / "run", "plan")
    assert "code of yours, which the run alone calls" in plan.failed


def test_a_run_that_ends_takes_the_process_that_plans_it_along(corpus):
    tiny = tiny_recipe(corpus)
    content = {"recipe": load(tiny).tree, "origins": {}, "modules": None, "world": 1, "lanes": 4, "epoch": None}
    plan, told = beside(content)
    for step in range(1, AFTER + 1):
        plan.after(step)
    process = plan._process._process
    assert process.poll() is None
    plan.close()
    assert process.poll() is not None
    assert told == []


@pytest.mark.cold
def test_a_run_that_is_killed_takes_the_process_that_plans_it_along(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv(plans.TOKEN, tmp_path.name)
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(plans.recipe(tiny_recipe(corpus), 10_000)))
    line = [sys.executable, "-m", "drivetrain", "train", str(path), "--run", str(tmp_path / "run")]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL) as process:
        wait_until(plans.planning, 200)
        (planning,) = plans.planning()
        wait_until(lambda: os.getpriority(os.PRIO_PROCESS, planning) == 19, 100)
        for member in family(process.pid):
            if member != planning:
                os.kill(member, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: not plans.planning(), 60)
    assert of_kind(tmp_path / "run", "plan") == []


def test_whether_it_is_planned_moves_no_digest_and_a_plan_is_of_all_that_costs(corpus):
    tiny = tiny_recipe(corpus)
    usual, never = load(tiny).recipe, load(tiny, ["telemetry.plan=null"]).recipe
    assert bits_digest(usual) == bits_digest(never)
    micro = load(tiny, ["activations=recompute"]).recipe
    digests = {plan_digest(usual, {}, 4), plan_digest(micro, {}, 4), plan_digest(usual, {"shard": 2}, 4)}
    assert len(digests) == 3
    assert plan_digest(usual, {}, 4) == plan_digest(load(tiny, ["name=other"]).recipe, {}, 4)
