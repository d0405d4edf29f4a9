"""What a task must have for the recipe that it is trained by."""

import pytest
import torch
from torch import nn

from conftest import tiny_recipe
from drivetrain.loop.task import Task
from drivetrain.run.build import build_networks, build_task, only_training, open_inputs, require_loss
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load


class Moves(Task):
    def update(self, step):
        """Without `loss`."""


class Scored(Moves):
    def evaluate(self, nets, batch, metrics):
        """Without `loss`."""


@pytest.mark.parametrize(("task", "missing"), [(Task, "no loss"), (Moves, "no evaluate")])
def test_a_loss_that_is_needed_and_not_there_is_78(tmp_path, task, missing):
    with pytest.raises(Failure, match=f"{task.__name__} has {missing}") as caught:
        require_loss(load(tiny_recipe(tmp_path)).recipe, task())
    assert caught.value.outcome.code == Exit.BAD_RECIPE


def test_no_loss_is_needed_where_the_task_moves_and_scores_without(tmp_path):
    recipe = load(tiny_recipe(tmp_path)).recipe
    require_loss(recipe, Scored())
    require_loss(only_training(recipe), Moves())


@pytest.mark.parametrize("made", [nn.Linear(1, 1), {"model": "linear"}, None])
def test_what_is_no_networks_by_name_is_told_as_the_tasks_own_mistake(tmp_path, made):
    class Alone(Task):
        def networks(self):
            return made

    with pytest.raises(Failure, match=r"the task's networks gives ") as caught:
        build_networks(Alone(), load(tiny_recipe(tmp_path)).recipe, torch.device("cpu"))
    assert "return a dict of nn.Module objects by name" in caught.value.outcome.hint


def test_a_shipped_task_that_looks_samples_up_takes_no_stream(tmp_path):
    pytest.importorskip("datasets")
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "rows.jsonl").write_text('{"text": "a", "label": 0}\n' * 8)
    tree = tiny_recipe(tmp_path) | {"task": {"kind": "classification", "model": "none", "texts": ["text"]}}
    tree["data"] = {"train": {"sources": [{"kind": "hub", "path": str(tmp_path / "rows")}]}}
    recipe = load(tree | {"evaluate": {}}).recipe
    with pytest.raises(Failure, match=r"data.train.sources\[0\]: it is a stream, and this task looks") as caught:
        open_inputs(recipe, tmp_path, build_task(recipe))
    assert caught.value.outcome.code == Exit.BAD_RECIPE
