"""Which settings may change while a run trains."""

from __future__ import annotations

import re

WEIGHT = re.compile(r"data\.train\.sources\[(\d+)\]\.weight")
"""A training source's weight: it changes the order of samples."""
_RATES = r"(\.\w+)?(\.groups\[\d+\])?\.(lr|weight_decay|clip(\.value)?)"
_ROW_RATES = r"(\.groups\[\d+\])?\.(optimizer\.(lr|weight_decay)|schedule\b.*)"
_SETTABLE = re.compile(
    rf"optimizer{_RATES}|embeddings{_ROW_RATES}|schedule\b.*|(evaluate|checkpoint)\.every\b.*|{WEIGHT.pattern}"
)
SETTABLE = (
    "optimizer's lr, weight_decay and clip, schedule, lr, weight_decay and schedule of embeddings, evaluate.every, "
    "checkpoint.every, a training source's weight"
)
"""The same in words."""


def is_settable(path: str) -> bool:
    """Whether the value at this dotted path may change."""
    return _SETTABLE.fullmatch(path) is not None
