"""Validation sets, test sets and budgets of samples: what is scored, how often, and what may follow from it."""

import json
import math
import sys
import textwrap
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import adversarial
import drivetrain
from conftest import run_under_supervisor, trace
from drivetrain import Exit, Failure
from drivetrain.checkpoint.commits import newest
from drivetrain.ledger.ledger import read
from drivetrain.ledger.run_summary import summarize
from drivetrain.loop.evaluation import ValidationSet, _blocks
from drivetrain.run.finished import evaluate_run
from drivetrain.runtime.group import Group
from drivetrain.spec.load import load
from drivetrain.watch.report import summary
from loop.test_guard import evaluated, with_set
from records import of_kind

NUMBERS = """
    import math, os, signal, time
    import torch
    from torch import nn
    import drivetrain

    class Numbers:
        '''Samples that say which they are.'''
        def __init__(self, size: int = 40):
            self.size = size
        def __len__(self):
            return self.size
        def __getitem__(self, i):
            return torch.tensor(float(i))

    class Marks:
        '''Adds 2^i for sample i: the sum tells which samples were scored, and that none was twice.'''
        def __init__(self):
            self.sum = 0.0
        def add(self, ids):
            self.sum += sum(2.0 ** int(i) for i in ids)
        def state(self):
            return [self.sum]
        def merge(self, state):
            self.sum += state[0]
        def value(self):
            return self.sum

    class Task(drivetrain.Task):
        nan_at, stop_at, until = (), 0, 0.0
        def __init__(self, nan_at: list = (), stop_at: int = 0, until: float = 0.0):
            self.nan_at, self.stop_at, self.until, self.calls = nan_at, stop_at, until, 0
        def networks(self):
            Task.network = nn.Linear(1, 1)
            return {"model": Task.network}
        def loss(self, nets, batch):
            return (nets["model"](batch[:, None])[:, 0] / 40 - 1).square().mean()
        def metrics(self):
            return {"loss": drivetrain.Mean(), "marks": Marks()}
        def evaluate(self, nets, batch, metrics):
            self.calls += 1
            metrics["marks"].add(batch)
            loss = float(self.loss(nets, batch))
            metrics["loss"].add(math.nan if self.calls in self.nan_at else loss * len(batch), len(batch))
            if self.calls == self.stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(max(0.0, self.until - time.time()))
"""


@pytest.fixture
def recipe(tmp_path):
    """A recipe over `NUMBERS`: a validation set of 40 samples, six steps."""
    name = f"numbers_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(NUMBERS))
    return {
        "name": "numbers",
        "task": {"kind": f"{name}:Task"},
        "data": {
            "train": {"sources": [{"kind": f"{name}:Numbers"}]},
            "validation": {"same": {"kind": f"{name}:Numbers"}},
        },
        "lanes": 4,
        "batch": {"size": 8},
        "budget": {"steps": 6},
        "optimizer": {"lr": 1e-2},
        "evaluate": {"batch": 64},
        "launch": {"threads": 1},
    }


def sets(recipe, **sizes):
    kind = recipe["data"]["train"]["sources"][0]["kind"]
    return {name: {"kind": kind, "size": size} for name, size in sizes.items()}


def train(recipe, tmp_path, *overrides, run="run", **options):
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(recipe))
    return drivetrain.train(path, overrides, run=tmp_path / run, progress=False, **options)


def everything(size):
    return 2.0**size - 1


def test_megatron_1_one_validation_set_is_scored_in_part_and_at_the_end_whole(recipe, tmp_path):
    run = train(recipe, tmp_path, "evaluate.budget.samples=5", "evaluate.every.steps=3").run
    assert [record["counts"] for record in of_kind(run, "evaluation")] == [{"same": 5}, {"same": 5}]
    assert {record["metrics"]["same"]["marks"] for record in of_kind(run, "evaluation")} == {everything(5)}
    (final,) = of_kind(run, "final")
    assert (final["part"], final["counts"]) == ("validation", {"same": 40})
    assert final["metrics"]["same"]["marks"] == everything(40)


def test_an_evaluation_on_a_budget_of_tokens_scores_as_many_samples_as_hold_them(tiny, tmp_path):
    run = train(tiny, tmp_path, "evaluate.budget.tokens=100", "evaluate.every=null", "budget.steps=3").run
    assert [record["counts"] for record in of_kind(run, "evaluation")] == [{"dogs": 7}]  # of 16 tokens each


@pytest.mark.parametrize(("task", "budget"), [("rows", {"tokens": 9}), ("rows", {"steps": 9}), ("tiny", {"epochs": 1})])
def test_a_budget_in_a_unit_that_a_set_has_not_is_78(recipe, tiny, task, budget):
    chosen = {"rows": recipe, "tiny": tiny}[task]
    with pytest.raises(Failure) as found:
        load(chosen | {"evaluate": {"budget": budget}})
    assert found.value.outcome.code == Exit.BAD_RECIPE


def test_the_whole_set_is_not_scored_at_the_end_where_nobody_asks_for_it(recipe, tmp_path):
    run = train(recipe, tmp_path, "evaluate.budget.samples=5", "evaluate.full_at_end=false").run
    assert not of_kind(run, "final")
    run = train(recipe, tmp_path, "evaluate.budget.samples=40", run="no_part").run
    assert not of_kind(run, "final")


@pytest.mark.parametrize("processes", [2, 4])
def test_megatron_2_every_sample_is_scored_once_also_in_sets_smaller_than_the_processes(recipe, tmp_path, processes):
    recipe["data"]["validation"] = sets(recipe, one=1, two=2, three=3, ten=10)
    recipe["data"]["test"] = sets(recipe, tiny=1, five=5)
    recipe["evaluate"] = {"batch": 1}
    run = train(recipe, tmp_path, "budget.steps=1", f"launch.processes={processes}").run
    for kind, sizes in (
        ("evaluation", {"one": 1, "two": 2, "three": 3, "ten": 10}),
        ("final", {"tiny": 1, "five": 5}),
    ):
        (record,) = of_kind(run, kind)
        assert record["counts"] == sizes
        assert {name: metrics["marks"] for name, metrics in record["metrics"].items()} == {
            name: everything(size) for name, size in sizes.items()
        }


def test_megatron_3_a_test_set_is_called_test_and_scored_once(recipe, tmp_path, capsys):
    from rich.console import Console

    from drivetrain.watch.report import show

    recipe["data"]["test"] = sets(recipe, held=7)
    result = train(recipe, tmp_path, "evaluate.every.steps=2")
    assert result.test["held"]["marks"] == everything(7)
    assert all(set(record["metrics"]) == {"same"} for record in of_kind(result.run, "evaluation"))
    train(recipe, tmp_path)
    (final,) = of_kind(result.run, "final")
    assert (final["part"], final["step"], final["counts"]) == ("test", 6, {"held": 7})
    told = summary(result.run, summarize(read(result.run / "ledger.jsonl")))
    assert told["final"]["test.held.marks"] == everything(7)
    assert not any("held" in name for name in told["metrics"])
    show(Console(width=120), result.run, summarize(read(result.run / "ledger.jsonl")))
    assert any("held" in line and "test" in line for line in capsys.readouterr().out.splitlines())


def test_a_test_set_changes_no_bit_and_may_be_added_to_a_run_that_is_done(recipe, tmp_path):
    without = train(recipe, tmp_path, run="without")
    recipe["data"]["test"] = sets(recipe, held=7)
    run = train(recipe, tmp_path).run
    assert trace(run) == trace(without.run)
    recipe["data"]["test"] |= sets(recipe, more=3)
    train(recipe, tmp_path)
    assert [set(record["metrics"]) for record in of_kind(run, "final")] == [{"held"}, {"more"}]
    assert len(of_kind(run, "evaluation")) == 1


def test_test_sets_are_scored_after_an_early_stop_and_not_after_a_stop(recipe, tmp_path):
    recipe["data"]["test"] = sets(recipe, held=7)
    run = train(recipe, tmp_path, "stop.at=[3]").run
    assert not of_kind(run, "final")
    patience = "stop.patience={metric: same/loss, evaluations: 1, change: 100}"
    result = train(recipe, tmp_path, "evaluate.every.steps=1", patience)
    assert not result.stopped
    assert result.step < 6
    (final,) = of_kind(run, "final")
    assert final["step"] == result.step


def test_a_stop_while_test_sets_are_scored_leaves_them_to_the_resumed_run(recipe, tmp_path):
    recipe["data"]["test"] = sets(recipe, held=7)
    straight = train(recipe, tmp_path, run="straight").run
    # The first call scores the validation set, the second the test set.
    recipe["task"]["stop_at"] = 2
    result = train(recipe, tmp_path, "evaluate.every=null")
    assert result.stopped
    assert not of_kind(result.run, "final")
    assert len(list((result.run / "checkpoints").glob("step-00000006"))) == 1
    recipe["task"]["stop_at"] = 0
    result = train(recipe, tmp_path, override=["task"])
    assert not result.stopped
    assert len(of_kind(result.run, "final")) == 1
    assert len(of_kind(result.run, "evaluation")) == 1
    assert trace(result.run).losses == trace(straight).losses


def test_scores_of_test_sets_choose_nothing(recipe, tmp_path):
    recipe["data"]["test"] = sets(recipe, held=7)
    for key in ("checkpoint.keep_best", "stop.patience"):
        with pytest.raises(Failure) as caught:
            train(recipe, tmp_path, f"{key}={{metric: held/loss}}")
        assert caught.value.outcome.code == Exit.BAD_RECIPE
    recipe["data"]["test"] = sets(recipe, same=7)
    with pytest.raises(Failure) as caught:
        train(recipe, tmp_path)
    assert "a validation set has this name" in caught.value.details


def test_megatron_5_no_interval_of_evaluations_and_no_set_are_no_errors(recipe, tmp_path):
    run = train(recipe, tmp_path, "evaluate.every=null").run
    assert [record["step"] for record in of_kind(run, "evaluation")] == [6]
    run = train(recipe, tmp_path, "data.validation={}", "evaluate.every.steps=2", run="none").run
    assert not of_kind(run, "evaluation")


def test_megatron_14_a_deadline_within_an_evaluation_ends_with_a_commit_and_networks_in_training_mode(recipe, tmp_path):
    seconds = 5.0
    recipe["task"]["until"] = time.time() + seconds + 0.2
    result = train(recipe, tmp_path, f"stop.deadline={seconds}", "evaluate.every.steps=2")
    assert result.stopped
    assert result.step == 2
    assert not of_kind(result.run, "evaluation")
    assert (result.run / "checkpoints" / "step-00000002").is_dir()
    assert sys.modules[recipe["task"]["kind"].partition(":")[0]].Task.network.training
    recipe["task"]["until"] = 0.0
    straight = train(recipe, tmp_path, run="straight").run
    train(recipe, tmp_path, "evaluate.every.steps=2", override=["task"])
    assert [record["step"] for record in of_kind(result.run, "evaluation")] == [2, 4, 6]
    assert trace(result.run).losses == trace(straight).losses


def test_n09_an_evaluation_that_gives_nan_is_kept_goes_on_and_is_never_best(recipe, tmp_path):
    recipe["checkpoint"] = {"every": {"steps": 2}, "keep": 1, "keep_best": {"metric": "same/loss"}}
    recipe["task"]["nan_at"] = [3]
    run = train(recipe, tmp_path, "evaluate.every.steps=2", "budget.steps=6").run
    values = [record["metrics"]["same"]["loss"] for record in of_kind(run, "evaluation")]
    assert values[2] == "nan"
    assert math.isfinite(values[1])
    assert values[1] < values[0]
    assert sorted(path.name for path in (run / "checkpoints").glob("step-*")) == ["step-00000004", "step-00000006"]


def test_a_run_is_scored_from_outside_by_name_by_kind_and_on_a_budget(recipe, tmp_path):
    recipe["data"]["test"] = sets(recipe, held=7)
    run = train(recipe, tmp_path, "checkpoint.every.steps=3").run
    last = of_kind(run, "final")[0]["metrics"]["held"]
    assert drivetrain.evaluate(run, "held").metrics["held"] == pytest.approx(last)
    assert drivetrain.evaluate(run, "held", commit="3").metrics["held"]["loss"] != pytest.approx(last["loss"])
    assert drivetrain.evaluate(run).counts == {"same": 40}
    assert drivetrain.evaluate(run, "test").counts == {"held": 7}
    assert drivetrain.evaluate(run, "all", samples=9).counts == {"same": 9, "held": 7}
    with pytest.raises(Failure) as caught:
        drivetrain.evaluate(run, "nowhere")
    assert caught.value.outcome.code == Exit.INPUT_MISSING
    assert "same, held" in caught.value.outcome.hint


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.none() | st.integers(1, 70))
def test_blocks_hold_each_sample_once_and_every_rank_has_as_many(size, batch, world, own, most):
    chosen = ValidationSet("any", range(size), batch, most, lanes=own * world)
    dealt = [list(_blocks(chosen, Group(rank, world))) for rank in range(world)]
    assert len({len(blocks) for blocks in dealt}) == 1
    lane_of = {block: rank * own + place % own for rank in range(world) for place, (block, _) in enumerate(dealt[rank])}
    assert all(lane == block % (own * world) for block, lane in lane_of.items())
    blocks = [[ids for _, ids in blocks] for blocks in dealt]
    assert sorted(int(i) for own in blocks for ids in own for i in ids) == list(range(min(size, most or size)))
    assert all(len(ids) <= batch for own in blocks for ids in own)


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize("section", ["stop.patience", "checkpoint.keep_best"])
def test_a_metric_that_the_task_does_not_have_is_78(tmp_path, section):
    outcome = run_under_supervisor(with_set(), tmp_path / "run", f"{section}={{metric: rows/lossy}}")
    assert outcome.code == Exit.BAD_RECIPE
    assert "lossy" in outcome.cause
    assert "loss" in outcome.hint


@pytest.mark.usefixtures("importable")
def test_the_best_evaluation_has_a_commit_whenever_commits_are_due(tmp_path):
    wanted = with_set(checkpoint={"every": {"steps": 7}, "keep": 1, "keep_best": {"metric": "rows/loss"}})
    assert run_under_supervisor(wanted, tmp_path / "run").code == Exit.DONE
    scores = {step: metrics["rows"]["loss"] for step, metrics in evaluated(tmp_path / "run")}
    best = min(scores, key=scores.get)
    there = {int(path.name[5:]) for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert best in there
    assert max(scores) in there


def test_scores_of_data_that_have_changed_are_refused(tiny, corpus, tmp_path):
    run_under_supervisor(tiny, tmp_path / "run")
    (corpus / "3.txt").write_text("something else\n" * 400)
    with pytest.raises(Failure) as caught:
        evaluate_run(tmp_path / "run", None)
    assert caught.value.outcome.code == Exit.INCOMPATIBLE


@pytest.mark.usefixtures("importable")
def test_trainloop_3_no_interval_of_evaluations_is_one_at_the_end_and_no_set_is_none(tmp_path):
    run = adversarial.train(adversarial.scored(), tmp_path / "run", "evaluate.every=null").run
    assert [record["step"] for record in adversarial.made(run, "evaluation")] == [12]
    assert adversarial.made(adversarial.train(adversarial.recipe(), tmp_path / "none").run, "evaluation") == []
    with pytest.raises(Failure) as caught:
        adversarial.train(adversarial.scored(), tmp_path / "zero", "evaluate.every={steps: 0}")
    assert caught.value.outcome.code == Exit.BAD_RECIPE


@pytest.mark.usefixtures("importable")
def test_trainloop_10_others_wait_for_a_rank_that_evaluates_slowly(tmp_path):
    wanted = adversarial.scored(task={"kind": "adversarial:Gan", "trap": "slow"}, evaluate={"batch": 12})
    outcome = run_under_supervisor(wanted, tmp_path / "run", "launch.processes=2", "launch.hang_after=2")
    assert outcome.code == Exit.DONE
    assert adversarial.made(tmp_path / "run", "evaluation")[0]["counts"] == {"ring": 24}
    assert len(adversarial.made(tmp_path / "run", "attempt")) == 1


@pytest.mark.usefixtures("importable")
def test_trainloop_11_an_exception_in_what_only_the_leader_does_ends_both_ranks_with_its_words(tmp_path):
    wanted = adversarial.scored(task={"kind": "adversarial:Gan", "trap": "show"})
    outcome = run_under_supervisor(wanted, tmp_path / "run", "launch.processes=2")
    assert outcome.code == Exit.INTERNAL
    assert "only the leader shows" in outcome.cause
    assert newest(tmp_path / "run").step == 12


NAMED = """
    import drivetrain, torch
    from torch import nn

    class Named(drivetrain.Task):
        def networks(self):
            return {"model": nn.Linear(1, 1)}
        def loss(self, nets, batch):
            error = nets["model"](batch[:, None])[:, 0] / 40 - 1
            return drivetrain.Losses(square=(error.square().sum(),), size=(error.abs().sum(), "samples", 0.5))

    class Beside(Named):
        def metrics(self):
            return super().metrics() | {"seen": drivetrain.Mean()}
        def evaluate(self, nets, batch, metrics):
            super().evaluate(nets, batch, metrics)
            metrics["seen"].add(len(batch), 1)

    class Unlabelled(Named):
        def metrics(self):
            return {"loss": drivetrain.Mean()}
        def evaluate(self, nets, batch, metrics):
            pass
"""


@pytest.fixture
def named(recipe, tmp_path):
    """The recipe of `recipe` with a task whose losses have names."""
    name = f"named_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(NAMED))
    return recipe | {"task": {"kind": f"{name}:Named"}}


@pytest.mark.parametrize("processes", [1, 4])
def test_by_default_each_named_loss_is_a_metric_also_where_a_rank_has_no_samples(named, tmp_path, processes):
    named["data"]["validation"] = sets(named, one=1, ten=10)
    result = train(named, tmp_path, f"launch.processes={processes}", "evaluate.batch=1")
    (record,) = of_kind(result.run, "evaluation")
    assert [list(record["metrics"][name]) for name in ("one", "ten")] == [["square", "size"]] * 2
    alone = drivetrain.evaluate(result.run).metrics
    for name, metrics in record["metrics"].items():
        assert metrics == pytest.approx(alone[name])
        assert all(map(math.isfinite, metrics.values()))


def test_a_task_adds_metrics_to_those_of_its_named_losses(named, tmp_path):
    named["task"]["kind"] = named["task"]["kind"].replace("Named", "Beside")
    (record,) = of_kind(train(named, tmp_path).run, "evaluation")
    assert set(record["metrics"]["same"]) == {"square", "size", "seen"}


@pytest.mark.parametrize("section", ["stop.patience", "checkpoint.keep_best"])
@pytest.mark.parametrize("wrong", ["loss", "squares"])
def test_a_named_loss_decides_and_one_that_is_not_there_is_78_before_training(named, tmp_path, section, wrong):
    with pytest.raises(Failure) as caught:
        train(named, tmp_path, f"{section}={{metric: same/{wrong}}}")
    assert caught.value.outcome.code == Exit.BAD_RECIPE
    assert caught.value.outcome.hint == "there are square, size"
    assert not of_kind(tmp_path / "run", "step")
    assert train(named, tmp_path, f"{section}={{metric: same/square}}").step == 6


def test_a_set_of_which_no_metric_gathers_anything_has_no_scores(named, tmp_path):
    named["task"]["kind"] = named["task"]["kind"].replace("Named", "Unlabelled")
    named["data"]["test"] = sets(named, held=7)
    result = train(named, tmp_path)
    (final,) = of_kind(result.run, "final")
    assert (final["metrics"], final["counts"]) == ({"held": {}}, {"held": 7})
    train(named, tmp_path)
    assert len(of_kind(result.run, "final")) == 1


def notes_of(run):
    return [record["text"] for record in of_kind(run, "note") if "not a number" in record["text"]]


@pytest.mark.parametrize("processes", [1, 2])
def test_patience_with_scores_that_are_never_a_number_commits_and_ends_with_82(recipe, tmp_path, processes):
    recipe["task"]["nan_at"] = list(range(1, 9))
    given = ("evaluate.every.steps=1", f"launch.processes={processes}", "stop.patience={metric: same/loss}")
    for _ in range(2):  # started again it ends at once
        with pytest.raises(Failure) as caught:
            train(recipe, tmp_path, *given)
        assert caught.value.outcome.code == Exit.DIVERGED
        assert "same/loss was not a number in 3 evaluations" in caught.value.outcome.cause
        assert len(of_kind(tmp_path / "run", "step")) == 3
    run = tmp_path / "run"
    assert (run / "checkpoints" / "step-00000003").is_dir()
    assert [record["code"] for record in of_kind(run, "exit")] == [82, 82]
    told = "same/loss is not a number, for stop.patience never better"
    assert notes_of(run) == [f"after step {n} {told}" for n in (1, 2, 3)]
    assert train(recipe, tmp_path, "evaluate.every.steps=1").step == 6


def test_an_early_stop_after_some_scores_that_were_no_numbers_says_so(recipe, tmp_path):
    recipe["task"]["nan_at"] = [2, 3]
    given = ("stop.patience={metric: same/loss, evaluations: 2}", "checkpoint.keep_best={metric: same/loss}")
    result = train(recipe, tmp_path, "evaluate.every.steps=1", *given)
    assert (result.step, result.stopped) == (3, False)
    (ended,) = of_kind(result.run, "exit")
    assert ended["cause"].endswith("has not become better in 2 evaluations; in 2 of them it was not a number")
    told = "same/loss is not a number, for checkpoint.keep_best and stop.patience never better"
    assert notes_of(result.run) == [f"after step {n} {told}" for n in (2, 3)]


def test_a_set_without_labels_by_which_something_is_decided_is_told_and_never_ends_a_run_in_silence(named, tmp_path):
    named["task"]["kind"] = named["task"]["kind"].replace("Named", "Unlabelled")
    with pytest.raises(Failure) as caught:
        train(named, tmp_path, "evaluate.every.steps=1", "stop.patience={metric: same/loss, evaluations: 2}")
    assert caught.value.outcome.code == Exit.DIVERGED
    assert len(notes_of(tmp_path / "run")) == 2


LEAKY = """
    import drivetrain, torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 1))
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("late", None)
        def forward(self, x):
            self.calls = self.calls + 1
            if self.late is None:
                self.late = x[0].detach()
            return self.layers(x) + self.calls / 100 + self.late / 1000

    class Leaky(drivetrain.Task):
        def networks(self):
            return {"model": Model()}
        def loss(self, nets, batch):
            return (nets["model"](batch[:, None])[:, 0] / 40 - 1).square().mean()
        def evaluate(self, nets, batch, metrics):
            nets["model"].train()
            super().evaluate(nets, batch, metrics)
            nets["model"].layers[1].eval()
        def show(self, nets, batch, gallery):
            nets["model"].train()(batch[:, None])
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_training_has_the_same_bits_beside_an_evaluation_that_changes_buffers_and_modes(recipe, tmp_path, processes):
    name = f"leaky_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(LEAKY))
    recipe["task"] = {"kind": f"{name}:Leaky"}
    world = f"launch.processes={processes}"
    run = train(recipe, tmp_path, "evaluate.every.steps=2", world, run="scored").run
    assert len(of_kind(run, "evaluation")) == 3
    recipe["data"]["validation"] = {}
    assert trace(train(recipe, tmp_path, world, run="without").run) == trace(run)


SHOWING = """
    import drivetrain
    from torch import nn

    class Showing(drivetrain.Task):
        def networks(self):
            return {"model": nn.Linear(1, 1)}
        def loss(self, nets, batch):
            return (nets["model"](batch[:, None])[:, 0] / 40 - 1).square().mean()
        def show(self, nets, batch, gallery):
            assert not nets["model"].training
            gallery.text("ids", " ".join(str(int(number)) for number in batch))
"""


@pytest.fixture
def showing(recipe, tmp_path):
    """The recipe of `recipe` with a task that shows which samples it was given."""
    name = f"showing_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(SHOWING))
    return recipe | {"task": {"kind": f"{name}:Showing"}, "evaluate": {"batch": 3}}


def shows(run):
    return [(record["step"], record["text"]["ids"]) for record in of_kind(run, "show")]


def test_a_task_shows_the_first_samples_of_the_validation_set_after_each_evaluation(showing, tmp_path):
    result = train(showing, tmp_path, "evaluate.every.steps=3")
    assert shows(result.run) == [(3, "0 1 2"), (6, "0 1 2")]
    train(showing, tmp_path, "evaluate.every.steps=3")
    assert len(shows(result.run)) == 2


@pytest.mark.parametrize("processes", [1, 2])
def test_without_validation_sets_it_shows_training_samples_but_none_in_quarantine(showing, tmp_path, processes):
    showing["data"]["validation"] = {}
    showing["guard"] = {"quarantine": [0, 2]}
    run = train(showing, tmp_path, "evaluate.every.steps=4", f"launch.processes={processes}").run
    assert shows(run) == [(4, "1 3 4"), (6, "1 3 4")]


@pytest.mark.parametrize("left", [["same"], []])
def test_it_shows_every_few_steps_by_choice_also_over_a_stop_and_changes_nothing(showing, tmp_path, left):
    showing["data"]["validation"] = {name: showing["data"]["validation"][name] for name in left}
    run = train(showing, tmp_path, "evaluate.show.every.steps=2", "stop.at=[2, 3]").run
    for _ in range(2):
        train(showing, tmp_path, "evaluate.show.every.steps=2", "stop.at=[2, 3]")
    assert [step for step, _ in shows(run)] == [2, 4, 6]
    without = train(showing, tmp_path, "evaluate.show={}", run="without").run
    assert [step for step, _ in shows(without)] == [6]
    assert trace(without) == trace(run)
