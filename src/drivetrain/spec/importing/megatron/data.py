"""Megatron-LM's token files as sources, and when they are scored."""

from __future__ import annotations

from typing import Any

from drivetrain.spec.importing.findings import Gap
from drivetrain.spec.importing.megatron.arguments import is_open
from drivetrain.spec.importing.megatron.table import several
from drivetrain.spec.importing.rules import ABSENT, Key, Keys, Spare, To, whole

_BLEND: Key = ("--data-path",)
_TRAIN: Key = ("--train-data-path",)
_SPLIT: Key = ("--split",)
_PROFILE: Key = ("--profile",)
_WHAT = "the path of Megatron's .bin and .idx without suffix, or of what `drivetrain data prepare` has written"


def take_data(keys: Keys) -> None:
    """`data`: sources with weights, and parts of them for validation and test."""
    Spare("there is no made-up data: `drivetrain data prepare` makes files of texts").apply(keys, ("--mock-data",))
    blend = _blend(keys.value(_BLEND))
    apart = _blend(keys.value(_TRAIN))
    if apart:
        Spare("--train-data-path is given").apply(keys, _BLEND)
        _take_sources(keys, _TRAIN, "data.train.sources", apart)
        for name, part in (("valid", "validation"), ("test", "test")):
            _take_set(keys, (f"--{name}-data-path",), part)
        Spare("each part has files of its own").apply(keys, _SPLIT)
        return
    if not blend:
        keys.findings.gaps.append(Gap(("data", "train", "sources", 0, "path"), _WHAT, "tokens"))
        keys.take(_BLEND, "data.train.sources.0.kind", "documents")
        Spare("say it as the sources' split").apply(keys, _SPLIT)
        return
    _take_sources(keys, _BLEND, "data.train.sources", blend)
    if keys.value(_SPLIT) is not ABSENT and (shares := _shares(keys)):
        _take_parts(keys, blend, shares)


def take_evaluation(keys: Keys, batch: int | None) -> None:
    """`evaluate`, `checkpoint` and `profile`. `batch` are the samples of a step, where that is known."""
    To("evaluate.every.steps", convert=whole, auto="steps between evaluations").apply(keys, ("--eval-interval",))
    passes: Key = ("--eval-iters",)
    count = keys.whole(passes, 0)
    if count and batch:
        keys.take(passes, "evaluate.budget.samples", count * batch, f"{count} x {batch}, the same ones each time")
    else:
        Spare("whole sets are scored, unless evaluate.budget says less").apply(keys, passes)
    To("checkpoint.every.steps", convert=whole, auto="steps between commits").apply(keys, ("--save-interval",))
    start, stop, ranks = ("--profile-step-start",), ("--profile-step-end",), ("--profile-ranks",)
    if not keys.flag(_PROFILE):
        for key in (start, stop, ranks):
            Spare("is for --profile").apply(keys, key)
        return
    first, last = keys.whole(start, 0) or 10, keys.whole(stop) or 12
    keys.spare(_PROFILE, "profile.start says when")
    keys.take(start, "profile.start", max(1, first))
    keys.take(stop, "profile.steps", max(1, last - first))
    if keys.given(ranks):
        keys.take(ranks, "profile.ranks", several(keys.value(ranks)))


def _blend(value: Any) -> list[tuple[float | None, str]]:
    """Weights and paths, as `--data-path` has them: all with a weight, or none."""
    if value is ABSENT or value is True:
        return []
    words = several(value)
    if len(words) == 1 and isinstance(words[0], str):
        words = [_typed(word) for word in words[0].split()]
    pairs = list(zip(words[::2], words[1::2], strict=False))
    if len(words) % 2 == 0 and all(isinstance(weight, (int, float)) for weight, _ in pairs):
        return [(float(weight), str(path)) for weight, path in pairs]
    return [(None, str(path)) for path in words]


def _typed(word: str) -> str | float:
    try:
        return float(word)
    except ValueError:
        return word


def _take_sources(keys: Keys, key: Key, to: str, blend: list[tuple[float | None, str]]) -> None:
    for place, (weight, path) in enumerate(blend):
        below = f"{to}.{place}"
        keys.take(key, f"{below}.kind", "documents")
        if len(blend) > 1:
            keys.take(key, f"{below}.weight", 1.0 if weight is None else weight)
        _take_path(keys, key, f"{below}.path", path)


def _take_path(keys: Keys, key: Key, to: str, path: str) -> None:
    if is_open(path):
        keys.leave(key, to, _WHAT, "tokens")
    else:
        keys.take(key, to, path)


def _take_set(keys: Keys, key: Key, part: str) -> None:
    """A set of files of its own, by the place that they are given at."""
    for place, (_, path) in enumerate(_blend(keys.value(key))):
        keys.take(key, f"data.{part}.{part}{place}.kind", "documents")
        _take_path(keys, key, f"data.{part}.{part}{place}.path", path)


def _shares(keys: Keys) -> list[float]:
    """Shares of training, validation and test; none, and a mistake, where it is something else."""
    value = keys.value(_SPLIT)
    if keys.is_auto(_SPLIT):
        keys.spare(_SPLIT, "say it as the sources' split")
        return []
    try:
        numbers = [float(part) for part in str(value).strip("'\"").replace("/", ",").split(",")]
    except ValueError:
        numbers = []
    total = sum(numbers)
    if not 1 <= len(numbers) <= 3 or total <= 0 or min(numbers) < 0:
        keys.mistake(_SPLIT, "is up to three shares with commas between them, such as 969,30,1")
        return []
    return [*[number / total for number in numbers], 0.0, 0.0][:3]


def _take_parts(keys: Keys, blend: list[tuple[float | None, str]], shares: list[float]) -> None:
    """Parts by their place in the file, as there."""
    wanted = {"train": shares[0], "validation": shares[1], "test": shares[2]}
    for place, (_, path) in enumerate(blend):
        for part, share in wanted.items():
            below = f"data.{part}.{part}{place}" if part != "train" else f"data.train.sources.{place}"
            if not share:
                continue
            if part != "train":
                keys.take(_BLEND, f"{below}.kind", "documents")
                _take_path(keys, _BLEND, f"{below}.path", path)
            keys.take(_SPLIT, f"{below}.part", part)
            keys.take(_SPLIT, f"{below}.split", shares)
            keys.take(_SPLIT, f"{below}.by", "range")
