"""What the ledger is told about the processes of a run, and when garbage is collected."""

import gc
import json
import sys
import textwrap
import time

import pytest

import drivetrain
from conftest import trace
from drivetrain.ledger import telemetry
from drivetrain.ledger.ledger import read
from drivetrain.runtime.heartbeat import PHASES, Heartbeat
from records import evaluation, parsed

WATCHED = """
    import gc, time
    import torch
    from torch import nn
    import drivetrain

    class Numbers:
        def __len__(self):
            return 40
        def __getitem__(self, i):
            return torch.tensor(float(i))

    class Task(drivetrain.Task):
        enabled = []
        def __init__(self, slow: int = -1):
            self.slow = slow
        def networks(self):
            return {"model": nn.Linear(1, 1)}
        def loss(self, nets, batch):
            Task.enabled.append(gc.isenabled())
            if torch.distributed.is_initialized() and torch.distributed.get_rank() == self.slow:
                time.sleep(0.02)
            return nets["model"](batch[:, None]).square().mean()
"""


@pytest.fixture
def recipe(tmp_path):
    name = f"watched_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(WATCHED))
    return {
        "name": "watched",
        "task": {"kind": f"{name}:Task"},
        "data": {"train": {"sources": [{"kind": f"{name}:Numbers"}]}},
        "lanes": 4,
        "batch": {"size": 8},
        "budget": {"steps": 12},
        "launch": {"threads": 1},
    }


def train(recipe, tmp_path, *overrides, run="run"):
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(recipe))
    return drivetrain.train(path, overrides, run=tmp_path / run, progress=False).run


def told(run):
    return [record for record in read(run / "ledger.jsonl") if record["kind"] == "telemetry"]


def test_telemetry_is_told_at_its_steps_and_for_the_rest_at_the_end(tiny, tmp_path):
    tiny["data"]["validation"] = {}
    run = drivetrain.train(tiny, ["telemetry.every.steps=5"], run=tmp_path / "run", progress=False).run
    assert [(record["step"], record["steps"]) for record in told(run)] == [(5, 5), (10, 5), (12, 2)]
    for record in told(run):
        assert 1 << 20 < record["host"]["resident"] <= record["host"]["peak"]
        assert record["device"] == {} or record["device"]["peak"] > 0
        assert {"data", "forward", "backward", "optimizer", "pulse"} <= set(record["phases"])
    steps = [record for record in read(run / "ledger.jsonl") if record["kind"] == "step"]
    made = sum(record["seconds"] + record["wait"] for record in steps)
    spent = telemetry.phases(told(run))
    assert spent["forward"] + spent["backward"] < made
    assert telemetry.covered(told(run)) == 12
    assert telemetry.peaks(told(run))["host"] == max(record["host"]["peak"] for record in told(run))


def test_telemetry_that_is_off_is_not_told_and_changes_no_bit(tiny, tmp_path):
    for name, every in (("on", "{steps: 1}"), ("off", "null")):
        drivetrain.train(tiny, [f"telemetry.every={every}"], run=tmp_path / name, progress=False)
    assert len(told(tmp_path / "on")) == 12
    assert not told(tmp_path / "off")
    assert trace(tmp_path / "on") == trace(tmp_path / "off")


def test_telemetry_goes_on_after_a_stop(tiny, tmp_path):
    for stop in ("[7]", "[]"):
        drivetrain.train(tiny, ["telemetry.every.steps=5", f"stop.at={stop}"], run=tmp_path / "run", progress=False)
    stretches = [(record["step"], record["steps"]) for record in told(tmp_path / "run")]
    assert stretches == [(5, 5), (7, 2), (10, 3), (12, 2)]


@pytest.mark.parametrize("slow", [0, 1])
def test_the_rank_with_the_most_work_is_named(recipe, tmp_path, slow):
    recipe["task"]["slow"] = slow
    run = train(recipe, tmp_path, "launch.processes=2", "telemetry.every.steps=6")
    for record in told(run):
        own = record["ranks"]["own_seconds"]
        assert own["rank"] == slow
        assert own["most"] > 0.02 > own["least"]
    assert telemetry.slowest(told(run)) == {slow: 2}


def test_garbage_is_collected_at_the_recipes_steps_only_and_as_before_afterwards(recipe, tmp_path):
    name, collected_after = recipe["task"]["kind"].partition(":")[0], []

    def note(phase, _):
        if phase == "stop" and not gc.isenabled():
            collected_after.append(len(sys.modules[name].Task.enabled))

    gc.enable()
    gc.callbacks.append(note)
    try:
        train(recipe, tmp_path, "telemetry.gc.steps=5")
    finally:
        gc.callbacks.remove(note)
    task = sys.modules[name].Task
    assert task.enabled == [False] * 12
    assert collected_after == [5, 10]
    assert gc.isenabled()
    task.enabled.clear()
    train(recipe, tmp_path, run="by_itself")
    assert task.enabled == [True] * 12


def test_a_collector_that_was_off_stays_off(recipe, tmp_path):
    gc.disable()
    try:
        train(recipe, tmp_path, "telemetry.gc.steps=5")
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_every_moment_belongs_to_one_phase():
    heartbeat = Heartbeat()
    began = time.perf_counter()
    heartbeat.spent()
    for phase in PHASES * 3:
        heartbeat.enter(phase)
        time.sleep(0.0005)
    spent = heartbeat.spent()
    assert set(spent) == set(PHASES)
    assert sum(spent.values()) == pytest.approx(time.perf_counter() - began, rel=0.05, abs=1e-3)
    assert sum(heartbeat.spent().values()) < 0.01


def test_points_of_telemetry_and_of_test_sets_reach_the_trackers_once():
    from drivetrain.watch.trackers import Mark

    record = {
        "kind": "telemetry",
        "chain": "c",
        "time": 1.0,
        "step": 10,
        "steps": 5,
        "world": 2,
        "phases": {"forward": 0.5},
        "host": {"resident": 1, "peak": 2},
        "device": {},
        "ranks": {"own_seconds": {"least": 0.1, "most": 0.2, "rank": 1}},
    }

    def after(mark, record):
        (known,) = parsed([record])
        return mark.after(json.dumps(record).encode() + b"\n", known)

    mark, row = after(Mark("run", "there"), record)
    assert dict(row.values) == {
        "memory/host_resident": 1.0,
        "memory/host_peak": 2.0,
        "phase/forward": 0.1,
        "ranks/least_seconds": 0.1,
        "ranks/most_seconds": 0.2,
        "ranks/slowest": 1.0,
    }
    mark, again = after(mark, record)
    assert again is None
    final = evaluation(10, 2.0, "held", "loss") | {"kind": "final", "part": "test"}
    mark, row = after(mark, final)
    assert dict(row.values) == {"test/held/loss": 2.0}
    mark, again = after(mark, final)
    assert again is None
    mark, more = after(mark, {**final, "part": "validation"})
    assert dict(more.values) == {"validation/held/loss": 2.0}
