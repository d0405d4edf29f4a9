"""Known defects of a trainer of networks against each other, and of its engine: a test each.

TrainLoop (B2 of the seed; "here" is this file):

| # | defect there | test |
|---|---|---|
| 1 | the CPU fails before the first step | every test here |
| 2 | standard input at /dev/null or closed | here; tests/cli/test_keys.py; test_control.py runs at /dev/null |
| 3 | no interval of evaluations divides by zero | here |
| 4 | data smaller than a batch spins for ever | here; tests/data/test_feed_and_prefetch.py: an empty set is refused |
| 5 | a resume at or past the end never ends | here |
| 6 | NaN in every step loops for ever | here; tests/loop/test_guard.py: skips are bounded |
| 7, 8 | NaN of one network on one rank | here: left out on both ranks, or 82 on both |
| 9 | the last step is committed twice | here |
| 10 | one rank evaluates and the others time out | here; tests/loop/test_evaluation.py: each sample once |
| 11 | an exception in what only the leader does | here; tests/drills/test_process.py: P18, for any rank |

Engine (B1):

| weakness there | test |
|---|---|
| any failure to load drops optimizer state or weights | tests/checkpoint/test_state.py: C05, 76 by name |
| a failed load leaves a part behind | the same, and tests/checkpoint/test_initial.py |
| networks are saved one after the other | here: killed between any two calls, both are of one step |
| no random numbers, data position, settings in a checkpoint | tests/tasks/test_adversarial.py: 30 + 30 steps are 60 |
| training waits for every write | tests/checkpoint/test_commit.py: tensors may change while they are written |
| nothing is ever removed | tests/checkpoint/test_commits.py: retention |
| `latest` is whatever was saved last, a backup too | tests/checkpoint/test_commit.py: S08, S09, S12 |
| no checkpoint where one was expected starts anew | tests/loop/test_run.py: --resume must; S13: all damaged is 86 |
| the gradient norm is the one of the step before | tests/tasks/test_adversarial.py: the schedule by hand |
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
import yaml

from adversarial import made, recipe, train
from conftest import run_under_supervisor, trace
from drills.fault import Fault
from drills.runs import drill, one_server, reference
from drills.storage import MEMORY
from drivetrain.checkpoint.commit import StateTree
from drivetrain.checkpoint.commits import clean, newest
from drivetrain.data.order import Order
from drivetrain.spec.exits import Exit, Failure
from states import committer

pytestmark = pytest.mark.usefixtures("importable")


@pytest.fixture(autouse=True, scope="module")
def _server():
    with one_server():
        yield


def scored(**changes):
    data = recipe()["data"] | {"validation": {"ring": {"kind": "adversarial:Ring", "size": 24}}}
    return recipe(data=data, **changes)


def sample_of(step, place):
    """The sample at a place of a step."""
    at = (step - 1) * 16 + place
    return int(Order(512, 0, True).ids(at, at + 1)[0])


def test_2_a_standard_input_that_is_closed_is_no_error(tmp_path):
    (tmp_path / "gan.yaml").write_text(yaml.safe_dump(recipe()))
    command = [sys.executable, "-m", "drivetrain", "train", str(tmp_path / "gan.yaml"), "--run", str(tmp_path / "run")]
    closed = ["bash", "-c", 'exec "$@" <&-', "bash", *command]
    result = subprocess.run(closed, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert trace(tmp_path / "run") == trace(train(recipe(), tmp_path / "here").run)


def test_3_no_interval_of_evaluations_is_one_at_the_end_and_no_set_is_none(tmp_path):
    run = train(scored(), tmp_path / "run", "evaluate.every=null").run
    assert [record["step"] for record in made(run, "evaluation")] == [12]
    assert made(train(recipe(), tmp_path / "none").run, "evaluation") == []
    with pytest.raises(Failure) as caught:
        train(scored(), tmp_path / "zero", "evaluate.every={steps: 0}")
    assert caught.value.outcome.code == Exit.BAD_RECIPE


def test_4_data_smaller_than_a_batch_are_taken_again_and_fewer_than_lanes_refused(tmp_path):
    small = recipe(data={"train": {"sources": [{"kind": "adversarial:Ring", "size": 5}]}})
    run = train(small, tmp_path / "run").run
    assert [step["counts"]["samples"] for step in made(run)] == [16] * 12
    with pytest.raises(Failure, match="3 samples, fewer than 4 lanes") as caught:
        train(small, tmp_path / "few", "data.train.sources[0].size=3")
    assert caught.value.outcome.code == Exit.BAD_RECIPE


def test_5_9_a_resume_at_or_past_the_end_makes_no_step_and_the_last_one_is_committed_once(tmp_path):
    run = train(recipe(checkpoint={"every": {"steps": 4}}), tmp_path / "run").run
    before = trace(run)
    assert train(recipe(checkpoint={"every": {"steps": 4}}), run).step == 12
    past = train(recipe(checkpoint={"every": {"steps": 4}}), run, "budget.steps=8", override=["budget"])
    assert (past.step, past.stopped) == (12, False)
    assert trace(run) == before
    assert [record["step"] for record in made(run, "commit")] == [4, 8, 12]


def test_6_nan_in_every_step_ends_after_a_few(tmp_path):
    task = {"kind": "adversarial:Gan", "bad": {"generator": list(range(512))}}
    with pytest.raises(Failure, match="in a row") as caught:
        train(recipe(task=task, guard={"nonfinite": "skip", "in_a_row": 2}, networks={}), tmp_path / "run")
    assert (caught.value.outcome.code, caught.value.outcome.where["step"]) == (Exit.DIVERGED, 3)


@pytest.mark.parametrize("network", ["generator", "discriminator"])
@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_7_8_nan_of_one_network_on_one_rank_is_the_same_on_both(tmp_path, network, policy):
    """The sample is the second rank's. Where it is left out the other network has moved, on both ranks."""
    bad = sample_of(6, 13)
    wanted = recipe(task={"kind": "adversarial:Gan", "bad": {network: [bad]}}, checkpoint={"every": {"steps": 1}})
    wanted |= {"guard": {"nonfinite": policy, "replicas": {"steps": 1}}}  # ranks that differ would end with 83
    wanted["launch"]["processes"] = 2
    outcome = run_under_supervisor(wanted, tmp_path / "run")
    if policy == "stop":
        assert (outcome.code, outcome.where["step"], outcome.where["rank"]) == (Exit.DIVERGED, 6, 1)
        assert bad in outcome.where["sample_ids"]
        assert newest(tmp_path / "run").step == 5
        return
    assert outcome.code == Exit.DONE
    steps = made(tmp_path / "run")
    assert {step["step"]: step["skipped"] for step in steps if "skipped" in step} == {6: {network: "not finite"}}
    moves = {"generator": 7, "discriminator": 10}
    assert newest(tmp_path / "run").state.values["moves"] == moves | {network: moves[network] - 1}


def test_10_others_wait_for_a_rank_that_evaluates_slowly(tmp_path):
    wanted = scored(task={"kind": "adversarial:Gan", "trap": "slow"}, evaluate={"batch": 12})
    outcome = run_under_supervisor(wanted, tmp_path / "run", "launch.processes=2", "launch.hang_after=2")
    assert outcome.code == Exit.DONE
    assert made(tmp_path / "run", "evaluation")[0]["counts"] == {"ring": 24}
    assert len(made(tmp_path / "run", "attempt")) == 1


def test_11_an_exception_in_what_only_the_leader_does_ends_both_ranks_with_its_words(tmp_path):
    wanted = scored(task={"kind": "adversarial:Gan", "trap": "show"})
    outcome = run_under_supervisor(wanted, tmp_path / "run", "launch.processes=2")
    assert outcome.code == Exit.INTERNAL
    assert "only the leader shows" in outcome.cause
    assert newest(tmp_path / "run").step == 12


# Both networks are one state.


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


@pytest.mark.parametrize("phase", ["optimizer", "write", "publish"])
def test_killed_while_it_trains_it_goes_on_with_both_networks_of_one_step(tmp_path, phase):
    """`optimizer`: between the generator's move and the discriminator's."""
    wanted = recipe(launch={"threads": 1, "restarts": 3})
    straight = reference(wanted, tmp_path / "straight")
    fault = Fault("kill", 0, phase, 10, after=1 if phase == "optimizer" else 0)
    found = drill(wanted, tmp_path / "run", fault)
    assert found.starts == 2
    assert found.trace == straight
