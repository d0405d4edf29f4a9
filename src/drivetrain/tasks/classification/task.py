"""Classification and regression of texts by a model of `transformers`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drivetrain.checkpoint.export import Exported
from drivetrain.data.source import Source
from drivetrain.loop.metrics import Metric
from drivetrain.loop.task import Part, Task
from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.classification.glue import BENCHMARKS
from drivetrain.tasks.classification.metrics import build_metrics
from drivetrain.tasks.classification.models import adapters, build_model, merged, open_tokenizer
from drivetrain.tasks.classification.recipe import Classification
from drivetrain.tasks.classification.texts import UNLABELLED, Reading, label_names, tokenized

Batch = Mapping[str, Tensor]
"""`input_ids` and `attention_mask`, int64 [samples, tokens], perhaps `token_type_ids`; `labels` [samples], int64
classes or float32 scores; `rows` [samples], the numbers of the rows."""
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class ClassificationTask(Task):
    """A text or a pair of texts to a class or a score. The loss is cross-entropy in nats, or the squared error."""

    def __init__(self, settings: Classification) -> None:
        self._settings = settings
        self._benchmark = BENCHMARKS.get(settings.glue or "")
        self._labels = self._benchmark.labels if self._benchmark else settings.labels
        self._regression = settings.regression or (self._benchmark is not None and not self._labels)
        self._turned: frozenset[str] = frozenset()
        self._takes = frozenset(_INPUTS)
        self._config: dict[str, Any] = {}

    @property
    def learned(self) -> dict[str, Any]:
        """The labels, which may come from the training data."""
        return {"labels": list(self._names)}

    def recall(self, learned: Mapping[str, Any]) -> None:
        """The labels of another start of the run."""
        self._labels = tuple(learned["labels"])

    def prepare(self, source: Source, part: Part, *, by_length: bool = False) -> Source:
        """Rows as samples of tokens. Where nothing else says what the labels are, the first training source does."""
        benchmark, settings = self._benchmark, self._settings
        if self._labels is None and not self._regression:
            self._labels = label_names(source, settings.label)
        texts = benchmark.texts if benchmark else settings.texts or ()
        reading = Reading(texts, "label" if benchmark else settings.label, self._names, settings.length)
        return tokenized(source, reading, self._tokenizer, by_length=by_length, unlabelled=part == "test")

    def networks(self) -> dict[str, nn.Module]:
        """The model, as "model"."""
        built = build_model(self._settings, self._names, self._tokenizer)
        self.notes, self._turned = built.notes, built.turned
        self._config, self._takes = built.config, built.takes
        return {"model": built.model}

    def collate(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Samples padded on the right to the longest of them, or to a multiple of the recipe's `multiple`."""
        if "tokens" not in samples[0]:
            cause = "task classification reads what it has tokenized itself"
            raise Failure(Exit.BAD_RECIPE, cause, "use a source of rows")
        unit = self._settings.multiple
        width = -(-max(len(sample["tokens"]) for sample in samples) // unit) * unit
        shape = len(samples), width
        ids, mask = np.full(shape, self._tokenizer.pad_token_id, np.int64), np.zeros(shape, np.int64)
        kinds = None if samples[0]["segments"] is None else np.zeros(shape, np.int64)
        for place, sample in enumerate(samples):
            span = slice(len(sample["tokens"]))
            ids[place, span], mask[place, span] = sample["tokens"], 1
            if kinds is not None:
                kinds[place, span] = sample["segments"]
        labels = np.array([sample["label"] for sample in samples], np.float32 if self._regression else np.int64)
        rows = np.array([sample["row"] for sample in samples], np.int64)
        batch = {"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds, "labels": labels, "rows": rows}
        return {name: torch.from_numpy(part) for name, part in batch.items() if part is not None}

    def loss(self, nets: Mapping[str, nn.Module], batch: Batch) -> Tensor:
        """The mean over samples."""
        return self._loss(self._logits(nets, batch), batch["labels"])

    def metrics(self) -> dict[str, Metric]:
        """The loss, the official metrics, and their mean as `score`."""
        own = ("pearson", "spearman") if self._regression else ("accuracy",)
        return build_metrics(self._benchmark.metrics if self._benchmark else own, max(2, len(self._labels or ())))

    def evaluate(self, nets: Mapping[str, nn.Module], batch: Batch, metrics: Mapping[str, Any]) -> None:
        """Add a batch's labelled samples to every metric but the mean of the others."""
        logits, labels = self._logits(nets, batch), batch["labels"]
        known = ~labels.isnan() if self._regression else labels != UNLABELLED
        count = int(known.sum())
        if not count:
            return
        metrics["loss"].add(float(self._loss(logits[known], labels[known])) * count, count)
        predicted = (logits[:, 0] if self._regression else logits.argmax(-1))[known].cpu().numpy()
        for name in metrics.keys() - {"loss", "score"}:
            metrics[name].add(predicted, labels[known].cpu().numpy())

    def predict(self, nets: Mapping[str, nn.Module], batch: Batch) -> list[dict[str, Any]]:
        """The row's number, its label or score as GLUE's server wants them, and the probability of each label."""
        logits, rows = self._logits(nets, batch).float(), batch["rows"].tolist()
        if self._regression:
            return [{"index": row, "prediction": score} for row, score in zip(rows, logits[:, 0].tolist(), strict=True)]
        names = self._names
        said = [*range(len(names))] if self._benchmark and self._benchmark.numbered else names
        found = zip(rows, logits.argmax(-1).tolist(), logits.softmax(-1).tolist(), strict=True)
        return [
            {"index": row, "prediction": said[best], "probabilities": dict(zip(names, shares, strict=True))}
            for row, best, shares in found
        ]

    def layout(self, network: str) -> Callable[[Mapping[str, Tensor]], Exported]:
        """What `from_pretrained` reads, the tokenizer's files included; adapters as `peft` has them."""
        return self._exported

    def _exported(self, tensors: Mapping[str, Tensor]) -> Exported:
        lora, files = self._settings.lora, self._tokenizer_files()
        if lora is not None and lora.export == "adapters":
            return Exported(*adapters(tensors, self._settings), "adapter_model", "adapter_config", files, marked=False)
        whole = dict(tensors) if lora is None else merged(tensors, lora, self._turned)
        return Exported(whole, self._config, files=files)

    def _tokenizer_files(self) -> dict[str, bytes]:
        with tempfile.TemporaryDirectory() as folder:
            self._tokenizer.save_pretrained(folder)
            return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()}

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self._regression:
            return F.mse_loss(logits[:, 0].float(), labels)
        return F.cross_entropy(logits.float(), labels)

    def _logits(self, nets: Mapping[str, nn.Module], batch: Batch) -> Tensor:
        return nets["model"](**{name: batch[name] for name in _INPUTS if name in batch and name in self._takes}).logits

    @property
    def _names(self) -> tuple[str, ...]:
        """The labels, none for regression. Raises Failure(78) where they are not known yet."""
        if self._regression:
            return ()
        if self._labels is None:
            cause = "task.labels: they come from the training data, and nothing was read of it yet"
            raise Failure(Exit.BAD_RECIPE, cause, "give task.labels")
        return tuple(self._labels)

    @cached_property
    def _tokenizer(self) -> Any:
        return open_tokenizer(self._settings)
