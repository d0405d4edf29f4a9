"""Plans by name, and what is derived for a network without one."""

import pytest
from torch import nn

from drivetrain.engine.parallel_plan import ParallelPlan, derived, matching
from drivetrain.spec.exits import Failure


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleList([nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))])


def network():
    return nn.ModuleDict(
        {
            "embed": nn.Embedding(3, 2),
            "blocks": nn.ModuleList([Block(), Block(), Block()]),
            "holders": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]),
            "stack": nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)),
            "single": nn.Sequential(Block()),
        }
    )


def test_repeated_blocks_are_units_the_outermost_of_them():
    # Not what lies within one, nor layers that may be mere holders of weights, nor a block without siblings.
    found = derived(network())
    assert found.units == ("blocks.0", "blocks.1", "blocks.2", "single.0.inner.0", "single.0.inner.1")
    assert not found.split


def test_a_star_stands_for_one_part_of_a_name():
    found = matching(network(), ("blocks.*", "single.0.inner.*.0"), "the plan")
    assert list(found) == ["blocks.0", "blocks.1", "blocks.2", "single.0.inner.0.0", "single.0.inner.1.0"]


def test_the_first_pattern_counts_and_one_that_names_nothing_is_told():
    plan = ParallelPlan(split={"blocks.0": "column", "blocks.*": "row"})
    found = matching(network(), plan.split, "the plan")
    assert {name: plan.split[pattern] for name, pattern in found.items()} == {
        "blocks.0": "column",
        "blocks.1": "row",
        "blocks.2": "row",
    }
    with pytest.raises(Failure, match=r"the plan: no module is called 'layers\.\*'\. there are embed, blocks,"):
        matching(network(), ("layers.*",), "the plan")
