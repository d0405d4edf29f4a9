"""What the tasks on speech have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from drivetrain.loop.metrics import Mean, Metric
from drivetrain.loop.task import Task
from drivetrain.tasks.speech.perceptual import add_scores, require_scores
from drivetrain.tasks.speech.recipe import Listening

Networks = Mapping[str, nn.Module]
Batch = Mapping[str, Tensor]
"""Sounds by name, float32 [samples of the batch, samples of sound] each."""
Chosen = TypeVar("Chosen", bound=Listening)


class Listener(Task, Generic[Chosen]):
    """A task whose networks make sound of sound."""

    def __init__(self, settings: Chosen) -> None:
        """Raises Failure(66) where a library that the settings' scores need is missing."""
        require_scores(settings.scores)
        self._settings = settings
        self._rate = settings.model.rate

    @property
    def shown(self) -> int:
        """How many of the first validation samples `show` gets."""
        return self._settings.shown

    def changed(self, nets: Networks, sound: Tensor) -> Tensor:
        """What the networks make of sound [batch, samples]; the same shape."""
        raise NotImplementedError(f"{type(self).__name__}.changed")

    def _means(self, *names: str) -> dict[str, Metric]:
        """A mean for each of these, and for each of the settings' scores."""
        return {name: Mean() for name in (*names, *self._settings.scores)}

    def _add_scores(self, metrics: Mapping[str, Mean], estimate: Tensor, target: Tensor) -> None:
        add_scores(metrics, self._settings.scores, estimate, target, self._rate)


def stacked(samples: Sequence[Mapping[str, np.ndarray]], name: str) -> Tensor:
    """One of the sounds of all samples, float32 [samples of the batch, samples of sound]."""
    return torch.from_numpy(np.stack([sample[name] for sample in samples]))
