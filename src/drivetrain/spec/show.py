"""Recipes as text: a whole one with origins, and one to start from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from drivetrain.spec.parse import flow
from drivetrain.spec.text import printable
from drivetrain.spec.tree import Path_, dotted, pairs


def as_yaml(tree: Mapping[str, Any], comments: Mapping[str, object] | None = None) -> str:
    """A recipe as YAML. Comments, by the dotted paths of values, follow these."""
    lines = list(_lines(tree, (), 0))
    comments = comments or {}
    width = min(60, max((len(text) for text, path in lines if path and dotted(path) in comments), default=0))
    shown = []
    for text, path in lines:
        if path and (comment := comments.get(dotted(path))) is not None:
            text = f"{text:<{width}}  # {printable(str(comment))}"
        shown.append(text)
    return "\n".join(shown)


def _lines(tree: Any, path: Path_, depth: int) -> Iterator[tuple[str, Path_ | None]]:
    """Lines of block YAML, each with the path of the value that it ends with, or None."""
    pad = "  " * depth
    for key, value in pairs(tree):
        here = (*path, key)
        head = f"{pad}{flow(key)}:" if isinstance(tree, Mapping) else f"{pad}-"
        nested = isinstance(value, (Mapping, list)) and value and not _scalars(value)
        if nested and isinstance(tree, Mapping):
            yield head, None
            yield from _lines(value, here, depth + 1)
        elif nested:
            first, *rest = _lines(value, here, depth + 1)
            yield f"{head} {first[0].lstrip()}", first[1]
            yield from rest
        else:
            text = flow(value)
            if isinstance(value, list) and value:  # in one line, with the origin of its first item
                here = (*here, 0)
            yield f"{head} {text}", here


def _scalars(value: Any) -> bool:
    return isinstance(value, list) and not any(isinstance(part, (Mapping, list)) for part in value)


STARTER = """\
# A recipe to start from. `drivetrain recipe show THIS --origin` tells every value that is not written here,
# `drivetrain recipe schema` what each field means and affects.
name: mine
seed: 0

# What is trained: a shipped kind, or your own class by package.module:Name (looked up beside this file first).
task:
  kind: language_model
  model: {kind: llama, width: 128, depth: 3, heads: 4, context: 128}
  sample: {prompt: "def "}

# What it is trained on: text (read as bytes), tokens (a plain file of token ids), or your own dataset.
data:
  train:
    sources:
      - {name: stdlib, kind: text, path: python-stdlib, part: train}
  validation:
    stdlib: {kind: text, path: python-stdlib, part: validation}

batch: {size: 16, micro: 16}     # samples per optimizer step; per forward pass
budget: {steps: 200}             # exactly one of steps, samples, tokens (1.5B, 500M), epochs

optimizer: {kind: adamw, lr: 3.0e-3, weight_decay: 0.1, clip: 1.0}
schedule: {kind: cosine, warmup: {steps: 20}, floor: 0.1}

evaluate: {every: {steps: 100}}
checkpoint: {every: {steps: 100}, keep: 3}
"""
"""What `drivetrain recipe new` writes."""
