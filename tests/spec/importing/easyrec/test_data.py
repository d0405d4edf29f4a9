"""Batches of as many samples as cost so much."""

import pytest

import pipelines
from drivetrain.spec.exits import Failure
from pipelines import SMALL, findings_of, lost_of, recipe_of

COST = 'sample_cost_field: "age" batch_cost_size: 900'


def costly(text=COST, config=SMALL):
    return config.replace("with_header: true", f"with_header: true {text}")


def test_a_lane_has_what_a_process_had_for_a_micro_batch():
    text = costly().replace("num_epochs: 2", "num_epochs: 2 gradient_accumulation_steps: 3")
    recipe = recipe_of(text, processes=2)
    assert (recipe.lanes, recipe.batch.cost, recipe.batch.size, recipe.batch.micro) == (6, 5400, 384, 64)
    (source,) = recipe.data.train.sources
    assert (source.cost.column, source.cost.most, source.cost.over) == ("age", 900, "stop")
    assert lost_of(text) == {}


@pytest.mark.parametrize("text", ['sample_cost_field: "age"', 'sample_cost_field: "age" batch_cost_size: 0'])
def test_without_a_bound_batches_have_as_many_samples_each(text):
    assert recipe_of(costly(text)).batch.cost is None
    assert lost_of(costly(text)) == {}


def test_a_bound_without_a_column_is_a_mistake():
    with pytest.raises(Failure, match=r"p\.config:13: data_config\.batch_cost_size: needs sample_cost_field"):
        findings_of(costly("batch_cost_size: 900"))


@pytest.mark.parametrize(
    "text",
    [
        costly().replace('"train.csv"', '"odps://p/tables/t"'),
        costly().replace('"train.csv"', '"kafka://b/t"').replace("num_epochs: 2", "num_steps: 9"),
        costly(config=pipelines.DSSM),
    ],
)
def test_with_streams_and_negatives_of_the_batch_it_is_listed(text):
    assert {"data_config.sample_cost_field", "data_config.batch_cost_size"} == lost_of(text).keys()
    assert recipe_of(text).batch.cost is None
