"""Which kinds there are, by import path. Nothing is imported before a recipe needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Any

KINDS: Mapping[str, Mapping[str, str]] = {
    "task": {
        "language_model": "drivetrain.tasks.language_model.recipe:LanguageModel",
        "classification": "drivetrain.tasks.classification.recipe:Classification",
        "speech": "drivetrain.tasks.speech.recipe:Speech",
        "vocoder": "drivetrain.tasks.speech.recipe:Vocoding",
        "enhancer": "drivetrain.tasks.speech.recipe:Enhancing",
        "ranking": "drivetrain.tasks.ranking.recipe:Ranking",
    },
    "source": {
        "text": "drivetrain.data.recipe:Text",
        "tokens": "drivetrain.data.recipe:Tokens",
        "documents": "drivetrain.data.recipe:Documents",
        "jsonl": "drivetrain.data.recipe:JsonLines",
        "parquet": "drivetrain.data.recipe:Parquet",
        "datasets": "drivetrain.data.recipe:Datasets",
        "hub": "drivetrain.data.recipe:Hub",
        "kafka": "drivetrain.data.recipe:Kafka",
        "table": "drivetrain.data.recipe:Table",
        "columns": "drivetrain.data.recipe:ColumnFiles",
        "glue": "drivetrain.tasks.classification.recipe:Glue",
        "speech": "drivetrain.tasks.speech.recipe:SpeechFolders",
        "harmonics": "drivetrain.tasks.speech.recipe:Harmonics",
        "clicks": "drivetrain.tasks.ranking.recipe:Clicks",
    },
    "optimizer": {
        "adamw": "drivetrain.optim.recipe:AdamW",
        "sgd": "drivetrain.optim.recipe:SGD",
        "adam": "drivetrain.optim.recipe:Adam",
        "adagrad": "drivetrain.optim.recipe:Adagrad",
        "adafactor": "drivetrain.optim.recipe:Adafactor",
        "rmsprop": "drivetrain.optim.recipe:RMSprop",
        "muon": "drivetrain.optim.recipe:Muon",
        "galore": "drivetrain.optim.recipe:GaLore",
        "torchao_adamw8bit": "drivetrain.optim.recipe:TorchaoAdamW8bit",
        "torchao_adamw4bit": "drivetrain.optim.recipe:TorchaoAdamW4bit",
        "bitsandbytes_adamw8bit": "drivetrain.optim.recipe:BitsandbytesAdamW8bit",
    },
    "schedule": {
        "constant": "drivetrain.optim.recipe:Constant",
        "linear": "drivetrain.optim.recipe:Linear",
        "cosine": "drivetrain.optim.recipe:Cosine",
        "cosine_restarts": "drivetrain.optim.recipe:CosineRestarts",
        "wsd": "drivetrain.optim.recipe:WarmupStableDecay",
        "inverse_sqrt": "drivetrain.optim.recipe:InverseSqrt",
        "polynomial": "drivetrain.optim.recipe:Polynomial",
        "exponential": "drivetrain.optim.recipe:Exponential",
        "plateau": "drivetrain.optim.recipe:Plateau",
        "steps": "drivetrain.optim.recipe:StepSchedule",
    },
    "launch": {"local": "drivetrain.launch.recipe:Local"},
    "ranker": {
        "deepfm": "drivetrain.tasks.ranking.recipe:DeepFM",
        "mmoe": "drivetrain.tasks.ranking.recipe:MMoE",
        "two_tower": "drivetrain.tasks.ranking.recipe:TwoTower",
    },
}
"""Settings classes by section and kind."""

DEFAULT_KINDS = {"optimizer": "adamw", "schedule": "constant", "launch": "local"}
"""What a section is where it names no kind."""

SECTIONS: Mapping[str, str] = {
    "data": "drivetrain.data.recipe:Data",
    "batch": "drivetrain.engine.recipe:Batch",
    "networks": "drivetrain.engine.recipe:Network",
    "embeddings": "drivetrain.engine.tables.recipe:Embeddings",
    "scaling": "drivetrain.engine.recipe:Scaling",
    "average": "drivetrain.engine.recipe:Average",
    "parallel": "drivetrain.engine.recipe:Parallel",
    "parameters": "drivetrain.engine.recipe:Parameters",
    "statistics": "drivetrain.engine.recipe:Statistics",
    "guard": "drivetrain.loop.recipe:Guard",
    "init": "drivetrain.checkpoint.recipe:Init",
    "evaluate": "drivetrain.loop.recipe:Evaluate",
    "checkpoint": "drivetrain.checkpoint.recipe:Checkpoint",
    "stop": "drivetrain.loop.recipe:Stop",
    "telemetry": "drivetrain.loop.recipe:Telemetry",
    "profile": "drivetrain.loop.recipe:Profile",
    "watch": "drivetrain.watch.recipe:Watch",
}
"""Settings classes of the sections that have one kind only."""

NULLABLE_SECTIONS = frozenset({"init", "profile", "average", "statistics"})
"""Sections that may be null."""

NAMED_SECTIONS = frozenset({"networks"})
"""Sections that are mappings from names to their settings."""

LISTED_SECTIONS = frozenset({"init"})
"""Sections that may be a list of their settings."""

BY_NETWORK = ("optimizer", "schedule")
"""Sections that are one for all networks, or a mapping by network."""


@cache
def imported(path: str) -> Any:
    """The object at `package.module:name`."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def nearest(word: str, known: Sequence[str]) -> str:
    """`; did you mean 'x'?` where a known word is near, but for its case, else nothing."""
    folded = {other.casefold(): other for other in known}
    close = get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    if not close:
        return ""
    return f"; did you mean {folded[close[0]]!r}?"
