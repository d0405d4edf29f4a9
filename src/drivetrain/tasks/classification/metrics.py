"""GLUE's official metrics, as sums over samples or as what those sums are of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from drivetrain.loop.metrics import Mean, Metric


class Accuracy:
    """The share of samples that are of the predicted class."""

    def __init__(self, classes: int) -> None:
        self._right = Mean()

    def add(self, predicted: np.ndarray, true: np.ndarray) -> None:
        """Add samples: classes of int64 [samples] each."""
        self._right.add(float((predicted == true).sum()), len(true))

    def state(self) -> list[float]:
        """How many are right, of how many."""
        return self._right.state()

    def merge(self, state: list[float]) -> None:
        """Add another lane's samples."""
        self._right.merge(state)

    def value(self) -> float:
        """The share; NaN where there are no samples."""
        return self._right.value()


class Confusion:
    """Counts of samples by true and by predicted class."""

    def __init__(self, classes: int) -> None:
        self._counts = np.zeros((classes, classes))

    def add(self, predicted: np.ndarray, true: np.ndarray) -> None:
        """Add samples: classes of int64 [samples] each."""
        # Not `+=` at these places: it would count a pair of classes once, however often it is there.
        np.add.at(self._counts, (true, predicted), 1)

    def state(self) -> list[float]:
        """The counts, row by row."""
        return self._counts.flatten().tolist()

    def merge(self, state: list[float]) -> None:
        """Add another lane's counts."""
        self._counts += np.reshape(state, self._counts.shape)

    def value(self) -> float:
        """What the counts come to; NaN where there are none."""
        if not self._counts.any():
            return math.nan
        return self._of(self._counts)

    def _of(self, counts: np.ndarray) -> float:
        raise NotImplementedError


class F1(Confusion):
    """F1 of class 1: 2 TP / (2 TP + FP + FN); 0 where nothing is of class 1 or said to be."""

    def _of(self, counts: np.ndarray) -> float:
        both = counts[1].sum() + counts[:, 1].sum()
        return float(2 * counts[1, 1] / both) if both else 0.0


class Matthews(Confusion):
    """Matthews' correlation for any number of classes (Gorodkin 2004, "Comparing two K-category assignments by a
    K-category correlation coefficient"); 0 where all samples are of one class or said to be."""

    def _of(self, counts: np.ndarray) -> float:
        total, true, said = counts.sum(), counts.sum(1), counts.sum(0)
        spread = math.sqrt(float(total**2 - (true**2).sum())) * math.sqrt(float(total**2 - (said**2).sum()))
        return float(counts.trace() * total - true @ said) / spread if spread else 0.0


class Pearson:
    """Pearson's correlation. Its sums are of distances from the means, so large scores lose no digits; parts are
    joined as Chan et al. 1979 do ("Updating formulae and a pairwise algorithm for computing sample variances")."""

    def __init__(self) -> None:
        self._count = 0.0
        self._means = np.zeros(2)
        self._products = np.zeros((2, 2))

    def add(self, predicted: np.ndarray, true: np.ndarray) -> None:
        """Add samples: scores of float64 [samples] each."""
        pairs = np.stack([predicted, true]).astype(np.float64)
        if not pairs.size:
            return
        means = pairs.mean(axis=1)
        away = pairs - means[:, None]
        self.merge([pairs.shape[1], *means.tolist(), *(away @ away.T).flatten().tolist()])

    def state(self) -> list[float]:
        """Count, both means, and the four sums of products."""
        return [self._count, *self._means.tolist(), *self._products.flatten().tolist()]

    def merge(self, state: list[float]) -> None:
        """Add another lane's samples."""
        count = self._count + state[0]
        if not count:
            return
        apart = np.array(state[1:3]) - self._means
        self._products += np.reshape(state[3:], (2, 2)) + np.outer(apart, apart) * self._count * state[0] / count
        self._means += apart * state[0] / count
        self._count = count

    def value(self) -> float:
        """The correlation; NaN where one side is all the same."""
        spread = math.sqrt(self._products[0, 0]) * math.sqrt(self._products[1, 1])
        return float(self._products[0, 1]) / spread if spread else math.nan


class Spearman:
    """Spearman's correlation: Pearson's of the ranks, equal scores having their ranks' mean. It keeps every score,
    since ranks are known only once all scores are."""

    def __init__(self) -> None:
        self._pairs: list[float] = []

    def add(self, predicted: np.ndarray, true: np.ndarray) -> None:
        """Add samples: scores of float64 [samples] each."""
        self._pairs += np.stack([predicted, true], axis=1).astype(np.float64).flatten().tolist()

    def state(self) -> list[float]:
        """Predicted and true scores, in turn; as long as the lane has samples."""
        return self._pairs

    def merge(self, state: list[float]) -> None:
        """Add another lane's samples."""
        self._pairs += state

    def value(self) -> float:
        """The correlation; NaN where one side is all the same."""
        correlation = Pearson()
        predicted, true = np.reshape(self._pairs, (-1, 2)).T
        correlation.add(_ranks(predicted), _ranks(true))
        return correlation.value()


class MeanOfMetrics:
    """The mean of other metrics, as GLUE scores a task that has two. It gathers nothing by itself."""

    def __init__(self, parts: Sequence[Metric]) -> None:
        self._parts = list(parts)

    def state(self) -> list[float]:
        """Nothing: the others are merged by themselves."""
        return []

    def merge(self, state: list[float]) -> None:
        """Nothing is to be added."""

    def value(self) -> float:
        """The mean of what the others come to."""
        return sum(part.value() for part in self._parts) / len(self._parts)


def build_metrics(names: Sequence[str], classes: int) -> dict[str, Metric]:
    """The loss, the named metrics for so many classes, and their mean as `score`."""
    made: Mapping[str, Metric] = {name: _build(name, classes) for name in names}
    return {"loss": Mean(), **made, "score": MeanOfMetrics(list(made.values()))}


def _build(name: str, classes: int) -> Metric:
    if name in _CLASSES:
        return _CLASSES[name](classes)
    return {"pearson": Pearson, "spearman": Spearman}[name]()


_CLASSES = {"accuracy": Accuracy, "f1": F1, "matthews": Matthews}


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1 on; equal values have the mean of theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[places]
