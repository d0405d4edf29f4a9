"""fp16, bf16 and torch_autocast are one word here; and the factor on the loss that fp16 has."""

from __future__ import annotations

from drivetrain.spec.importing.deepspeed.table import DTYPES, SCALE, power_of_two, two_to
from drivetrain.spec.importing.rules import ABSENT, Key, Keys, shown

_WORDS = {"fp16": "fp16", "bf16": "bf16", "bfloat16": "bf16"}
"""By section."""
_AUTOCAST: Key = ("torch_autocast", "enabled")
_DTYPE: Key = ("torch_autocast", "dtype")
_STATIC: Key = ("fp16", "loss_scale")
_POWER: Key = ("fp16", "initial_scale_power")


def take_precision(keys: Keys) -> None:
    """`precision` and `scaling`."""
    asked = [name for name in _WORDS if isinstance(keys.value((name,)), dict) and keys.flag((name, "enabled"))]
    auto = [name for name in asked if keys.is_auto((name, "enabled"))]
    sure = [name for name in asked if name not in auto]
    if len(sure) > 1:
        keys.mistake((sure[1], "enabled"), f"{sure[0]} is enabled, too: one of them can be")
        return
    if sure:
        keys.take((sure[0], "enabled"), "precision", _WORDS[sure[0]])
        _take_autocast(keys, _WORDS[sure[0]])
    elif isinstance(keys.value(_AUTOCAST[:1]), dict) and keys.flag(_AUTOCAST):
        _take_autocast(keys, None)
    elif auto:
        what = "the HF Trainer's --fp16 or --bf16 make it fp16 or bf16; else it is fp32"
        keys.leave((auto[0], "enabled"), "precision", what, "fp32")
        auto = auto[1:]
    else:
        keys.take(("fp16", "enabled"), "precision", "fp32")
    for name in auto:
        keys.spare((name, "enabled"), "the same question as the other")
    if "fp16" in asked:
        _take_scale(keys)


def _take_autocast(keys: Keys, precision: str | None) -> None:
    """Autocast's own word for it, where fp16 and bf16 say none."""
    dtype = keys.value(_DTYPE)
    if keys.value(_AUTOCAST) is ABSENT or not keys.flag(_AUTOCAST):
        return
    keys.spare(_AUTOCAST, "its dtype says the rest")
    if dtype is ABSENT or dtype is None:
        if precision is None:
            keys.take(_DTYPE, "precision", "fp16", "torch's default on CUDA; elsewhere it is bf16")
    elif not isinstance(dtype, str) or dtype not in DTYPES:
        keys.mistake(_DTYPE, f"is such as bfloat16 or float16, not {shown(dtype)}")
    elif precision is None:
        keys.take(_DTYPE, "precision", DTYPES[dtype])
    elif precision == DTYPES[dtype]:
        keys.spare(_DTYPE, "is what the weights have")
    else:
        keys.lose(_DTYPE, f"forward and backward have one precision, {precision}")


def _take_scale(keys: Keys) -> None:
    """The factor: one number for the whole run, or one that moves."""
    fixed = keys.value(_STATIC)
    if fixed not in (ABSENT, None, 0, "auto"):
        try:
            factor = power_of_two(fixed)
        except ValueError as error:
            keys.mistake(_STATIC, str(error))
            return
        for name in ("start", "least", "most"):
            keys.take(_STATIC, f"scaling.{name}", factor)
        for name in SCALE:
            if keys.value(("fp16", name)) is not ABSENT:
                keys.spare(("fp16", name), "loss_scale is a number: the factor stays as it is")
        return
    if fixed is not ABSENT:
        keys.spare(_STATIC, "0: the factor moves")
    for name, rule in SCALE.items():
        rule.apply(keys, ("fp16", name))
    power = keys.value(_POWER)
    if isinstance(power, int) and 32 < power < 127:
        keys.take(_POWER, "scaling.most", two_to(power), "there is no largest one there")
