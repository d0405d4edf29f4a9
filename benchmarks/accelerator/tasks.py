"""Tasks that checks train: a decoder whose process may be killed, one whose gradients overflow, and kernels."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from drivetrain.tasks.language_model.recipe import LanguageModel, Llama
from drivetrain.tasks.language_model.task import LanguageModelTask

KILL = "ACCELERATOR_KILL"
"""The environment's word for which rank is killed in which step, as JSON, once: while the marker is there."""


class Decoder(LanguageModelTask):
    """The shipped decoder. Its process ends by SIGKILL where the environment says so."""

    def __init__(self, model: dict[str, Any]) -> None:
        super().__init__(LanguageModel(model=Llama(**model)))

    def update(self, step) -> None:
        if asked := os.environ.get(KILL):
            told = json.loads(asked)
            rank = dist.get_rank() if dist.is_initialized() else 0
            if step.index == told["step"] and rank == told["rank"] and Path(told["marker"]).exists():
                Path(told["marker"]).unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        super().update(step)


class Norm:
    """RMSNorm by torch's fused function, as a kernel for `kernels:`."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.module.normalized_shape, self.module.weight, self.module.eps)


class WrongNorm(Norm):
    """One that is a percent off."""

    def forward(self, x: Tensor) -> Tensor:
        return 1.01 * super().forward(x)
