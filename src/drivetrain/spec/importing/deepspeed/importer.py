"""Reads DeepSpeed's JSON."""

from __future__ import annotations

import re

from drivetrain.spec.importing.deepspeed.batch import take_batch
from drivetrain.spec.importing.deepspeed.layout import take_layout
from drivetrain.spec.importing.deepspeed.optimizer import take_optimizer
from drivetrain.spec.importing.deepspeed.precision import take_precision
from drivetrain.spec.importing.deepspeed.schedule import take_schedule
from drivetrain.spec.importing.deepspeed.table import SYSTEM, TOP
from drivetrain.spec.importing.findings import Findings, Gap, Source, Taken
from drivetrain.spec.importing.json_text import NotJsonError, json_tree
from drivetrain.spec.importing.rules import Keys, Nested

_MARKS = (
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "zero_optimization"),
    *("zero_allow_untested_optimizer", "gradient_clipping", "steps_per_print", "wall_clock_breakdown"),
    *("loss_scale_window", "initial_scale_power", "warmup_num_steps", "offload_optimizer", "activation_checkpointing"),
)
_SCRIPT = (
    Gap(
        ("task", "kind"), "what your script trains: a shipped kind, or your class as module:Name", "own:Task", ("task",)
    ),
    Gap(
        ("data", "train", "sources", 0, "kind"),
        "what it reads: a shipped kind, or your dataset as module:Name",
        "own:Data",
        ("data",),
    ),
    Gap(("budget", "steps"), "how many optimizer steps it makes; or samples, tokens, epochs", 2**62, ("budget",)),
)
"""What the training script says, not the file."""


class DeepSpeed:
    """The JSON that a script gets as `--deepspeed_config`, and the HF Trainer as `--deepspeed`."""

    def marks(self, text: str) -> list[str]:
        """Keys that nobody else has."""
        return [mark for mark in _MARKS if re.search(rf'"{mark}"\s*:', text)]

    def read(self, source: Source) -> Findings:
        """What becomes of each key."""
        findings = Findings(source)
        try:
            tree = json_tree(source.text, source.name, findings.mistakes)
        except NotJsonError as error:
            findings.mistake("", error.line, f"no JSON: {error}")
            return findings
        keys = Keys(tree, findings, SYSTEM)
        Nested(TOP).apply(keys, ())
        group = take_layout(keys)
        take_batch(keys, group)
        take_optimizer(keys, take_schedule(keys))
        take_precision(keys)
        findings.gaps += _SCRIPT
        if source.processes is not None:
            findings.taken.append(Taken(("launch", "processes"), source.processes, "--processes", 0))
        return findings
