"""Weights of labels: as they are given, or by Pareto's rule."""

import pytest

import pipelines
from drivetrain.spec.exits import Failure
from pipelines import MMOE, SMALL, lost_of, recipe_of


def weighed(first, second="", config=MMOE):
    text = config.replace('label_name: "like"', f'label_name: "like" {first}')
    return text.replace('label_name: "love"', f'label_name: "love" {second}')


def found(text):
    return text.replace("mmoe {", "use_pareto_loss_weight: true mmoe {")


def test_weights_are_those_that_are_given():
    task = recipe_of(weighed("weight: 0.5", "pareto_min_loss_weight: 0.3")).task
    assert (task.labels["ctr"].weight, task.labels["cvr"].weight, task.weights) == (0.5, 1.0, None)


def test_weights_are_found_and_bounded_from_below():
    text = found(weighed("pareto_min_loss_weight: 0.3"))
    task = recipe_of(text).task
    assert (task.weights.kind, task.weights.least) == ("pareto", {"ctr": 0.3})
    assert lost_of(text) == {}


def test_a_weight_beside_those_that_are_found_is_listed():
    text = found(weighed("weight: 2"))
    assert recipe_of(text).task.labels["ctr"].weight == 1.0
    assert lost_of(text) == {"model_config.mmoe.task_towers[0].weight": 21}


def test_a_single_label_has_nothing_to_be_weighed_against():
    text = SMALL.replace("deepfm {", "use_pareto_loss_weight: true deepfm {")
    assert recipe_of(text).task.weights is None
    assert lost_of(text) == {}


@pytest.mark.parametrize("kind", ["simple_multi_task", "dbmtl", "ple"])
def test_a_model_that_is_filled_in_has_them_too(kind):
    towers = f"{kind} {{ {pipelines.tower('a', 'like')} {pipelines.tower('b', 'love')} }}"
    text = SMALL.replace("deepfm { deep { hidden_units: [16, 8] } }", f"use_pareto_loss_weight: true {towers}")
    assert recipe_of(text).task.weights.kind == "pareto"


def test_bounds_that_no_weights_keep_are_told_with_the_line():
    with pytest.raises(Failure, match=r"p\.config:21: .*towers\[1\].*all labels together weigh 1"):
        recipe_of(found(weighed("pareto_min_loss_weight: 0.6", "pareto_min_loss_weight: 0.6")))
