"""Losses by sample, the choice among candidates, and weights of several losses."""

import math

import pytest
import torch
import torch.nn.functional as F

from drivetrain.tasks.ranking.losses import choice_losses, drawn_choices, group_choices, label_losses, places
from drivetrain.tasks.ranking.recipe import Label

LOGITS, WANTED = torch.tensor([-1.0, 0.5, 3.0]), torch.tensor([0.0, 1.0, 1.0])


def test_yes_or_no_is_learned_by_cross_entropy_and_labels_may_be_smoothed():
    plain = F.binary_cross_entropy_with_logits(LOGITS, WANTED, reduction="none")
    assert torch.equal(label_losses(Label(), LOGITS, WANTED), plain)
    smoothed = F.binary_cross_entropy_with_logits(LOGITS, torch.tensor([0.05, 0.95, 0.95]), reduction="none")
    assert torch.allclose(label_losses(Label(label_smoothing=0.1), LOGITS, WANTED), smoothed)


def test_focal_counts_less_what_is_foreseen_already():
    chance = torch.where(WANTED > 0, LOGITS.sigmoid(), 1 - LOGITS.sigmoid())
    alpha = torch.tensor([0.75, 0.25, 0.25])
    wanted = -alpha * (1 - chance) ** 2 * chance.log()
    assert torch.allclose(label_losses(Label(loss="focal", alpha=0.25), LOGITS, WANTED), wanted)


def test_focal_has_a_slope_where_nothing_is_left_to_learn():
    logits = torch.tensor([200.0], requires_grad=True)
    label_losses(Label(loss="focal", gamma=0.5), logits, torch.ones(1)).sum().backward()
    assert logits.grad.isfinite().all()


def test_classes_and_numbers_are_learned_by_softmax_and_squares():
    logits = torch.randn(3, 4)
    classes = torch.tensor([0.0, 3.0, 1.0])
    wanted = F.cross_entropy(logits, classes.long(), reduction="none")
    assert torch.equal(label_losses(Label(loss="softmax", classes=4), logits, classes), wanted)
    assert label_losses(Label(loss="mse"), LOGITS, WANTED).tolist() == [1.0, 0.25, 4.0]


@pytest.mark.parametrize("label", [Label(), Label(loss="focal"), Label(loss="mse")])
def test_a_sample_without_a_label_moves_nothing(label):
    logits = LOGITS.clone().requires_grad_()
    losses = label_losses(label, logits, torch.tensor([0.0, math.nan, 1.0]))
    losses.sum().backward()
    assert losses[1] == 0
    assert logits.grad[1] == 0
    assert logits.grad.isfinite().all()


def vectors(samples, candidates):
    draw = torch.Generator().manual_seed(3)
    made = {
        "user": torch.randn(samples, 4, generator=draw),
        "item": torch.randn(samples, candidates, 4, generator=draw),
    }
    return {name: F.normalize(each, dim=-1) for name, each in made.items()}


def test_a_group_s_items_are_one_another_s_negatives_but_not_the_same_item():
    found = vectors(5, 1)
    keys = torch.tensor([[7], [8], [7], [9], [9]])
    first, second = group_choices(found, keys, 0.5, 3)
    scores = found["user"][:3] @ found["item"][:3, 0].T / 0.5
    scores[0, 2] = scores[2, 0] = -math.inf
    assert torch.allclose(first.scores, scores)
    assert choice_losses(second).tolist() == [0, 0]


def test_groups_do_not_depend_on_how_many_samples_are_computed_together():
    found, keys = vectors(12, 1), torch.arange(12).unsqueeze(1)
    whole = torch.cat([choice_losses(choice) for choice in group_choices(found, keys, 0.5, 4)])
    for start in (0, 4, 8):
        part = {name: each[start : start + 4] for name, each in found.items()}
        (alone,) = group_choices(part, keys[start : start + 4], 0.5, 4)
        assert torch.equal(choice_losses(alone), whole[start : start + 4])


def test_drawn_candidates_leave_out_none_and_the_sample_s_own_item():
    found, keys = vectors(2, 3), torch.tensor([[4, -1, 5], [6, 6, 7]])
    choice = drawn_choices(found, keys, 1.0)
    assert choice.scores.isinf().tolist() == [[False, True, False], [False, True, False]]
    assert choice.right.tolist() == [0, 0]


def test_a_place_counts_ties_against_the_right_item():
    found = {"user": torch.ones(1, 2), "item": torch.ones(1, 3, 2)}
    assert places(drawn_choices(found, torch.tensor([[1, 2, 3]]), 1.0)).tolist() == [2]
