"""A task of a user's own whose metrics are torchmetrics', and metrics that a recipe may name."""

import torch
import torchmetrics
import torchmetrics.metric
from torch import nn
from torchmetrics.classification import BinaryAUROC, BinaryF1Score, MulticlassAccuracy
from torchmetrics.regression import PearsonCorrCoef

import drivetrain


def _refuse(*arguments, **others):
    raise AssertionError("torchmetrics talks to other processes by itself")


torchmetrics.metric.gather_all_tensors = _refuse


class Spots(torch.utils.data.Dataset):
    """Points of a plane, and which side they are on; some are on the wrong one."""

    def __init__(self, count: int = 60):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        point = torch.randn(2, generator=torch.Generator().manual_seed(index))
        return point, int((point.sum() > 0) ^ (index % 7 == 0))


class Sides(drivetrain.Task):
    """Feeds what a recipe names, and has none of its own but the loss."""

    def networks(self):
        return {"model": nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.1), nn.Linear(4, 2))}

    def loss(self, nets, batch):
        return nn.functional.cross_entropy(nets["model"](batch[0]), batch[1])

    def evaluate(self, nets, batch, metrics):
        super().evaluate(nets, batch, metrics)
        return nets["model"](batch[0]).argmax(-1), batch[1]


class Logits(Sides):
    def evaluate(self, nets, batch, metrics):
        drivetrain.Task.evaluate(self, nets, batch, metrics)
        return nets["model"](batch[0]), batch[1]


class Silent(Sides):
    def evaluate(self, nets, batch, metrics):
        super().evaluate(nets, batch, metrics)


class Bare(Sides):
    def evaluate(self, nets, batch, metrics):
        return super().evaluate(nets, batch, metrics)[0]


class Unwritten(Sides):
    evaluate = drivetrain.Task.evaluate


class Filling(Sides):
    """Fills torchmetrics' by itself: sums, lists, states that are stacked, a collection, one that is called."""

    def __init__(self, average: str = "macro"):
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


class Hidden(Sides):
    """Holds nothing that could be merged."""

    def metrics(self):
        return {"loss": drivetrain.Mean(), "hidden": Unmergeable()}


class Unmergeable:
    def update(self, predicted, sides): ...

    def compute(self):
        return 1.0


class Right:
    """A metric of one's own, without torchmetrics."""

    def __init__(self, scale: float = 1.0):
        self.scale, self.right, self.count = scale, 0, 0

    def update(self, predicted, sides):
        self.right += int((predicted == sides).sum())
        self.count += len(sides)

    def state(self):
        return [self.right, self.count]

    def merge(self, state):
        self.right += state[0]
        self.count += state[1]

    def value(self):
        return self.scale * self.right / max(1, self.count)


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
