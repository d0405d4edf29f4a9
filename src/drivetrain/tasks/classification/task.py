"""Classification and regression of texts by a model of `transformers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
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
from drivetrain.tasks.classification.models import (
    adapters,
    build_model,
    merged,
    open_tokenizer,
    tokenizer_files,
)
from drivetrain.tasks.classification.recipe import Classification
from drivetrain.tasks.classification.texts import (
    UNLABELLED,
    Reading,
    TokenizedWhenRead,
    label_names,
    tokenized,
)

Batch = Mapping[str, Tensor]
"""`input_ids` and `attention_mask`, int64 [samples, tokens], perhaps `token_type_ids`; `labels` [samples], int64
classes or float32 scores; `rows` [samples], the numbers of the rows."""
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class ClassificationTask(Task):
    """A text or a pair of texts to a class or a score. The loss is cross-entropy in nats, or the squared error."""

    def __init__(self, settings: Classification) -> None:
        self._settings = settings
        self._benchmark = BENCHMARKS.get(settings.glue or "")
        self._labels, self._regression = settings.labels, settings.regression
        if self._benchmark is not None:
            self._labels, self._regression = self._benchmark.labels, not self._benchmark.labels
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
        texts, label = settings.texts or (), settings.label
        if benchmark is not None:
            texts, label = benchmark.texts, "label"
        reading = Reading(texts, label, self._names, settings.length)
        if part == "predict":
            return TokenizedWhenRead(source, reading, self._tokenizer)
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
        batch = _padded(samples, self._tokenizer.pad_token_id, self._settings.multiple)
        kind = np.float32 if self._regression else np.int64
        batch["labels"] = np.array([sample["label"] for sample in samples], kind)
        batch["rows"] = np.array([sample["row"] for sample in samples], np.int64)
        return {name: torch.from_numpy(part) for name, part in batch.items()}

    def loss(self, nets: Mapping[str, nn.Module], batch: Batch) -> Tensor:
        """The mean over samples."""
        return self._loss(self._logits(nets, batch), batch["labels"])

    def metrics(self) -> dict[str, Metric]:
        """The loss, the official metrics, and their mean as `score`."""
        own = ("pearson", "spearman") if self._regression else ("accuracy",)
        return build_metrics(self._benchmark.metrics if self._benchmark else own, max(2, len(self._labels or ())))

    def evaluate(
        self, nets: Mapping[str, nn.Module], batch: Batch, metrics: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor] | tuple[()]:
        """Add a batch's labelled samples to every metric but the mean of the others. Returns their logits, [samples,
        labels], or of a regression what it predicts, [samples]; and their labels."""
        logits, labels = self._logits(nets, batch), batch["labels"]
        known = ~labels.isnan() if self._regression else labels != UNLABELLED
        count = int(known.sum())
        if not count:
            return ()
        metrics["loss"].add(float(self._loss(logits[known], labels[known])) * count, count)
        logits = logits[:, 0] if self._regression else logits
        predicted = logits if self._regression else logits.argmax(-1)
        predicted = predicted[known].cpu().numpy()
        # `score` reads the others, and gathers nothing.
        for name in metrics.keys() - {"loss", "score"}:
            metrics[name].add(predicted, labels[known].cpu().numpy())
        return logits[known], labels[known]

    def predict(self, nets: Mapping[str, nn.Module], batch: Batch) -> list[dict[str, Any]]:
        """The row's number, its label or score as GLUE's server wants them, and the probability of each label."""
        logits, rows = self._logits(nets, batch).float(), batch["rows"].tolist()
        if self._regression:
            scores = zip(rows, logits[:, 0].tolist(), strict=True)
            return [{"index": row, "prediction": score} for row, score in scores]
        names = said = self._names
        if self._benchmark is not None and self._benchmark.numbered:
            said = range(len(names))
        found = []
        for row, best, shares in zip(rows, logits.argmax(-1).tolist(), logits.softmax(-1).tolist(), strict=True):
            probabilities = dict(zip(names, shares, strict=True))
            found.append({"index": row, "prediction": said[best], "probabilities": probabilities})
        return found

    def layout(self, network: str) -> Callable[[Mapping[str, Tensor]], Exported]:
        """What `from_pretrained` reads, the tokenizer's files included; adapters as `peft` has them."""

        def exported(tensors: Mapping[str, Tensor]) -> Exported:
            lora, files = self._settings.lora, tokenizer_files(self._tokenizer)
            if lora is None:
                return Exported(dict(tensors), self._config, files=files)
            if lora.export == "merged":
                return Exported(merged(tensors, lora, self._turned), self._config, files=files)
            found, config = adapters(tensors, self._settings)
            return Exported(found, config, "adapter_model", "adapter_config", files, marked=False)

        return exported

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self._regression:
            return F.mse_loss(logits[:, 0].float(), labels)
        return F.cross_entropy(logits.float(), labels)

    def _logits(self, nets: Mapping[str, nn.Module], batch: Batch) -> Tensor:
        inputs = {name: batch[name] for name in _INPUTS if name in batch and name in self._takes}
        return nets["model"](**inputs).logits

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


def _padded(samples: Sequence[Mapping[str, Any]], pad: int, multiple: int) -> dict[str, np.ndarray]:
    """Tokens of samples, int64 [samples, longest], the longest rounded up to a multiple."""
    longest = max(len(sample["tokens"]) for sample in samples)
    shape = len(samples), -(-longest // multiple) * multiple
    batch = {"input_ids": np.full(shape, pad, np.int64), "attention_mask": np.zeros(shape, np.int64)}
    # Either all samples of a source have segments or none: its tokenizer decides.
    if samples[0]["segments"] is not None:
        batch["token_type_ids"] = np.zeros(shape, np.int64)
    for place, sample in enumerate(samples):
        span = slice(len(sample["tokens"]))
        batch["input_ids"][place, span] = sample["tokens"]
        batch["attention_mask"][place, span] = 1
        if "token_type_ids" in batch:
            batch["token_type_ids"][place, span] = sample["segments"]
    return batch
