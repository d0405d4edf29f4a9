"""Reads Megatron-LM's arguments."""

from __future__ import annotations

import re
from collections.abc import Iterable

from drivetrain.spec.importing.findings import Findings, Source
from drivetrain.spec.importing.megatron.arguments import arguments
from drivetrain.spec.importing.megatron.data import take_data, take_evaluation
from drivetrain.spec.importing.megatron.layout import take_layout
from drivetrain.spec.importing.megatron.model import take_model
from drivetrain.spec.importing.megatron.table import SYSTEM, Arguments, apply_rules
from drivetrain.spec.importing.megatron.training import take_training

_MARKS = (
    *("num-layers", "hidden-size", "num-attention-heads", "micro-batch-size", "global-batch-size", "seq-length"),
    *("tensor-model-parallel-size", "pipeline-model-parallel-size", "max-position-embeddings", "train-iters"),
    *("train-samples", "lr-decay-style", "use-mcore-models", "ffn-hidden-size", "untie-embeddings-and-output-weights"),
)


class Megatron:
    """A script that calls `pretrain_gpt.py`, a file of arguments, or the YAML of its functional tests."""

    def marks(self, text: str) -> list[str]:
        """Arguments that nobody else has."""
        return [mark for mark in _MARKS if re.search(rf"--{mark}\b", text)]

    def read(self, source: Source) -> Findings:
        """What becomes of each argument."""
        findings = Findings(source)
        tree = arguments(source.text, findings)
        keys = Arguments(tree, findings, SYSTEM)
        if not tree.items:
            findings.mistake("", 1, "has no argument, --NAME")
            return findings
        take_model(keys)
        take_data(keys)
        take_training(keys, take_layout(keys))
        take_evaluation(keys, _batch(findings))
        apply_rules(keys, tree.items)
        _tell_rest(keys, tree.items)
        return findings


def _tell_rest(keys: Arguments, names: Iterable[str]) -> None:
    """Say of arguments that nothing was said of: they count beside others only."""
    said = set(keys.findings.keys)
    said.update([str(mistake.path[0]) for mistake in keys.findings.mistakes if mistake.path])
    for name in names:
        if name not in said:
            keys.lose((name,), "counts only beside arguments that are not given, or not here")


def _batch(findings: Findings) -> int | None:
    for taken in findings.taken:
        if taken.path == ("batch", "size"):
            return taken.value
    return None
