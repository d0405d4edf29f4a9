"""Language modelling: predict the next token of a stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drivetrain.engine.losses import Losses
from drivetrain.loop.gallery import Gallery
from drivetrain.loop.metrics import Mean, Metric
from drivetrain.loop.task import Task
from drivetrain.spec.registry import imported
from drivetrain.tasks.language_model.hugging_face import llama_layout
from drivetrain.tasks.language_model.recipe import LanguageModel
from drivetrain.tasks.language_model.sampling import generate

_BYTES = 256


class LanguageModelTask(Task):
    """A decoder on windows of tokens. A batch is {"tokens", "targets"}, int64 [samples, context] each."""

    def __init__(self, settings: LanguageModel) -> None:
        self._settings = settings
        self._model = settings.model

    def networks(self) -> dict[str, nn.Module]:
        """The decoder, as "model"."""
        return {"model": imported(self._model.factory)(self._model)}

    def collate(self, samples: Sequence[Any]) -> dict[str, Tensor]:
        """Windows of context + 1 tokens: all but the last are read, all but the first predicted.

        Samples of packed documents are mappings already; what is padded there is no target.
        """
        if isinstance(samples[0], Mapping):
            return {
                name: torch.from_numpy(np.stack([sample[name] for sample in samples])) for name in ("tokens", "targets")
            } | {"padded": torch.tensor([int((~sample["mask"].astype(bool)).sum()) for sample in samples])}
        windows = torch.from_numpy(np.asarray(samples).astype(np.int64))
        return {"tokens": windows[:, :-1], "targets": windows[:, 1:]}

    def counts(self, batch: Mapping[str, Tensor]) -> dict[str, int]:
        """Tokens that are predicted."""
        return {"tokens": _predicted(batch)}

    def loss(self, nets: Mapping[str, nn.Module], batch: Mapping[str, Tensor]) -> Losses:
        """Cross-entropy in nats, summed over tokens."""
        logits = nets["model"](batch["tokens"]).float()
        total = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum")
        return Losses(loss=(total, "tokens"))

    def metrics(self) -> dict[str, Metric]:
        """Nats per token; for byte models the same in bits per byte."""
        metrics: dict[str, Metric] = {"loss": Mean()}
        if self._model.vocabulary == _BYTES:
            metrics["bits_per_byte"] = Mean(scale=1 / math.log(2))
        return metrics

    def evaluate(self, nets: Mapping[str, nn.Module], batch: Mapping[str, Tensor], metrics: Mapping[str, Mean]) -> None:
        """Add the batch's cross-entropy to every metric."""
        total, count = float(self.loss(nets, batch)["loss"].value), _predicted(batch)
        for metric in metrics.values():
            metric.add(total, count)

    def show(self, nets: Mapping[str, nn.Module], batch: Mapping[str, Tensor], gallery: Gallery) -> None:
        """Text that goes on from the recipe's prompt (byte models only: other vocabularies have no decoder here)."""
        sample = self._settings.sample
        if not sample.prompt or not sample.tokens or self._model.vocabulary != _BYTES:
            return
        prompt = torch.tensor([list(sample.prompt.encode())], device=batch["tokens"].device)
        tokens = generate(nets["model"], prompt, sample.tokens, self._model.context, sample.temperature)
        gallery.text("sample", bytes(tokens[0].tolist()).decode(errors="replace"))

    def layout(self, network: str) -> Callable[[Mapping[str, Tensor]], tuple[dict[str, Tensor], dict]]:
        """Hugging Face's Llama layout."""
        return lambda tensors: llama_layout(tensors, self._model)


def _predicted(batch: Mapping[str, Tensor]) -> int:
    """Tokens that are targets."""
    padded = int(batch["padded"].sum()) if "padded" in batch else 0
    return batch["targets"].numel() - padded
