"""A task of a user's own whose metrics are torchmetrics', and metrics that a recipe may name."""

import torch
import torchmetrics
import torchmetrics.metric
from mine_points import Points, Right, Told
from torch import nn
from torchmetrics.classification import BinaryAUROC, BinaryF1Score, MulticlassAccuracy
from torchmetrics.regression import PearsonCorrCoef

import drivetrain


def _refuse(*arguments, **others):
    raise AssertionError("torchmetrics talks to other processes by itself")


torchmetrics.metric.gather_all_tensors = _refuse


class Spots(Points):
    """Some are on the wrong side."""

    def __init__(self, count: int = 60):
        super().__init__(count)

    def __getitem__(self, index):
        point, side = super().__getitem__(index)
        return point, side ^ (index % 7 == 0)


class Logits(Told):
    def evaluate(self, nets, batch, metrics):
        drivetrain.Task.evaluate(self, nets, batch, metrics)
        return nets["model"](batch[0]), batch[1]


class Silent(Told):
    def evaluate(self, nets, batch, metrics):
        super().evaluate(nets, batch, metrics)


class Bare(Told):
    def evaluate(self, nets, batch, metrics):
        return super().evaluate(nets, batch, metrics)[0]


class Unwritten(Told):
    evaluate = drivetrain.Task.evaluate


class Filling(Told):
    """Fills torchmetrics' by itself: sums, lists, states that are stacked, a collection, one that is called."""

    def __init__(self, average: str = "macro"):
        super().__init__()
        self.average = average

    def metrics(self):
        both = torchmetrics.MetricCollection({"f1": BinaryF1Score(), "auroc": BinaryAUROC()})
        return {
            "loss": drivetrain.Mean(),
            "f1": BinaryF1Score(),
            "auroc": BinaryAUROC(),
            "pearson": PearsonCorrCoef(),
            "mean": torchmetrics.MeanMetric(),
            "called": torchmetrics.MaxMetric(),
            "accuracy": MulticlassAccuracy(2, average=self.average),
            "both": both,
        }

    def evaluate(self, nets, batch, metrics):
        points, sides = batch
        logits = nets["model"](points)
        losses = nn.functional.cross_entropy(logits, sides, reduction="none")
        shares = logits.softmax(-1)[:, 1]
        metrics["loss"].add(float(losses.sum()), len(losses))
        metrics["f1"].update(logits.argmax(-1), sides)
        metrics["auroc"].update(shares, sides)
        metrics["pearson"].update(shares, sides.float())
        metrics["mean"].update(losses)
        metrics["called"](losses)
        metrics["accuracy"].update(logits, sides)
        metrics["both"].update(shares, sides)


class Hidden(Told):
    """Holds nothing that could be merged."""

    def metrics(self):
        return {"loss": drivetrain.Mean(), "hidden": Unmergeable()}


class Unmergeable:
    def update(self, predicted, sides): ...

    def compute(self):
        return 1.0


class Split(Right):
    """Several numbers by name."""

    def value(self):
        return {"share": super().value(), "count": {"all": self.count}}


class Falling(torchmetrics.Metric):
    """Less right each time that a process is asked: whoever follows it never gets better."""

    asked = 0

    def __init__(self):
        super().__init__()
        self.add_state("seen", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, predicted, sides):
        self.seen += len(sides)

    def compute(self):
        type(self).asked += 1
        return -type(self).asked
