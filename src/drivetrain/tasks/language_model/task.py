"""Language modelling: predict the next token of a stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drivetrain.checkpoint.export import Exported
from drivetrain.data.stacked import IGNORED, Stacked, stacked
from drivetrain.data.text_tokens import TextTokens
from drivetrain.engine.losses import Losses
from drivetrain.engine.parallel_plan import ParallelPlan
from drivetrain.loop.gallery import Gallery
from drivetrain.loop.metrics import Mean, Metric
from drivetrain.loop.sampling import Sampling
from drivetrain.loop.task import Task
from drivetrain.plan.flops import flops_per_sample
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.registry import imported
from drivetrain.tasks.language_model.hugging_face import from_layout, has_layout, to_layout, tokenizer_files
from drivetrain.tasks.language_model.llama import Llama, plan_of
from drivetrain.tasks.language_model.recipe import BYTES, LanguageModel
from drivetrain.tasks.language_model.sampling import generate


class Perplexity(Mean):
    """exp of a mean: of nats per token."""

    def value(self) -> float:
        """Infinite where it is beyond the numbers that there are."""
        try:
            return math.exp(super().value())
        except OverflowError:
            return math.inf


class LanguageModelTask(Task):
    """A decoder on windows of tokens. A batch is {"tokens", "targets"}, int64 [samples, context] each.

    Batches of packed documents have "documents" too, where attention keeps within them, and "left_out" [samples], how
    many positions have no target.
    """

    build_on_meta = True
    scores_parts = True

    def __init__(self, settings: LanguageModel) -> None:
        self._settings = settings
        self._model = settings.model
        self.text_tokens: TextTokens | None = None
        """How text becomes tokens, for `generate` and exports, where that is known."""

    @property
    def only_bytes(self) -> bool:
        """Whether tokens are the bytes of the text, whatever sources say."""
        return self._model.vocabulary == BYTES

    def networks(self) -> dict[str, nn.Module]:
        """The decoder, as "model"."""
        model = imported(self._model.factory)(self._model)
        if self._settings.logits_chunk is not None:
            model.head.chunk = self._settings.logits_chunk
        return {"model": model}

    def parallel_plan(self, name: str, network: nn.Module) -> ParallelPlan | None:
        """That of the shipped decoder."""
        return plan_of(self._model) if isinstance(network, Llama) else None

    def collate(self, samples: Sequence[Any]) -> dict[str, Tensor]:
        """Windows of context + 1 tokens: all but the last are read, all but the first predicted.

        Raises Failure(78) where documents are to be kept apart and a user's own source does not tell them.
        """
        if isinstance(samples, Stacked) or isinstance(samples[0], Mapping):
            return _packed(samples, self._settings)
        if self._settings.needs_documents:
            raise _no_documents("arrays of tokens")
        windows = torch.from_numpy(np.asarray(samples).astype(np.int64))
        return {"tokens": windows[:, :-1], "targets": windows[:, 1:]}

    def counts(self, batch: Mapping[str, Tensor]) -> dict[str, int]:
        """Tokens that are predicted."""
        return {"tokens": _predicted(batch)}

    def inputs(self, batch: Mapping[str, Tensor]) -> tuple[Tensor | None, ...]:
        """Tokens, their documents where attention keeps within them, and targets where the network makes the loss."""
        documents = batch.get("documents")
        if self._settings.logits_chunk is not None:
            return batch["tokens"], documents, batch["targets"]
        return (batch["tokens"],) if documents is None else (batch["tokens"], documents)

    def loss_from(self, output: Tensor | tuple[Tensor, Tensor], batch: Mapping[str, Tensor]) -> Losses:
        """Cross-entropy in nats, summed over tokens: of logits [samples, context, vocabulary], or as the network has
        made it. In training also how uneven experts are, where there are some."""
        result, balance = output if isinstance(output, tuple) else (output, None)
        if self._settings.logits_chunk is None:
            logits = result.float().flatten(0, 1)
            result = F.cross_entropy(logits, batch["targets"].flatten(), reduction="sum")
        if balance is None:
            return Losses(loss=(result, "tokens"))
        return Losses(loss=(result, "tokens"), balance=(balance, "samples", self._model.balance_weight))

    def metrics(self) -> dict[str, Metric]:
        """Nats per token, and their exp; for byte models the same in bits per byte."""
        metrics: dict[str, Metric] = {"loss": Mean(), "perplexity": Perplexity()}
        if self.only_bytes:
            metrics["bits_per_byte"] = Mean(scale=1 / math.log(2))
        return metrics

    def evaluate(self, nets: Mapping[str, nn.Module], batch: Mapping[str, Tensor], metrics: Mapping[str, Mean]) -> None:
        """Add the batch's cross-entropy to every metric."""
        losses = self.loss(nets, batch)
        assert isinstance(losses, Losses), "`loss_from` gives some"
        # Counted here: of some positions of a sample nobody has said how many are left out.
        total, count = float(losses["loss"].value), int((batch["targets"] != IGNORED).sum())
        for metric in metrics.values():
            metric.add(total, count)

    def show(self, nets: Mapping[str, nn.Module], batch: Mapping[str, Tensor], gallery: Gallery) -> None:
        """Text that goes on from the recipe's prompt."""
        sample = self._settings.sample
        if not sample.prompt or not sample.tokens:
            return
        prompt = torch.tensor([list(sample.prompt.encode())], device=batch["tokens"].device)
        how = Sampling(tokens=sample.tokens, temperature=sample.temperature)
        tokens = generate(_decoder(nets), prompt, how)
        gallery.text("sample", bytes(tokens[0].tolist()).decode(errors="replace"))

    def generate(self, nets: Mapping[str, nn.Module], prompt: str, how: Sampling) -> dict[str, Any]:
        """`text`, its `tokens`, and whether the document has `ended`. Raises Failure: 64 for a prompt without a token,
        65 for one with a token beyond the vocabulary."""
        assert self.text_tokens is not None, "whoever generates sets it"
        tokenizer, end = self.text_tokens.tokenizer, self.text_tokens.end
        given = tokenizer.encode([prompt.encode()])[0].astype(np.int64)
        if not len(given):
            raise Failure(Exit.BAD_COMMAND, f"the prompt {prompt!r} has no token", "give a word or more")
        if given.max() >= self._model.vocabulary:
            cause = f"token {given.max()} of the prompt is beyond the vocabulary of {self._model.vocabulary}"
            raise Failure(Exit.BAD_DATA, cause, "name the tokenizer of the training data: --tokenizer")
        device = next(nets["model"].parameters()).device
        prompted = torch.from_numpy(given).unsqueeze(0).to(device)
        made = generate(_decoder(nets), prompted, how, end)[0].cpu().numpy()
        following = made[len(given) :]
        ended = end is not None and len(following) > 0 and int(following[-1]) == end
        shown = made[: len(made) - ended]
        text, begun = tokenizer.decode(shown), tokenizer.decode(given)
        # Decoded together: a word may begin otherwise than it goes on. Half a character of the prompt is no prefix.
        text = text.removeprefix(begun) if text.startswith(begun) else tokenizer.decode(shown[len(given) :])
        return {"text": text, "tokens": following.tolist(), "ended": ended}

    def flops_per_sample(self) -> float:
        """Those of the decoder's matrix products, as if a sample were one document."""
        return float(flops_per_sample(self._model.shape))

    def layout(self, network: str) -> Callable[[Mapping[str, Tensor]], Exported] | None:
        """Hugging Face's layout, with the tokenizer's files where it is known. None for experts that route as those of
        no class there."""
        if not has_layout(self._model):
            return None

        def exported(tensors: Mapping[str, Tensor]) -> Exported:
            renamed, config = to_layout(tensors, self._model)
            if self.text_tokens is None:
                return Exported(renamed, config)
            files = tokenizer_files(self.text_tokens, self._model.context)
            return Exported(renamed, config | {"eos_token_id": self.text_tokens.end}, files=files)

        return exported

    def published_layout(self, network: str) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]] | None:
        """From Hugging Face's layout, or as it is."""
        return lambda tensors: from_layout(tensors, self._model)


def _packed(samples: Sequence[Mapping[str, np.ndarray]], settings: LanguageModel) -> dict[str, Tensor]:
    """Samples of packed documents; where nothing is to be predicted, the target is `IGNORED`."""
    if settings.needs_documents and "documents" not in samples[0]:
        raise _no_documents("samples without the key 'documents'")
    names = ["tokens", "targets", "mask"]
    if settings.needs_documents:
        names.append("documents")
    parts = {name: stacked(samples, name) for name in names}
    predicted, targets = parts["mask"].astype(bool), parts["targets"]
    # `documents` has context + 1 places: i + 1 is that of the target of input i.
    if settings.documents.loss == "within":
        predicted = predicted & (parts["documents"][:, 1:] == parts["documents"][:, :-1])
        targets = np.where(predicted, targets, IGNORED)
    batch = {"tokens": parts["tokens"], "targets": targets, "left_out": (~predicted).sum(axis=1)}
    if settings.documents.attention == "within":
        batch["documents"] = np.ascontiguousarray(parts["documents"][:, :-1])
    return {name: torch.from_numpy(part) for name, part in batch.items()}


def _decoder(nets: Mapping[str, nn.Module]) -> Llama:
    model = nets["model"]
    assert isinstance(model, Llama), "the recipe knows no other"
    return model


def _predicted(batch: Mapping[str, Tensor]) -> int:
    """Tokens that are targets."""
    count = batch["targets"].numel()
    if "left_out" in batch:
        count -= int(batch["left_out"].sum())
    return count


def _no_documents(what: str) -> Failure:
    return Failure(
        Exit.BAD_RECIPE,
        f"task.documents keeps documents apart, but a source gives {what}",
        "give `documents` [context + 1] with each sample, or leave task.documents out",
    )
