from dataclasses import dataclass

import pytest
from torch import nn

from drivetrain.optim.groups import assign
from drivetrain.optim.recipe import AdamW, MatrixChoice, ParameterGroup
from drivetrain.spec.exits import Exit, Failure


def network():
    return nn.ModuleDict({"embed": nn.Embedding(7, 4), "body": nn.Linear(4, 4), "norm": nn.LayerNorm(4)})


def test_every_parameter_is_in_exactly_one_group():
    net = network()
    groups = assign({"m": net}, AdamW(groups=(ParameterGroup(match="embed", lr=0.5), ParameterGroup(match="e"))))["m"]
    names = [name for group in groups for name in group.names]
    assert sorted(names) == sorted(name for name, _ in net.named_parameters())


def test_norms_and_biases_are_not_decayed():
    groups = assign({"m": network()}, AdamW(weight_decay=0.1))["m"]
    decay = {name: group.weight_decay for group in groups for name in group.names}
    assert decay == {"embed.weight": 0.1, "body.weight": 0.1, "body.bias": 0, "norm.weight": 0, "norm.bias": 0}


def test_a_group_that_gives_a_weight_decay_decays_all_it_takes():
    groups = assign(
        {"m": network()}, AdamW(weight_decay=0.1, groups=(ParameterGroup(match="bias", weight_decay=0.3),))
    )["m"]
    decay = {name: group.weight_decay for group in groups for name in group.names}
    assert decay["body.bias"] == 0.3
    assert decay["norm.weight"] == 0


def test_the_first_pattern_that_matches_takes_the_parameter():
    groups = assign(
        {"m": network()}, AdamW(groups=(ParameterGroup(match="body", lr=1), ParameterGroup(match="weight", lr=2)))
    )["m"]
    lr = {name: group.lr for group in groups for name in group.names}
    assert lr["body.weight"] == 1
    assert lr["embed.weight"] == 2


@pytest.mark.parametrize(
    "patterns", [["nothing_has_this_name"], ["weight|bias", "embed"], ["("]], ids=["no match", "all taken", "no regex"]
)
def test_a_pattern_that_takes_nothing_is_refused_with_the_names_that_exist(patterns):
    settings = AdamW(groups=tuple(ParameterGroup(match=pattern) for pattern in patterns))
    with pytest.raises(Failure) as caught:
        assign({"m": network()}, settings)
    assert caught.value.outcome.code == Exit.BAD_RECIPE
    assert patterns[-1] in caught.value.outcome.cause


def test_frozen_and_tied_parameters_are_taken_once_or_never():
    net = network()
    net["body"].bias.requires_grad_(False)
    net["head"] = nn.Linear(4, 7, bias=False)
    net["head"].weight = net["embed"].weight
    names = [name for group in assign({"m": net}, AdamW())["m"] for name in group.names]
    assert "body.bias" not in names
    assert "head.weight" not in names
    assert names.count("embed.weight") == 1


@dataclass(frozen=True, kw_only=True)
class Declaring(AdamW):
    """Settings of an optimizer that nobody else knows of."""

    hidden: bool

    @property
    def matrices(self):
        return MatrixChoice("pattern", "embed", hidden=self.hidden)

    def without_matrices(self, networks, parameters):
        return f"nothing of {networks}", parameters


@pytest.mark.parametrize(("hidden", "expected"), [(True, {"body.weight"}), (False, {"embed.weight"})])
def test_matrices_are_what_an_optimizers_settings_declare(hidden, expected):
    groups = assign({"m": network()}, Declaring(hidden=hidden))["m"]
    assert {name for group in groups if group.matrix for name in group.names} == expected


def test_an_optimizer_of_matrices_says_in_its_own_words_that_there_are_none():
    with pytest.raises(Failure) as caught:
        assign({"m": nn.LayerNorm(4)}, Declaring(hidden=True))
    assert (caught.value.outcome.code, caught.value.outcome.cause) == (Exit.BAD_RECIPE, "nothing of m")
    assert caught.value.outcome.hint == "weight, bias"
