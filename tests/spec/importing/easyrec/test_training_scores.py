"""Metrics of training samples: those of the labels, at an interval, with means that forget."""

import pytest

import pipelines
from drivetrain.spec.exits import Failure
from pipelines import SMALL, lost_of, recipe_of


def scored(text, config=SMALL):
    return config.replace("metrics { auc {} }", text)


def test_the_first_says_how_often_and_how_fast_they_are_forgotten():
    text = scored("metrics { auc {} } train_metrics { auc { thresholds: 9 } decay_rate: 0.5 decay_step: 20 }")
    recipe = recipe_of(text)
    assert (recipe.evaluate.training.every.steps, recipe.evaluate.training.decay) == (20, 0.5)
    assert recipe.task.labels["like"].metrics == ("auc",)
    assert lost_of(text) == {}


def test_left_out_they_are_as_there_in_steps():
    text = scored("train_metrics { mean_squared_error {} }")
    recipe = recipe_of(text.replace("num_epochs: 2", "num_epochs: 2 gradient_accumulation_steps: 4"))
    assert (recipe.evaluate.training.every.steps, recipe.evaluate.training.decay) == (25, 0.9)
    assert recipe.task.labels["like"].metrics == ("mse",)


def test_a_metric_of_training_samples_only_is_one_of_the_label():
    recipe = recipe_of(scored("metrics { auc {} } train_metrics { accuracy {} }"))
    assert recipe.task.labels["like"].metrics == ("auc", "accuracy")


def test_one_interval_is_for_all_labels_and_another_one_is_listed():
    text = pipelines.MMOE.replace("metrics { auc {} }", "train_metrics { auc {} decay_step: 10 }", 1)
    text = text.replace("metrics { auc {} } }", "metrics { auc {} } train_metrics { auc {} decay_rate: 0.5 } }")
    assert recipe_of(text).evaluate.training.every.steps == 10
    assert lost_of(text) == {"model_config.mmoe.task_towers[1].train_metrics[0].decay_rate": 21}


def test_one_without_a_counterpart_scores_nothing():
    text = scored("metrics { auc {} } train_metrics { recall_at_k {} decay_step: 3 }")
    assert recipe_of(text).evaluate.training is None
    assert lost_of(text) == {"model_config.train_metrics[0].recall_at_k": 21}


def test_recall_of_two_towers_is_one_of_them():
    more = "metrics { recall_at_k { top_k: 1 } } train_metrics { recall_at_k { top_k: 3 } decay_step: 1 }"
    recipe = recipe_of(pipelines.DSSM.replace("metrics { recall_at_k { top_k: 1 } }", more))
    assert recipe.task.model.recall == (1, 3, 5)
    assert recipe.evaluate.training.every.steps == 1


@pytest.mark.parametrize(
    ("text", "told"), [("decay_step: 0", "decay_step: is 1 or more"), ("decay_rate: 1", "decay_rate: is from 0 to")]
)
def test_a_wrong_value_is_told_with_its_line(text, told):
    with pytest.raises(Failure, match=rf"p\.config:21: .*{told}"):
        recipe_of(scored(f"train_metrics {{ auc {{}} {text} }}"))
