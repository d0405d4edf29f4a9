"""The optimizer, with the peak learning rate that a schedule may say, and with clipping."""

from __future__ import annotations

from collections.abc import Mapping

from drivetrain.spec.importing.deepspeed.table import NOWHERE, OPTIMIZERS, RATES, clip
from drivetrain.spec.importing.deepspeed.typed import params_of, take_params, take_rate, type_of
from drivetrain.spec.importing.findings import Gap
from drivetrain.spec.importing.rules import ABSENT, Elsewhere, Key, Keys, Lost, Rule, To, shown

_KEY: Key = ("optimizer",)
_PARAMS: Key = (*_KEY, "params")
_RATE: Key = (*_PARAMS, "lr")
_CLIP: Key = ("gradient_clipping",)
_USUAL = 1e-3  # the learning rate of most types


def take_optimizer(keys: Keys, peak: Key | None) -> None:
    """All of `optimizer`; `peak` is the key of the scheduler's peak learning rate, if it has one."""
    if keys.value(_KEY) is not ABSENT:
        _take_typed(keys, peak)
    else:
        what = "the file has none: the one that your script makes, with its lr"
        keys.findings.gaps.append(Gap(("optimizer", "kind"), what, "adamw", ("optimizer",)))
        if peak is not None:
            take_rate(keys, peak, "optimizer.lr", _USUAL)
    _take_clip(keys)


def _take_typed(keys: Keys, peak: Key | None) -> None:
    named = type_of(keys, _KEY)
    if named is None:
        return
    if named.lower() in OPTIMIZERS or named.lower() in NOWHERE:
        named = named.lower()  # torch's own are told apart by the case of letters
    kind = OPTIMIZERS.get(named)
    if kind is None:
        _lose_type(keys, named)
    else:
        keys.take((*_KEY, "type"), "optimizer.kind", _kind(keys, named, kind.kind))
        for name, value in kind.beside.items():
            keys.take((*_KEY, "type"), f"optimizer.{name}", value)
    if named == "muon":
        _take_muon_rates(keys, peak)
    else:
        _take_rate(keys, peak, RATES.get(named, _USUAL))
    take_params(keys, _KEY, kind.params if kind else _common(keys))
    if "max_grad_norm" in params_of(keys, _KEY):
        keys.mistake((*_PARAMS, "max_grad_norm"), "is refused by DeepSpeed, too: write gradient_clipping")


def _lose_type(keys: Keys, named: str) -> None:
    own = "a class of yours or of a package is a kind by its module:Name, such as torch.optim:NAdam"
    keys.lose((*_KEY, "type"), f"there is no {NOWHERE.get(named, named)}; {own}")
    gap = Gap(("optimizer", "kind"), f"in place of {shown(named)}", "adamw", by=())
    keys.findings.gaps.append(gap)


def _common(keys: Keys) -> Mapping[str, Rule]:
    """Rules for a type that has no kind of ours: what every kind has is taken, the rest belongs to that type."""
    rules: dict[str, Rule] = {}
    for name in params_of(keys, _KEY):
        rules[name] = Lost("belongs to that type", off=())
    taken = OPTIMIZERS["adam"].params
    return rules | {"lr": Elsewhere(), "weight_decay": taken["weight_decay"], "max_grad_norm": Elsewhere()}


def _kind(keys: Keys, named: str, kind: str) -> str:
    """Adam is AdamW unless `adam_w_mode` says that it is not; AdamW always is."""
    mode = (*_PARAMS, "adam_w_mode")
    if kind != "adamw" or keys.value(mode) is ABSENT:
        return kind
    keys.spare(mode, "chooses between adamw and adam where the type is Adam")
    decoupled = keys.flag(mode)
    return kind if decoupled or named == "adamw" else "adam"


def _take_rate(keys: Keys, peak: Key | None, default: float) -> None:
    if peak is not None and keys.is_auto(peak) and keys.given(_RATE):
        keys.spare(peak, "is the optimizer's lr")
        peak = None
    if peak is None:
        take_rate(keys, _RATE, "optimizer.lr", default)
        return
    if keys.value(_RATE) is not ABSENT:
        keys.spare(_RATE, f"the schedule's {peak[-1]} takes its place, there as here")
    take_rate(keys, peak, "optimizer.lr", _USUAL)


def _take_muon_rates(keys: Keys, peak: Key | None) -> None:
    """Muon's rate and its AdamW's: each its own, or the common one; a schedule's takes the place of all."""
    sources = {name: (*_PARAMS, name) for name in ("muon_lr", "adam_lr", "lr")}
    used = {}
    for name, to in (("muon_lr", "optimizer.lr"), ("adam_lr", "optimizer.adamw_lr")):
        own = sources[name]
        if keys.value(own) is ABSENT:
            own = _RATE
        used[to] = peak or own
    take_rate(keys, used["optimizer.lr"], "optimizer.lr", 0.02)
    take_rate(keys, used["optimizer.adamw_lr"], "optimizer.adamw_lr", 3e-4)
    for key in sources.values():
        if key not in used.values() and keys.value(key) is not ABSENT:
            keys.spare(key, "another one takes its place, there as here")


def _take_clip(keys: Keys) -> None:
    note = ""
    if keys.value(_CLIP) is ABSENT:
        note = "1.0 in DeepSpeed 0.19; none in 0.18 and before"
    To("optimizer.clip", 1.0, clip, note, auto="the HF Trainer's --max_grad_norm").apply(keys, _CLIP)
