import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from drivetrain.loop.metrics import values
from drivetrain.tasks.classification.glue import BENCHMARKS
from drivetrain.tasks.classification.metrics import build_metrics

sklearn = pytest.importorskip("sklearn.metrics", reason="scikit-learn is the oracle")


def scored(names, classes, predicted, true, lanes=1):
    """The metrics of samples that several lanes have shared out, as an evaluation merges them."""
    total = build_metrics(names, classes)
    for lane in range(lanes):
        own = build_metrics(names, classes)
        for name in names:
            own[name].add(predicted[lane::lanes], true[lane::lanes])
        for name, metric in total.items():
            metric.merge(own[name].state())
    return {name: metric.value() for name, metric in total.items() if name != "loss"}


@settings(max_examples=60)
@given(st.data(), st.integers(2, 4), st.integers(1, 60), st.integers(1, 3))
def test_classes_score_as_scikit_learn_has_them(data, classes, count, lanes):
    ids = st.lists(st.integers(0, classes - 1), min_size=count, max_size=count)
    predicted, true = (np.array(data.draw(ids)) for _ in range(2))
    found = scored(("accuracy", "matthews"), classes, predicted, true, lanes)
    assert found["accuracy"] == pytest.approx(sklearn.accuracy_score(true, predicted))
    assert found["matthews"] == pytest.approx(sklearn.matthews_corrcoef(true, predicted))
    assert found["score"] == pytest.approx((found["accuracy"] + found["matthews"]) / 2)
    if classes == 2:
        f1 = scored(("f1",), 2, predicted, true, lanes)["f1"]
        assert f1 == pytest.approx(sklearn.f1_score(true, predicted, zero_division=0))


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(-20, 20), st.integers(0, 5)), min_size=3, max_size=60), st.integers(1, 3))
def test_scores_correlate_as_scipy_has_it_ties_included(pairs, lanes):
    predicted, true = np.array(pairs, float).T
    found = scored(("pearson", "spearman"), 2, predicted, true, lanes)
    if len(set(predicted)) == 1 or len(set(true)) == 1:
        assert math.isnan(found["pearson"])
        return
    assert found["pearson"] == pytest.approx(stats.pearsonr(predicted, true).statistic, abs=1e-9)
    assert found["spearman"] == pytest.approx(stats.spearmanr(predicted, true).statistic, abs=1e-9)


def test_pearson_loses_no_digits_on_large_scores():
    draw = np.random.default_rng(0)
    true = draw.normal(size=500)
    predicted = true + draw.normal(size=500)
    near, far = (scored(("pearson",), 2, predicted + by, true + by, lanes=4)["pearson"] for by in (0, 1e7))
    assert far == pytest.approx(near, abs=1e-7)


def test_every_task_has_the_metrics_that_glue_averages():
    expected = {"cola": ("matthews",), "stsb": ("pearson", "spearman")}
    expected |= dict.fromkeys(("mrpc", "qqp"), ("accuracy", "f1"))
    expected |= dict.fromkeys(("mnli", "qnli", "rte", "sst2", "wnli"), ("accuracy",))
    assert {name: benchmark.metrics for name, benchmark in BENCHMARKS.items()} == expected


def test_nothing_gathered_is_no_number_and_a_set_without_labels_has_no_scores():
    names = ("accuracy", "f1", "matthews", "pearson", "spearman")
    made = build_metrics(names, 2)
    assert all(math.isnan(metric.value()) for metric in made.values())
    assert values(made, build_metrics(names, 2)) == {}
    made["loss"].add(1.0, 1)
    assert values(made, build_metrics(names, 2)).keys() == made.keys()
