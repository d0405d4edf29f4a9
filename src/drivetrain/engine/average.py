"""Exponential moving averages of weights: what is evaluated and exported in their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from drivetrain.engine.recipe import Average


class Averages:
    """An average of every trainable parameter, in the parameter's own type and place. The rest is the network's own."""

    def __init__(self, settings: Average, networks: Mapping[str, nn.Module]) -> None:
        """They begin at the weights as they are."""
        self.settings = settings
        self._weights: dict[str, nn.Parameter] = {}
        seen: set[int] = set()  # networks may share parameters, which have one average
        for network, module in networks.items():
            for name, parameter in module.named_parameters():
                if parameter.requires_grad and id(parameter) not in seen:
                    self._weights[f"{network}/{name}"] = parameter
                    seen.add(id(parameter))
        self._averages = {name: parameter.detach().clone() for name, parameter in self._weights.items()}

    @torch.no_grad()
    def restart(self) -> None:
        """Begin anew at the weights as they are now."""
        for name, average in self._averages.items():
            average.copy_(self._weights[name])

    def decay(self, step: int) -> float:
        """How much of the average stays in this step: less in the first ones where `warmup` is on."""
        return min(self.settings.decay, (1 + step) / (10 + step)) if self.settings.warmup else self.settings.decay

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the weights that this step has left: average += (1 - decay) * (weight - average)."""
        weights: list[Tensor] = list(self._weights.values())
        torch._foreach_lerp_(list(self._averages.values()), weights, 1.0 - self.decay(step))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The networks hold the averages, as long as this lasts."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for name, weight in self._weights.items():
            weight.data, self._averages[name].data = self._averages[name].data, weight.data

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What a commit keeps."""
        return {f"averages/{name}": average for name, average in self._averages.items()}
