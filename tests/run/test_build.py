"""What a task must have for the recipe that it is trained by."""

import pytest
import torch
from torch import nn

from conftest import tiny_recipe
from drivetrain.loop.task import Task
from drivetrain.run.build import build_networks, only_training, require_loss
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
