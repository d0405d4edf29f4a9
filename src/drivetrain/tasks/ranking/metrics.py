"""Metrics of ranking. What goes by the order of all scores keeps every score, and counts in whole numbers; sums are
exact. So all have the same bits in whatever order and parts samples come."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np

from drivetrain.loop.metrics import Metric
from drivetrain.tasks.ranking.recipe import Label, MetricName
from drivetrain.tasks.ranking.sums import ExactSums


class Scored(NamedTuple):
    """Samples with what was said of them: `scores`, float32 [samples] or [samples, classes], logits or numbers;
    `labels`, float32 [samples]; `weights`, float32 [samples] or None where all count alike; `groups`, int64 [samples]
    below 2^53, or None."""

    scores: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None = None
    groups: np.ndarray | None = None

    @property
    def counted(self) -> np.ndarray:
        """What each sample counts, float64."""
        if self.weights is None:
            return np.ones(len(self.labels))
        return self.weights.astype(np.float64)


class SampleMetric(Metric, Protocol):
    """A metric that takes scored samples."""

    def add(self, scored: Scored) -> None:
        """Add samples."""
        ...


class Gathered:
    """A metric that keeps a row of numbers for each sample, since only all of them together tell."""

    width = 3

    def __init__(self) -> None:
        self._rows: list[np.ndarray] = []

    def state(self) -> list[float]:
        """All rows, one after the other; as long as the lane has samples."""
        return np.concatenate([np.empty((0, self.width)), *self._rows]).flatten().tolist()

    def merge(self, state: list[float]) -> None:
        """Add another lane's rows."""
        self._rows.append(np.reshape(np.array(state, np.float64), (-1, self.width)))

    def value(self) -> float:
        """What the rows come to; NaN where they tell nothing."""
        rows = np.concatenate([np.empty((0, self.width)), *self._rows])
        return self._of(rows) if len(rows) else math.nan

    def _of(self, rows: np.ndarray) -> float:
        raise NotImplementedError

    def _keep(self, *columns: np.ndarray) -> None:
        self._rows.append(np.column_stack([column.astype(np.float64) for column in columns]))


class Auc(Gathered):
    """The share of pairs of a yes and a no of which the yes is scored higher; a tie is half of one."""

    def add(self, scored: Scored) -> None:
        """Add samples with labels 1 and 0."""
        self._keep(scored.scores, scored.labels, scored.counted)

    def _of(self, rows: np.ndarray) -> float:
        return auc(*rows.T)


class GroupedAuc(Gathered):
    """The mean of the AUC of each group, by how much its samples count. Groups of one label only are left out."""

    width = 4

    def add(self, scored: Scored) -> None:
        """Add samples with labels 1 and 0, and with groups."""
        assert scored.groups is not None, "the recipe names a column"
        self._keep(scored.scores, scored.labels, scored.counted, scored.groups)

    def _of(self, rows: np.ndarray) -> float:
        aucs, counted = grouped_aucs(*rows.T)
        known = ~np.isnan(aucs)
        return float(aucs[known] @ counted[known] / counted[known].sum()) if known.any() else math.nan


class MulticlassAuc(Gathered):
    """The mean over classes of the AUC of this class against all others; a class of none or all is left out."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.width = classes + 2

    def add(self, scored: Scored) -> None:
        """Add samples whose labels are classes."""
        # Within a sample, probabilities order classes; between samples, logits do not order one class.
        self._keep(_shares(scored.scores), scored.labels, scored.counted)

    def _of(self, rows: np.ndarray) -> float:
        labels, weights = rows[:, -2], rows[:, -1]
        found = [auc(rows[:, number], labels == number, weights) for number in range(self.width - 2)]
        known = [each for each in found if not math.isnan(each)]
        return sum(known) / len(known) if known else math.nan


class Xauc(Gathered):
    """The share of pairs with different labels that are scored in the labels' order; a tie is half of one. For labels
    of yes and no it is the AUC. Samples are not weighted."""

    width = 2

    def add(self, scored: Scored) -> None:
        """Add samples whose labels are numbers."""
        self._keep(scored.scores, scored.labels)

    def _of(self, rows: np.ndarray) -> float:
        scores, labels = rows.T
        right, pairs, _ = ordered_pairs(scores, labels, np.zeros(len(rows)))
        return int(right[0]) / int(pairs[0]) if pairs[0] else math.nan


class GroupedXauc(Gathered):
    """The mean of the XAUC of each group, by how many samples it has. Groups of one label only are left out."""

    width = 3

    def add(self, scored: Scored) -> None:
        """Add samples whose labels are numbers, and with groups."""
        assert scored.groups is not None, "the recipe names a column"
        self._keep(scored.scores, scored.labels, scored.groups)

    def _of(self, rows: np.ndarray) -> float:
        scores, labels, groups = rows.T
        right, pairs, samples = ordered_pairs(scores, labels, groups)
        known = pairs > 0
        counted = samples[known]
        return float((right[known] / pairs[known]) @ counted / counted.sum()) if known.any() else math.nan


class Summed:
    """A metric of sums over samples, which are exact."""

    count = 2

    def __init__(self) -> None:
        self._sums = ExactSums(self.count)

    def state(self) -> list[float]:
        """The sums, as whole numbers."""
        return self._sums.state()

    def merge(self, state: list[float]) -> None:
        """Add another lane's sums."""
        self._sums.merge(state)

    def value(self) -> float:
        """The first sum divided by the second; NaN where there is nothing to divide by."""
        return self._sums.ratio(0, 1)


class NormalizedEntropy(Summed):
    """Cross-entropy by that of who always says the share of yes (He et al. 2014, "Practical lessons from predicting
    clicks on ads at Facebook"): below 1 is better than that."""

    count = 3

    def add(self, scored: Scored) -> None:
        """Add samples with labels 1 and 0, and logits."""
        weights, labels, logits = scored.counted, scored.labels.astype(np.float64), scored.scores.astype(np.float64)
        entropies = np.logaddexp(0, logits) - labels * logits
        self._sums.add(weights * entropies, weights, weights * labels)

    def value(self) -> float:
        """The ratio; NaN where all labels are the same."""
        share = self._sums.ratio(2, 1)
        if not 0 < share < 1:
            return math.nan
        return self._sums.ratio(0, 1) / -(share * math.log(share) + (1 - share) * math.log1p(-share))


class Calibration(Summed):
    """The mean probability by the share of yes: 1 where as much is foreseen as there is; NaN where no label is yes."""

    def add(self, scored: Scored) -> None:
        """Add samples with labels 1 and 0, and logits."""
        weights = scored.counted
        self._sums.add(weights * _probabilities(scored.scores), weights * scored.labels)


class Average(Summed):
    """A mean of numbers, by what each counts; NaN where there are none."""

    def add(self, numbers: np.ndarray, counted: np.ndarray) -> None:
        """Add numbers and what they count, float64 [numbers]."""
        self._sums.add(numbers * counted, counted)


class Averaged(Summed):
    """A metric that is a mean over samples, by what each counts."""

    def add(self, scored: Scored) -> None:
        """Add samples."""
        self._sums.add(self._each(scored) * scored.counted, scored.counted)

    def _each(self, scored: Scored) -> np.ndarray:
        raise NotImplementedError


class Accuracy(Averaged):
    """The share of samples of which the likeliest class is right."""

    def _each(self, scored: Scored) -> np.ndarray:
        said = scored.scores.argmax(-1) if scored.scores.ndim > 1 else scored.scores > 0
        return (said == scored.labels).astype(np.float64)


class Distance(Averaged):
    """The mean distance of what is said from the label, or of its square; of yes and no it is the probability's."""

    def __init__(self, power: int, *, binary: bool) -> None:
        super().__init__()
        self._power, self._binary = power, binary

    def _each(self, scored: Scored) -> np.ndarray:
        said = _probabilities(scored.scores) if self._binary else scored.scores.astype(np.float64)
        return np.abs(said - scored.labels) ** self._power


def label_metric(name: MetricName, label: Label) -> SampleMetric:
    """A fresh metric of this name for a label."""
    if name == "multiclass_auc":
        return MulticlassAuc(label.outputs)
    if name in ("mae", "mse"):
        return Distance(1 if name == "mae" else 2, binary=label.is_binary)
    return _METRICS[name]()


_METRICS: dict[str, type] = {
    "auc": Auc,
    "grouped_auc": GroupedAuc,
    "xauc": Xauc,
    "grouped_xauc": GroupedXauc,
    "normalized_entropy": NormalizedEntropy,
    "calibration": Calibration,
    "accuracy": Accuracy,
}


def auc(scores: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> float:
    """The AUC of float64 arrays [samples], whatever their order; NaN where all labels are the same.

    Where all weights are whole numbers, so are all sums, and it is exact.
    """
    found, _ = grouped_aucs(scores, labels, weights, np.zeros(len(scores)))
    return float(found[0])


def grouped_aucs(
    scores: np.ndarray, labels: np.ndarray, weights: np.ndarray, groups: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The AUC of each group of samples, float64 [groups], NaN where all its labels are the same; and its weights' sum.

    Where all weights are whole numbers, so are all sums, and it is exact.
    """
    # A sum of weights depends on their order, so it is a fixed one, whatever the order of the samples.
    order = np.lexsort((weights, labels, scores, groups))
    scores, groups = scores[order], groups[order]
    yes = np.where(labels[order] > 0, weights[order], 0.0)
    no = weights[order] - yes
    if (weights % 1 == 0).all() and weights.sum() < 2**31:
        yes, no = yes.astype(np.int64), no.astype(np.int64)
    new_group = np.diff(groups, prepend=np.nan) != 0
    # Samples of one group with one score are a run: ties count half among themselves.
    runs = np.flatnonzero(new_group | (np.diff(scores, prepend=np.nan) != 0))
    yes, no = np.add.reduceat(yes, runs), np.add.reduceat(no, runs)
    starts = np.flatnonzero(new_group[runs])
    before = np.cumsum(no) - no
    below = before - np.repeat(before[starts], np.diff(np.append(starts, len(runs))))
    right = np.add.reduceat(yes * (2 * below + no), starts)
    yes, no = np.add.reduceat(yes, starts), np.add.reduceat(no, starts)
    pairs = 2 * yes * no
    with np.errstate(invalid="ignore"):
        return np.where(pairs > 0, right / pairs, np.nan), (yes + no).astype(np.float64)


def ordered_pairs(
    scores: np.ndarray, labels: np.ndarray, groups: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each group of samples, int64 [groups] in the groups' order: twice the pairs with different labels that are
    scored in the labels' order, a tie being half of one; twice the pairs with different labels; and its samples. All
    are whole numbers, so they are exact, whatever the order of the samples, float64 [samples]."""
    groups = np.unique(groups, return_inverse=True)[1].astype(np.int64)
    samples = np.bincount(groups)
    pairs = samples * (samples - 1) // 2 - _equal_pairs(groups, labels)
    ties = _equal_pairs(groups, scores) - _equal_pairs(groups, scores, labels)
    # Of equal labels the higher score comes first, so that no such pair ascends.
    order = np.lexsort((-scores, labels, groups))
    return 2 * _ascents(scores[order], groups[order]) + ties, 2 * pairs, samples


def _equal_pairs(groups: np.ndarray, *columns: np.ndarray) -> np.ndarray:
    """How many pairs of rows of each group are equal in all columns, int64 [groups]."""
    order = np.lexsort((*columns, groups))
    differs = np.zeros(len(order), bool)
    for column in (groups, *columns):
        differs |= np.diff(column[order], prepend=np.nan) != 0
    runs = np.flatnonzero(differs)
    counts = np.diff(np.append(runs, len(order)))
    return _summed(counts * (counts - 1) // 2, groups[order][runs], int(groups.max()) + 1)


def _ascents(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """How many pairs of each group ascend strictly, int64 [groups], counted as a merge sort does: level by level, half
    against half. Groups, int64 from 0 on, come one after the other."""
    numbers = np.unique(values, return_inverse=True)[1].astype(np.int64)
    count, size = len(values), 1
    # A later group's values are below all of an earlier one's, so that no pair of two groups ascends.
    ranks = numbers - groups * (int(numbers.max()) + 1)
    found = np.zeros(int(groups.max()) + 1, np.int64)
    places = np.arange(count)
    while size < count:
        # In each block of two halves: for each value of the second half, those of the first that are smaller.
        blocks, second = places // (2 * size), (places // size) % 2 == 1
        # Of equal values the second half's come first: equal ones are not counted.
        order = np.lexsort((~second, ranks, blocks))
        ranks, groups, second = ranks[order], groups[order], second[order]
        before = np.cumsum(~second)
        start = blocks * size  # first halves of earlier blocks, which are full
        found += _summed((before - start)[second], groups[second], len(found))
        size *= 2
    return found


def _summed(counts: np.ndarray, groups: np.ndarray, number: int) -> np.ndarray:
    """Whole numbers added up by group, int64 [number]."""
    found = np.zeros(number, np.int64)
    np.add.at(found, groups, counts)
    return found


def _probabilities(logits: np.ndarray) -> np.ndarray:
    """Of logits, float64 [samples]."""
    return np.exp(-np.logaddexp(0, -logits.astype(np.float64)))


def _shares(logits: np.ndarray) -> np.ndarray:
    """Of logits [samples, classes], float64."""
    away = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return away / away.sum(axis=1, keepdims=True)
