"""Metrics of ranking, beside scikit-learn's, in any order of the samples and on any number of lanes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as reference

from drivetrain.tasks.ranking.metrics import Scored, label_metric
from drivetrain.tasks.ranking.recipe import Label

DRAW = np.random.default_rng(7)
COUNT = 600
LABELS = (DRAW.random(COUNT) < 0.3).astype(np.float32)
LOGITS = (DRAW.standard_normal(COUNT) + LABELS).round(1).astype(np.float32)  # rounded: there are ties
WEIGHTS = DRAW.random(COUNT).astype(np.float32)
GROUPS = DRAW.integers(0, 40, COUNT) + (1 << 52)
PROBABILITIES = 1 / (1 + np.exp(-LOGITS.astype(np.float64)))
BINARY = Label()


def value(name, label=BINARY, parts=1, order=None, **scored):
    """A metric of samples that as many lanes have scored."""
    given = {"scores": LOGITS, "labels": LABELS, "groups": GROUPS, **scored}
    order = np.arange(len(given["labels"])) if order is None else order
    total = label_metric(name, label)
    for part in np.array_split(order, parts):
        lane = label_metric(name, label)
        lane.add(Scored(**{key: array[part] for key, array in given.items()}))
        total.merge(lane.state())
    return total.value()


def test_auc_is_scikit_learns_with_ties_and_with_weights():
    assert value("auc") == pytest.approx(reference.roc_auc_score(LABELS, LOGITS), abs=1e-15)
    weighted = reference.roc_auc_score(LABELS, LOGITS, sample_weight=WEIGHTS)
    assert value("auc", weights=WEIGHTS) == pytest.approx(weighted, abs=1e-14)
    tight = (0.02 + 1e-6 * LOGITS).astype(np.float32)
    assert value("auc", scores=tight) == pytest.approx(reference.roc_auc_score(LABELS, tight), abs=1e-15)


EVERY = ["auc", "grouped_auc", "xauc", "grouped_xauc", "normalized_entropy", "calibration", "accuracy", "mae", "mse"]


@pytest.mark.parametrize("name", EVERY)
def test_a_metric_has_the_same_bits_on_any_number_of_lanes(name):
    for weights in ({}, {"weights": WEIGHTS}):
        found = {value(name, parts=parts, **weights) for parts in (1, 2, 3, 7, 700)}
        found.add(value(name, order=DRAW.permutation(COUNT), parts=3, **weights))
        assert len(found) == 1


def test_grouped_auc_is_the_mean_over_groups_that_have_both_labels():
    for weights in (None, WEIGHTS):
        each = np.ones(COUNT) if weights is None else weights.astype(np.float64)
        total = counted = 0.0
        for group in np.unique(GROUPS):
            chosen = group == GROUPS
            if len(set(LABELS[chosen])) == 2:
                auc = reference.roc_auc_score(LABELS[chosen], LOGITS[chosen], sample_weight=each[chosen])
                total, counted = total + auc * each[chosen].sum(), counted + each[chosen].sum()
        given = {} if weights is None else {"weights": weights}
        assert value("grouped_auc", **given) == pytest.approx(total / counted, abs=1e-14)


def test_multiclass_auc_and_accuracy_are_scikit_learns():
    label = Label(loss="softmax", classes=3)
    classes = DRAW.integers(0, 3, COUNT).astype(np.float32)
    logits = DRAW.standard_normal((COUNT, 3)).astype(np.float32)
    logits[np.arange(COUNT), classes.astype(int)] += 0.5
    shares = np.exp(logits.astype(np.float64))
    shares /= shares.sum(1, keepdims=True)
    given = {"label": label, "scores": logits, "labels": classes}
    auc = reference.roc_auc_score(classes, shares, multi_class="ovr")
    assert value("multiclass_auc", **given) == pytest.approx(auc, abs=1e-12)
    assert value("accuracy", **given) == reference.accuracy_score(classes, logits.argmax(1))


def test_sums_over_samples_are_scikit_learns():
    for weights in (None, WEIGHTS):
        given = {} if weights is None else {"weights": weights}
        entropy = reference.log_loss(LABELS, PROBABILITIES, sample_weight=weights)
        share = np.average(LABELS, weights=weights)
        base = -(share * math.log(share) + (1 - share) * math.log(1 - share))
        assert value("normalized_entropy", **given) == pytest.approx(entropy / base, rel=1e-6)
        assert value("calibration", **given) == pytest.approx(
            np.average(PROBABILITIES, weights=weights) / share, rel=1e-6
        )
        for name, score in (("mae", reference.mean_absolute_error), ("mse", reference.mean_squared_error)):
            assert value(name, **given) == pytest.approx(score(LABELS, PROBABILITIES, sample_weight=weights), rel=1e-6)
            numbers = score(LABELS, LOGITS, sample_weight=weights)
            assert value(name, Label(loss="mse"), **given) == pytest.approx(numbers, rel=1e-6)
        right = reference.accuracy_score(LABELS, LOGITS > 0, sample_weight=weights)
        assert value("accuracy", **given) == pytest.approx(right, rel=1e-6)


def pairs_of(scores, labels):
    """Pairs in order and pairs with different labels, counted one by one."""
    right = pairs = 0.0
    for one in range(len(scores)):
        for other in range(one):
            if labels[one] != labels[other]:
                pairs += 1
                apart = np.sign(scores[one] - scores[other]) * np.sign(labels[one] - labels[other])
                right += (float(apart) + 1) / 2
    return right, pairs


SAMPLES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(-2, 2)), min_size=1, max_size=40)


@given(SAMPLES)
def test_xauc_counts_every_pair(samples):
    scores, labels, _ = np.array(samples, np.float32).T
    right, pairs = pairs_of(scores, labels)
    metric = label_metric("xauc", Label(loss="mse"))
    metric.add(Scored(scores, labels))
    assert metric.value() == right / pairs if pairs else math.isnan(metric.value())


@given(SAMPLES)
def test_grouped_xauc_is_the_mean_over_groups_that_have_different_labels(samples):
    scores, labels, groups = np.array(samples, np.float32).T
    total = counted = 0.0
    for group in np.unique(groups):
        chosen = group == groups
        right, pairs = pairs_of(scores[chosen], labels[chosen])
        if pairs:
            total, counted = total + right / pairs * chosen.sum(), counted + chosen.sum()
    metric = label_metric("grouped_xauc", Label(loss="mse"))
    metric.add(Scored(scores, labels, groups=groups.astype(np.int64)))
    found = metric.value()
    assert found == pytest.approx(total / counted, abs=1e-14) if counted else math.isnan(found)


def test_xauc_of_yes_and_no_is_the_auc():
    assert value("xauc") == pytest.approx(value("auc"), abs=1e-15)


@pytest.mark.parametrize("name", ["auc", "grouped_auc", "normalized_entropy", "calibration", "xauc", "accuracy", "mae"])
def test_nothing_and_a_single_class_are_no_number_where_they_tell_nothing(name):
    assert math.isnan(label_metric(name, BINARY).value())
    alone = value(name, labels=np.zeros(COUNT, np.float32))
    assert math.isnan(alone) != (name in ("accuracy", "mae"))
