"""States of torchmetrics' metrics: sent as bytes, merged over lanes, with those left out that saw nothing."""

import math

import pytest
import torch
from torch import nn

from drivetrain.loop.metric_states import holds_states, made_ready, packed, put_merged, states_of, unpacked, was_updated
from drivetrain.loop.metrics import numbers
from drivetrain.spec.exits import Exit, Failure


def dim_zero_mean(whole):
    raise AssertionError("a mean is weighted by updates")


def dim_zero_cat(whole):
    return torch.cat(list(whole))


class Made(nn.Module):
    """What torchmetrics' metrics have, without torchmetrics."""

    def __init__(self):
        super().__init__()
        self._defaults = {"sum": torch.zeros(2), "mean": torch.zeros(()), "rows": [], "stacked": torch.zeros(1)}
        self._defaults["joined"] = torch.zeros(1)
        self._reductions = {"sum": lambda whole: whole.sum(0), "mean": dim_zero_mean, "rows": None, "stacked": None}
        self._reductions["joined"] = dim_zero_cat
        self._update_count = 0
        self.sum, self.mean, self.rows = torch.zeros(2), torch.zeros(()), []
        self.stacked, self.joined = torch.zeros(1), torch.zeros(1)

    def update(self, value, times=1):
        self._update_count += times
        self.sum = self.sum + value
        self.mean, self.stacked, self.joined = torch.tensor(value), torch.tensor([value]), torch.tensor([value])
        self.rows.append(torch.tensor([value]))

    def compute(self):
        return self.sum


def lanes(*updates):
    found = []
    for values in updates:
        metric = Made()
        for value, times in values:
            metric.update(value, times)
        found.append(unpacked(packed(states_of(metric))))
    return found


def test_states_are_merged_by_what_each_declares_in_the_order_of_the_lanes():
    total = Made()
    put_merged(total, lanes([(1.0, 1)], [], [(2.0, 3)]))
    assert total.sum.tolist() == [3.0, 3.0]
    assert float(total.mean) == 1.75
    assert [row.tolist() for row in total.rows] == [[1.0], [2.0]]
    assert total.stacked.tolist() == [[1.0], [2.0]]
    assert total.joined.tolist() == [1.0, 2.0]
    assert total._update_count == 4


def test_what_one_lane_alone_has_seen_stays_as_it_is():
    total = Made()
    put_merged(total, lanes([], [(2.0, 3)]))
    assert total.stacked.tolist() == [2.0]
    assert total.mean.shape == ()
    untouched = Made()
    put_merged(untouched, lanes([], []))
    assert not was_updated(untouched)
    assert was_updated(total)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1.5, math.nan, -0.0]),
        torch.tensor(True),
        torch.zeros(0, 3, dtype=torch.int64),
        torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).T,
        torch.arange(4.0).reshape(2, 2)[:1, 1],
    ],
)
def test_tensors_come_back_as_they_were_sent_bit_for_bit(tensor):
    tree = unpacked(packed([{"a": [tensor, 1], "b": {"c": "text", "d": tensor}}]))
    assert (tree[0]["a"][1], tree[0]["b"]["c"]) == (1, "text")
    for found in (tree[0]["a"][0], tree[0]["b"]["d"]):
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
        assert repr(found.tolist()) == repr(tensor.tolist()), "of numbers: nan is nan, and -0.0 is not 0.0"


def test_what_is_neither_tensor_nor_json_is_refused_and_never_pickled():
    with pytest.raises(TypeError, match="holds set"):
        packed({"a": {1, 2}})


def test_a_metric_that_is_made_ready_never_talks_to_other_processes():
    metric = Made()
    assert holds_states(metric)
    assert not holds_states(nn.Linear(1, 1))
    made_ready(metric, torch.device("cpu"))
    assert not metric.distributed_available_fn()
    assert not any([metric.sync_on_compute, metric.dist_sync_on_step, metric._to_sync])


def test_a_dict_is_as_many_metrics_and_what_is_no_number_is_refused():
    assert numbers("a", {"b": torch.tensor([1.0]), "c": {"d": 2}}) == {"a.b": 1.0, "a.c.d": 2.0}
    for told in (None, torch.zeros(2), [1.0], "many"):
        with pytest.raises(Failure, match=r"the metric 'a\.b' comes to") as caught:
            numbers("a", {"b": told})
        assert caught.value.outcome.code is Exit.BAD_RECIPE
