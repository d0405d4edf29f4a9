"""Dynamic loss scaling: half-precision gradients are kept from vanishing, and steps that overflow are left out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from drivetrain.engine.recipe import Scaling


class Scaler:
    """The factor on the loss (Micikevicius et al. 2018, arXiv 1710.03740, section 3.2), on the device.

    It is halved where gradients overflow and doubled after `window` steps without; it is a power of two, so scaling
    changes no bit of a gradient that neither overflows nor vanishes.
    """

    def __init__(self, settings: Scaling, device: torch.device) -> None:
        self.settings = settings
        self.scale = torch.tensor(float(settings.start), device=device)
        self.clean = torch.zeros((), dtype=torch.int64, device=device)

    def unscale(self, gradients: Sequence[Tensor]) -> None:
        """Divide by the scale, in place."""
        if gradients:
            torch._foreach_mul_(list(gradients), 1.0 / self.scale)  # exact: a power of two has an inverse

    def update(self, overflow: Tensor, finite: Tensor) -> None:
        """After a step: whether its gradients overflowed, and whether its losses were finite (bool, 0-d).

        Losses that are not finite tell nothing about the scale.
        """
        # Chosen on the device, so that nothing waits for it; in place, since commits keep these tensors.
        grown = ~overflow & (self.clean + 1 >= self.settings.window)
        lower = (self.scale / 2).clamp(min=self.settings.least)
        higher = (self.scale * 2).clamp(max=self.settings.most)
        scale = torch.where(overflow, lower, torch.where(grown, higher, self.scale))
        clean = torch.where(overflow | grown, 0, self.clean + 1)
        self.scale.copy_(torch.where(finite, scale, self.scale))
        self.clean.copy_(torch.where(finite, clean, self.clean))

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What a commit keeps."""
        return {"scaler/scale": self.scale, "scaler/clean": self.clean}
