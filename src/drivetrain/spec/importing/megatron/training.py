"""Budget, batch, rates, optimizer and precision."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from drivetrain.spec.importing.deepspeed.table import power_of_two
from drivetrain.spec.importing.findings import Gap
from drivetrain.spec.importing.megatron.table import Needed, number
from drivetrain.spec.importing.rules import ABSENT, Key, Keys, Lost, Spare, To, path_of, shown, whole

_STEPS: Key = ("--train-iters",)
_SAMPLES: Key = ("--train-samples",)
_MICRO: Key = ("--micro-batch-size",)
_GLOBAL: Key = ("--global-batch-size",)
_RAMP: Key = ("--step-batch-size-schedule",)
_RATE: Key = ("--lr",)
_LEAST: Key = ("--min-lr",)
_STYLE: Key = ("--lr-decay-style",)
_FRACTION: Key = ("--lr-warmup-fraction",)
_SHAPE: Key = ("--lr-wsd-decay-style",)
_FROM: Key = ("--lr-warmup-init",)
_KINDS = {
    "constant": "constant",
    "linear": "linear",
    "cosine": "cosine",
    "WSD": "wsd",
    "inverse-square-root": "inverse_sqrt",
}
_SHAPES = {"exponential": "exponential", "linear": "linear", "cosine": "cosine", "minus_sqrt": "sqrt"}
_SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_THRESHOLD = re.compile(r"(\d+(?:\.\d+)?)([KMBT]?):(\d+)", re.IGNORECASE)


def take_training(keys: Keys, copies: int | None) -> None:
    """All that moves weights. `copies` are the processes that read samples of their own; None: not known."""
    _take_batch(keys, copies)
    _take_budget(keys)
    _take_rates(keys)
    _take_optimizer(keys)
    _take_precision(keys)
    _take_activations(keys)


def _take_budget(keys: Keys) -> None:
    if keys.value(_STEPS) is not ABSENT and keys.value(_SAMPLES) is not ABSENT:
        keys.mistake(_SAMPLES, "--train-iters is given, too: one of them can be")
    elif keys.value(_SAMPLES) is not ABSENT:
        # The stand-in is larger than any budget, so that no check on lengths trips over it.
        To("budget.samples", 2**40, whole, auto="how many samples").apply(keys, _SAMPLES)
    else:
        Needed("budget.steps", "how many optimizer steps; or --train-samples as budget.samples", 2**40).apply(
            keys, _STEPS
        )


def _take_batch(keys: Keys, copies: int | None) -> None:
    Needed("batch.micro", "samples per forward pass", 1).apply(keys, _MICRO)
    if keys.value(_RAMP) is not ABSENT:
        Spare("the schedule says every size; with both Megatron-LM does not start").apply(keys, _GLOBAL)
        _take_ramp(keys)
        return
    micro = keys.whole(_MICRO)
    if keys.given(_GLOBAL):
        size = keys.whole(_GLOBAL)
        share = (micro or 1) * (copies or 1)
        if size is not None and size % share:
            keys.mistake(_GLOBAL, f"{size} is no multiple of micro-batch-size x data-parallel processes = {share}")
        elif size is not None:
            keys.take(_GLOBAL, "batch.size", size)
    elif keys.value(_GLOBAL) is ABSENT and micro is not None and copies is not None:
        keys.take(_GLOBAL, "batch.size", micro * copies, f"micro-batch-size x {copies} processes")
    else:
        # The stand-in is divided by any usual number of lanes, processes and samples of a micro-batch.
        Needed("batch.size", "samples per optimizer step, over all processes", 2**10 * 9 * 5 * 7).apply(keys, _GLOBAL)


def _take_ramp(keys: Keys) -> None:
    stages = []
    for part in str(keys.value(_RAMP)).split():
        found = _THRESHOLD.fullmatch(part)
        if found is None:
            keys.mistake(_RAMP, f"is such as '0:768 250B:1536', tokens and a size, not {shown(keys.value(_RAMP))}")
            return
        stages.append((int(float(found[1]) * _SUFFIXES[found[2].upper()]), int(found[3])))
    if stages[0][0]:
        keys.mistake(_RAMP, "begins at 0 tokens")
        return
    keys.take(_RAMP, "batch.size", stages[0][1])
    for place, (tokens, size) in enumerate(stages[1:]):
        keys.take(_RAMP, f"batch.ramp.{place}.from.tokens", tokens)
        keys.take(_RAMP, f"batch.ramp.{place}.size", size)


def _take_rates(keys: Keys) -> None:
    Needed("optimizer.lr", "the peak learning rate", 1e-4, number).apply(keys, _RATE)
    kind = _one_of(keys, _STYLE, _KINDS, "linear")
    if kind is None:
        return
    keys.take(_STYLE, "schedule.kind", kind)
    unit, suffix = ("samples", "samples") if keys.value(_SAMPLES) is not ABSENT else ("steps", "iters")
    other = "iters" if suffix == "samples" else "samples"
    for name in ("decay", "warmup", "wsd-decay"):
        wrong: Key = (f"--lr-{name}-{other}",)
        # Megatron-LM refuses it, too.
        if keys.value(wrong) not in (ABSENT, 0):
            keys.mistake(wrong, f"is in {other}, and the run's length is in {unit}")
    length: Key = (f"--lr-decay-{suffix}",)
    if kind in ("constant", "inverse_sqrt"):
        Spare("has no end").apply(keys, length)
    else:
        To(f"schedule.length.{unit}", convert=whole, auto="where the decay ends").apply(keys, length)
    _take_warmup(keys, length, unit, suffix)
    _take_floor(keys, kind)
    if kind == "wsd":
        Needed(f"schedule.decay.{unit}", "how long the decay at the end is", 1).apply(
            keys, (f"--lr-wsd-decay-{suffix}",)
        )
        if shape := _one_of(keys, _SHAPE, _SHAPES, "exponential"):
            keys.take(_SHAPE, "schedule.shape", shape)
    else:
        for name in ("style", "iters", "samples"):
            Spare("is for WSD").apply(keys, (f"--lr-wsd-decay-{name}",))


def _one_of(keys: Keys, key: Key, words: Mapping[str, str], default: str) -> str | None:
    """Our word for one of these; None, and a mistake, where it is another."""
    value = default if keys.value(key) is ABSENT else keys.value(key)
    if isinstance(value, str) and value in words:
        return words[value]
    keys.mistake(key, f"is one of {', '.join(words)}, not {shown(value)}")
    return None


def _take_warmup(keys: Keys, length: Key, unit: str, suffix: str) -> None:
    to, key = f"schedule.warmup.{unit}", (f"--lr-warmup-{suffix}",)
    if keys.value(_FRACTION) is not ABSENT:
        Spare("--lr-warmup-fraction is given").apply(keys, key)
        # Of the decay's length, and of the budget where that is left out, as Megatron-LM has it.
        budget = keys.whole(length) or keys.whole(_SAMPLES if unit == "samples" else _STEPS)
        share = keys.value(_FRACTION)
        if budget is None or not isinstance(share, (int, float)):
            keys.findings.gaps.append(Gap(path_of(to), f"{_FRACTION[0]} {share} of the decay's length", 1))
        elif share:
            keys.take(_FRACTION, to, max(1, round(share * budget)), f"{share:g} x {budget}")
        else:
            keys.spare(_FRACTION, "no warm-up")
    elif keys.value(key) in (ABSENT, 0):
        Spare("no warm-up").apply(keys, key)
        Spare("no warm-up").apply(keys, _FROM)
        return
    else:
        To(to, convert=whole, auto="how long the rate rises").apply(keys, key)
    first, peak = keys.value(_FROM), keys.value(_RATE)
    if isinstance(first, (int, float)) and isinstance(peak, (int, float)) and first and peak:
        keys.take(_FROM, "schedule.warmup_from", first / peak, f"{first:g} / {peak:g}")
    else:
        Spare("it begins at zero").apply(keys, _FROM)


def _take_floor(keys: Keys, kind: str) -> None:
    least, peak = keys.value(_LEAST), keys.value(_RATE)
    if kind == "constant" or least in (ABSENT, 0):
        Spare("the rate does not fall, or to zero").apply(keys, _LEAST)
    elif isinstance(least, (int, float)) and isinstance(peak, (int, float)) and peak:
        keys.take(_LEAST, "schedule.floor", least / peak, f"{least:g} / {peak:g}")
    else:
        keys.findings.gaps.append(Gap(("schedule", "floor"), f"{_LEAST[0]} {least} / {_RATE[0]}", 0.1))


def _take_optimizer(keys: Keys) -> None:
    key: Key = ("--optimizer",)
    named = keys.value(key)
    betas: tuple[Key, Key] = ("--adam-beta1",), ("--adam-beta2",)
    if named in (ABSENT, "adam"):
        keys.take(key, "optimizer.kind", "adamw", "weight decay is decoupled, as there")
        first, second = (_number_at(keys, each, default) for each, default in zip(betas, (0.9, 0.999), strict=True))
        keys.take(betas[0], "optimizer.betas", [first, second])
        Spare("stands beside adam-beta1").apply(keys, betas[1])
        To("optimizer.eps", 1e-8, number).apply(keys, ("--adam-eps",))
    elif named == "sgd":
        keys.take(key, "optimizer.kind", "sgd")
        To("optimizer.momentum", 0.9, number).apply(keys, ("--sgd-momentum",))
    elif named in ("muon", "dist_muon"):
        keys.take(key, "optimizer.kind", "muon")
        To("optimizer.momentum", 0.95, number).apply(keys, ("--muon-momentum",))
    else:
        keys.lose(key, "is none of adam, sgd, muon")
        keys.findings.gaps.append(Gap(("optimizer", "kind"), f"in place of {shown(named)}", "adamw", by=()))
    for each in (*betas, ("--adam-eps",), ("--sgd-momentum",), ("--muon-momentum",)):
        if keys.value(each) is not ABSENT and each[0] not in keys.findings.keys:
            keys.spare(each, "is another optimizer's")
    To("optimizer.weight_decay", 0.01, number, "not of norms and other 1-D parameters").apply(keys, ("--weight-decay",))
    To("optimizer.clip", 1.0, lambda value: number(value) or None, "0 there: none").apply(keys, ("--clip-grad",))


def _number_at(keys: Keys, key: Key, default: float) -> Any:
    return keys.value(key) if keys.given(key) else default


def _take_precision(keys: Keys) -> None:
    bf16, fp16 = ("--bf16",), ("--fp16",)
    if keys.flag(bf16) and keys.flag(fp16):
        keys.mistake(fp16, "--bf16 is given, too: one of them can be")
    elif keys.flag(bf16):
        keys.take(bf16, "precision", "bf16", "weights are fp32 and cast; there bf16 with fp32 masters")
    elif keys.flag(fp16):
        keys.take(fp16, "precision", "fp16", "weights are fp32 and cast; there fp16 with fp32 masters")
        _take_scale(keys)
        return
    for name in ("loss-scale", "initial-loss-scale", "min-loss-scale", "loss-scale-window", "hysteresis"):
        Spare("is for fp16").apply(keys, (f"--{name}",))


def _take_scale(keys: Keys) -> None:
    fixed: Key = ("--loss-scale",)
    if keys.value(fixed) is not ABSENT:
        # A fixed factor is one that can go nowhere.
        for name in ("start", "least", "most"):
            To(f"scaling.{name}", convert=power_of_two).apply(keys, fixed)
        return
    To("scaling.start", 2.0**32, power_of_two).apply(keys, ("--initial-loss-scale",))
    To("scaling.least", 1.0, power_of_two).apply(keys, ("--min-loss-scale",))
    To("scaling.window", 1000, whole).apply(keys, ("--loss-scale-window",))
    Lost("the factor is halved at the first overflow", off=(1,), default=2).apply(keys, ("--hysteresis",))


def _take_activations(keys: Keys) -> None:
    kind, short = ("--recompute-granularity",), ("--recompute-activations",)
    named = keys.value(kind)
    if named in ("full", "selective"):
        keys.take(kind, "activations", "recompute" if named == "full" else "selective")
        Spare("--recompute-granularity says it").apply(keys, short)
    elif keys.flag(short):
        keys.take(short, "activations", "selective")
    elif named is not ABSENT:
        keys.mistake(kind, f"is full or selective, not {shown(named)}")
