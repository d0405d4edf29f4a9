"""What becomes of steps that are not finite, stand out, or are not wanted. N01-N03, Megatron's defects 11 and 16."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import adversarial
from conftest import run_under_supervisor, trace
from drivetrain.checkpoint.commits import newest
from drivetrain.data.order import Order
from drivetrain.engine.step_result import Scalars
from drivetrain.ledger.derive import lineage, samples_used
from drivetrain.ledger.ledger import read
from drivetrain.loop.guard import Guard, GuardState, limit
from drivetrain.loop.recipe import Guard as Settings
from drivetrain.loop.recipe import Spike
from drivetrain.run.finished import evaluate_run
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load

pytestmark = pytest.mark.usefixtures("importable")

BATCH = 8


def recipe(**changes) -> dict:
    base = {
        "name": "guarded",
        "task": {"kind": "guarded:Fit"},
        "data": {"train": {"sources": [{"kind": "guarded:Rows"}]}},
        "lanes": 4,
        "batch": {"size": BATCH, "micro": 2},
        "budget": {"steps": 20},
        "optimizer": {"kind": "adamw", "lr": 0.01, "clip": 1.0},
        "checkpoint": {"every": {"steps": 5}},
        "launch": {"threads": 1},
    }
    return base | changes


def sample_of(step: int, place: int = 1) -> int:
    """The sample at a place within a step."""
    return int(Order(240, 0, True).ids((step - 1) * BATCH + place, (step - 1) * BATCH + place + 1)[0])


def made(run):
    return {r["step"]: r for r in lineage(read(run / "ledger.jsonl")) if r["kind"] == "step"}


@pytest.mark.parametrize(("how", "name"), [("nan", "n01"), ("inf", "n02")])
@pytest.mark.parametrize("processes", [1, 2])
def test_n01_n02_a_step_that_is_not_finite_is_left_out_on_all_ranks_and_recorded(tmp_path, how, name, processes):
    """One rank's sample goes wrong; no rank moves, batch statistics neither, and training goes on."""
    wanted = recipe(guard={"nonfinite": "skip"}, task={"kind": "guarded:Fit", how: [sample_of(7)]})
    wanted["launch"]["processes"] = processes
    assert run_under_supervisor(wanted, tmp_path / "run").code == Exit.DONE
    found = made(tmp_path / "run")
    assert {step: r["skipped"] for step, r in found.items() if "skipped" in r} == {7: {"model": "not finite"}}
    assert all(math.isfinite(float(found[step]["losses"]["loss"])) for step in found if step != 7)
    # The same as a run that was told to leave out step 7, but for what the ledger says about it.
    told = recipe(guard={"skip": [7]})
    told["launch"]["processes"] = processes
    run_under_supervisor(told, tmp_path / "told")
    other = made(tmp_path / "told")
    assert other[7]["skipped"] == {"model": "listed"}
    assert all(other[step]["losses"] == found[step]["losses"] for step in found if step != 7)


@pytest.mark.parametrize(
    ("settings", "said"), [({"in_a_row": 2}, "in a row"), ({"in_a_row": 9, "in_all": 2}, "in_all")]
)
def test_n01_skips_are_bounded(tmp_path, settings, said):
    bad = [sample_of(step) for step in ((4, 5, 6) if "row" in said else (4, 6, 8))]
    task = {"kind": "guarded:Fit", "nan": bad}
    outcome = run_under_supervisor(recipe(task=task, guard={"nonfinite": "skip", **settings}), tmp_path / "run")
    assert outcome.code == Exit.DIVERGED
    assert said in outcome.cause
    assert outcome.where["step"] == (6 if "row" in said else 8)


def test_the_bound_on_skips_survives_a_stop(tmp_path):
    task = {"kind": "guarded:Fit", "nan": [sample_of(step) for step in (4, 5, 6)]}
    wanted = recipe(task=task, guard={"nonfinite": "skip", "in_a_row": 2})
    assert run_under_supervisor(wanted, tmp_path / "run", most_steps=5).code == Exit.STOPPED
    assert run_under_supervisor(wanted, tmp_path / "run").code == Exit.DIVERGED


def test_megatron_11_a_loss_that_is_not_finite_is_told(tmp_path):
    task = {"kind": "guarded:Fit", "nan": [sample_of(3)]}
    run_under_supervisor(recipe(task=task, guard={"nonfinite": "skip"}), tmp_path / "run")
    assert made(tmp_path / "run")[3]["losses"] == {"loss": "nan"}


def test_megatron_16_a_step_that_is_left_out_is_committed_evaluated_and_stopped_at(tmp_path):
    wanted = recipe(guard={"skip": ["9-11"]}, stop={"at": [10]}, checkpoint={"every": {"steps": 5}})
    wanted["data"]["validation"] = {"same": {"kind": "guarded:Rows"}}
    wanted["evaluate"] = {"every": {"steps": 5}}
    outcome = run_under_supervisor(wanted, tmp_path / "run")
    assert (outcome.code, outcome.where["step"]) == (Exit.STOPPED, 10)
    records = list(read(tmp_path / "run" / "ledger.jsonl"))
    assert [r["step"] for r in records if r["kind"] == "commit"] == [5, 10]
    assert [r["step"] for r in records if r["kind"] == "evaluation"] == [5, 10]
    assert run_under_supervisor(wanted, tmp_path / "run").code == Exit.DONE
    found = made(tmp_path / "run")
    assert [step for step in found if "skipped" in found[step]] == [9, 10, 11]
    assert sum(stop - start for _, start, stop, _ in samples_used(found.values())) == 20 * BATCH


def spiking(action: str, **more) -> dict:
    task = {"kind": "guarded:Fit", "spike": [sample_of(12)]}
    return recipe(task=task, guard={"spike": {"window": 8, "deviations": 50.0, "action": action}, **more})


@pytest.mark.parametrize("processes", [1, 2])
def test_n03_a_spike_is_left_out_and_the_window_survives_a_stop(tmp_path, processes):
    wanted = spiking("skip")
    wanted["launch"]["processes"] = processes
    assert run_under_supervisor(wanted, tmp_path / "straight").code == Exit.DONE
    found = made(tmp_path / "straight")
    assert {step: r["skipped"] for step, r in found.items() if "skipped" in r} == {12: {"model": "spike"}}
    for steps in (11, None):
        run_under_supervisor(wanted, tmp_path / "stopped", most_steps=steps)
    assert trace(tmp_path / "stopped") == trace(tmp_path / "straight")


def test_n03_a_spike_is_noted_by_default(tmp_path):
    assert run_under_supervisor(spiking("note"), tmp_path / "run").code == Exit.DONE
    (told,) = [r for r in read(tmp_path / "run" / "ledger.jsonl") if r["kind"] == "spike"]
    assert told["step"] == 12
    assert "loss/loss" in told["text"]
    assert not any("skipped" in r for r in made(tmp_path / "run").values())


def test_n03_a_spike_may_end_the_run(tmp_path):
    outcome = run_under_supervisor(spiking("stop"), tmp_path / "run")
    assert (outcome.code, outcome.where["step"]) == (Exit.DIVERGED, 12)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=60), st.floats(1, 20))
def test_no_value_near_the_median_is_a_spike(values, deviations):
    bound = limit(values, deviations)
    below = sum(value <= bound for value in values)
    assert below >= len(values) / 2


@given(st.lists(st.floats(1, 2), min_size=10, max_size=60), st.integers(0, 4))
def test_a_few_spikes_do_not_hide_the_next(values, spikes):
    bound = limit(values + [1e6] * spikes, 10.0)
    assert bound < 100


def test_a_window_is_the_same_after_json():
    guard = Guard(Settings(spike=Spike(window=4, action="skip")))
    for step in range(1, 12):
        guard.judge(step, 0, Scalars({"loss": 1.0 + step / 7}, {"model": 0.3 * step}))
    again = Guard(guard.settings, GuardState.from_json(json.loads(json.dumps(guard.state.to_json()))))
    assert again.limits(12, 0) == guard.limits(12, 0) != {}
    assert again.state == guard.state


def test_a_step_is_not_judged_by_the_one_before_it():
    """On an accelerator that one's numbers may be on their way, or not: both must come to the same."""
    settings = Settings(spike=Spike(window=4, action="skip"))
    early, late = Guard(settings), Guard(settings)
    for step in range(1, 9):
        early.judge(step, 0, Scalars({"loss": float(step)}, {}))
        if step < 8:
            late.judge(step, 0, Scalars({"loss": float(step)}, {}))
    assert early.limits(9, 0) == late.limits(9, 0)


def with_set(**changes) -> dict:
    base = recipe(**changes)
    base["data"]["validation"] = {"rows": {"kind": "guarded:Rows"}}
    return base | {"evaluate": {"every": {"steps": 4}, "batch": 30}}


def evaluated(run):
    return [(r["step"], r["metrics"]) for r in lineage(read(run / "ledger.jsonl")) if r["kind"] == "evaluation"]


@pytest.mark.parametrize("task", ["Two", "Plain"])
def test_buffers_that_change_late_or_are_replaced_are_the_same_after_a_stop(tmp_path, task):
    wanted = with_set(task={"kind": f"guarded:{task}"})
    wanted["launch"]["processes"] = 2
    assert run_under_supervisor(wanted, tmp_path / "straight").code == Exit.DONE
    for steps in (1, 4, None):
        run_under_supervisor(wanted, tmp_path / "stopped", most_steps=steps)
    assert trace(tmp_path / "stopped") == trace(tmp_path / "straight")
    assert evaluated(tmp_path / "stopped") == evaluated(tmp_path / "straight")
    (_, told) = evaluated(tmp_path / "straight")[-1]
    alone = evaluate_run(tmp_path / "straight", None).metrics["rows"]["loss"]
    assert told["rows"]["loss"] == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize("task", ["Two", "Plain"])
@pytest.mark.parametrize("processes", [1, 2])
def test_what_a_step_that_is_left_out_did_to_them_is_undone(tmp_path, task, processes):
    wanted = with_set(task={"kind": f"guarded:{task}", "nan": [sample_of(6)]}, guard={"nonfinite": "skip"})
    wanted["launch"]["processes"] = processes
    assert run_under_supervisor(wanted, tmp_path / "run").code == Exit.DONE
    assert all(tensor.isfinite().all() for tensor in newest(tmp_path / "run").state.tensors.values())
    assert math.isfinite(evaluated(tmp_path / "run")[-1][1]["rows"]["loss"])


def test_a_step_on_the_list_does_not_begin_the_count_anew(tmp_path):
    task = {"kind": "guarded:Fit", "nan": [sample_of(step) for step in (4, 5, 7)]}
    wanted = recipe(task=task, guard={"nonfinite": "skip", "in_a_row": 2, "skip": [6]})
    outcome = run_under_supervisor(wanted, tmp_path / "run")
    assert (outcome.code, outcome.where["step"]) == (Exit.DIVERGED, 7)


def test_a_stretch_of_steps_may_be_long():
    assert load(recipe(), ["guard.skip=['30-30000000000']"]).recipe.guard.listed == [(30, 30000000000)]


def test_trainloop_6_nan_in_every_step_ends_after_a_few(tmp_path):
    task = {"kind": "adversarial:Gan", "bad": {"generator": list(range(512))}}
    with pytest.raises(Failure, match="in a row") as caught:
        adversarial.train(
            adversarial.recipe(task=task, guard={"nonfinite": "skip", "in_a_row": 2}, networks={}), tmp_path / "run"
        )
    assert (caught.value.outcome.code, caught.value.outcome.where["step"]) == (Exit.DIVERGED, 3)


@pytest.mark.parametrize("network", ["generator", "discriminator"])
@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_trainloop_7_8_nan_of_one_network_on_one_rank_is_the_same_on_both(tmp_path, network, policy):
    """The sample is the second rank's. Where it is left out the other network has moved, on both ranks."""
    bad = adversarial.sample_of(6, 13)
    wanted = adversarial.recipe(
        task={"kind": "adversarial:Gan", "bad": {network: [bad]}}, checkpoint={"every": {"steps": 1}}
    )
    wanted |= {"guard": {"nonfinite": policy, "replicas": {"steps": 1}}}  # ranks that differ would end with 83
    wanted["launch"]["processes"] = 2
    outcome = run_under_supervisor(wanted, tmp_path / "run")
    if policy == "stop":
        assert (outcome.code, outcome.where["step"], outcome.where["rank"]) == (Exit.DIVERGED, 6, 1)
        assert bad in outcome.where["sample_ids"]
        assert newest(tmp_path / "run").step == 5
        return
    assert outcome.code == Exit.DONE
    steps = adversarial.made(tmp_path / "run")
    assert {step["step"]: step["skipped"] for step in steps if "skipped" in step} == {6: {network: "not finite"}}
    moves = {"generator": 7, "discriminator": 10}
    assert newest(tmp_path / "run").state.values["moves"] == moves | {network: moves[network] - 1}
