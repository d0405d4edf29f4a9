"""The GPT of the arguments as the shipped decoder."""

from __future__ import annotations

import re

from drivetrain.spec.importing.findings import Gap
from drivetrain.spec.importing.megatron.table import Needed, number
from drivetrain.spec.importing.rules import ABSENT, Key, Keys, Lost, Spare, To, whole

_LAYERS: Key = ("--num-layers",)
_WIDTH: Key = ("--hidden-size",)
_HEADS: Key = ("--num-attention-heads",)
_CONTEXT: Key = ("--seq-length",)
_HIDDEN: Key = ("--ffn-hidden-size",)
_GROUPS: Key = ("--num-query-groups",)
_ROPE: Key = ("--position-embedding-type",)
_EXPERTS: Key = ("--num-experts",)
_SHARED: Key = ("--moe-shared-expert-intermediate-size",)
_FREQUENCY: Key = ("--moe-layer-freq",)
_HEAD_SIZE = 128  # features of a head where the width is not said
_FREQUENCY_TEXT = re.compile(r"\(?\[0\]\s*\*\s*(\d+)\s*\+\s*\[1\]\s*\*\s*\d+\)?")


def take_model(keys: Keys) -> None:
    """`task`: sizes, what is tied, and experts."""
    keys.take(_LAYERS, "task.kind", "language_model", "the decoder of GPT and Llama")
    heads = keys.whole(_HEADS) or 1
    Needed("task.model.depth", "how many layers", 2).apply(keys, _LAYERS)
    Needed("task.model.width", "features of a position", _HEAD_SIZE * heads).apply(keys, _WIDTH)
    Needed("task.model.heads", "how many heads", 1).apply(keys, _HEADS)
    Needed("task.model.context", "tokens in a sample", 128).apply(keys, _CONTEXT)
    Spare("rotary positions have no table").apply(keys, ("--max-position-embeddings",))
    _take_hidden(keys)
    _take_heads(keys)
    _take_positions(keys)
    _take_vocabulary(keys)
    untied: Key = ("--untie-embeddings-and-output-weights",)
    keys.take(untied, "task.model.tied", not keys.flag(untied))
    if keys.value(_EXPERTS) is not ABSENT:
        _take_experts(keys)


def _take_hidden(keys: Keys) -> None:
    width = keys.whole(_WIDTH)
    if keys.value(_HIDDEN) is not ABSENT:
        To("task.model.hidden", 64, whole, auto="features inside an MLP").apply(keys, _HIDDEN)
    elif width is not None:
        gated = keys.flag(("--swiglu",))
        size = 4 * width * 2 // 3 // 64 * 64 if gated else 4 * width
        keys.take(_HIDDEN, "task.model.hidden", size, "4 x hidden-size, with --swiglu two thirds of that")


def _take_heads(keys: Keys) -> None:
    grouped = keys.flag(("--group-query-attention",))
    if grouped:
        keys.spare(("--group-query-attention",), "num-query-groups says how many")
        To("task.model.kv_heads", 1, whole, auto="key and value heads").apply(keys, _GROUPS)
    else:
        Spare("--group-query-attention is not given").apply(keys, _GROUPS)
    size, heads, width = (keys.whole(key) for key in (("--kv-channels",), _HEADS, _WIDTH))
    if keys.value(("--kv-channels",)) is ABSENT:
        return
    if size is None or heads is None or width is None or size * heads == width:
        keys.spare(("--kv-channels",), "a head has width / heads features")
    else:
        keys.lose(("--kv-channels",), f"a head has width / heads features, {width // heads}")


def _take_positions(keys: Keys) -> None:
    old: Key = ("--use-rotary-position-embeddings",)
    Spare("positions are rotary").apply(keys, old)
    if keys.value(old) is ABSENT:
        Lost("positions are rotary", off=("rope",), default="learned_absolute").apply(keys, _ROPE)
    else:
        Spare("positions are rotary").apply(keys, _ROPE)


def _take_vocabulary(keys: Keys) -> None:
    padded: Key = ("--padded-vocab-size",)
    key = padded if keys.given(padded) else ("--vocab-size",)
    Spare("tables are as large as the vocabulary, not padded").apply(keys, ("--make-vocab-size-divisible-by",))
    if keys.value(key) is ABSENT:
        what = "token ids of the tokenizer that prepared the data"
        keys.findings.gaps.append(Gap(("task", "model", "vocabulary"), what, 2**15))
        return
    To("task.model.vocabulary", 2**15, whole, auto="token ids of the tokenizer").apply(keys, key)
    if key == padded:
        Spare("--padded-vocab-size says how large tables are").apply(keys, ("--vocab-size",))


def _take_experts(keys: Keys) -> None:
    to = "task.model.experts"
    Needed(f"{to}.count", "how many experts a layer has", 8).apply(keys, _EXPERTS)
    To(f"{to}.top_k", 2, whole).apply(keys, ("--moe-router-topk",))
    hidden = keys.whole(("--moe-ffn-hidden-size",)) or keys.whole(_HIDDEN)
    if hidden is not None:
        keys.take(("--moe-ffn-hidden-size",), f"{to}.hidden", hidden)
    _take_shared(keys, hidden)
    _take_dense(keys)
    To(f"{to}.scores", "softmax", str).apply(keys, ("--moe-router-score-function",))
    To(f"{to}.capacity", convert=number).apply(keys, ("--moe-expert-capacity-factor",))
    kind, weight = ("--moe-router-load-balancing-type",), ("--moe-aux-loss-coeff",)
    named = keys.value(kind)
    if named in (ABSENT, "aux_loss", "seq_aux_loss"):
        Spare("the loss is by sample").apply(keys, kind)
        To(f"{to}.balance.loss", 0.0, number, "times what is 1 where all have as much").apply(keys, weight)
    else:
        Lost("experts are balanced by a loss or by biases", off=("none",)).apply(keys, kind)
        Spare("there is no such loss").apply(keys, weight)
    biased: Key = ("--moe-router-enable-expert-bias",)
    if keys.flag(biased):
        keys.spare(biased, "moe-router-bias-update-rate says by how much")
        To(f"{to}.balance.rate", 1e-3, number).apply(keys, ("--moe-router-bias-update-rate",))
    else:
        keys.take(biased, f"{to}.balance.rate", 0.0, "no biases")


def _take_shared(keys: Keys, hidden: int | None) -> None:
    size = keys.whole(_SHARED)
    if size is None or hidden is None:
        return
    if size % hidden:
        keys.lose(_SHARED, f"is no multiple of an expert's features, {hidden}")
    else:
        keys.take(_SHARED, "task.model.experts.shared", size // hidden, f"{size} / {hidden}")


def _take_dense(keys: Keys) -> None:
    value = keys.value(_FREQUENCY)
    if value in (ABSENT, 1):
        Spare("every layer has experts").apply(keys, _FREQUENCY)
    elif found := _FREQUENCY_TEXT.fullmatch(str(value)):
        keys.take(_FREQUENCY, "task.model.experts.dense", int(found.group(1)), "layers without experts come first")
    else:
        keys.lose(_FREQUENCY, "layers without experts come first")
