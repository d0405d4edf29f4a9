"""What the loss of each label weighs: a fixed number, or what gradients ask for."""

from __future__ import annotations

from drivetrain.spec.importing.easyrec.reader import Reader
from drivetrain.spec.importing.easyrec.tree import Node

_WEIGHTS = ("task", "weights")


class LossWeights:
    """Takes the weights of a model's labels."""

    def __init__(self, reader: Reader, model: Node, labels: int) -> None:
        """`labels` are so many as have a tower."""
        self._reader = reader
        self._least = 0.0
        self._found = bool(model.value("use_pareto_loss_weight")) and labels > 1
        if self._found:
            note = "by the whole batch's gradients over layers and rows; there by those of each process, over layers"
            reader.take(model, "use_pareto_loss_weight", (*_WEIGHTS, "kind"), "pareto", note)
        else:
            reader.spare(model, "use_pareto_loss_weight", "counts where it is true and there are several labels")

    def take(self, tower: Node, label: str) -> None:
        """That of one label."""
        reader, weight = self._reader, tower.value("weight")
        if self._found:
            least = tower.value("pareto_min_loss_weight")
            self._least += least
            if self._least > 1:
                why = f"all labels together weigh 1, and this and those before {self._least:g} at least"
                reader.mistake(tower, "pareto_min_loss_weight", why)
            elif least:
                reader.take(tower, "pareto_min_loss_weight", (*_WEIGHTS, "least", label), least)
            if weight != 1.0:
                why = "task.weights finds what a label weighs; `least` bounds it from below"
                reader.lose(tower, "weight", why)
        elif weight != 1.0:
            reader.take(tower, "weight", ("task", "labels", label, "weight"), weight)
        if not self._found:
            reader.spare(tower, "pareto_min_loss_weight", "counts with use_pareto_loss_weight only")
        reader.used(tower, "weight", "pareto_min_loss_weight")
