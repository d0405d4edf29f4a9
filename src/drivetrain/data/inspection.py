"""Samples as text, with where documents begin."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from drivetrain.data.indexed import tokenizer_of
from drivetrain.data.packing import open_documents, segments
from drivetrain.data.recipe import Documents, Text, Tokens
from drivetrain.data.source import Source
from drivetrain.data.tokenizers import Bytes
from drivetrain.spec.exits import Exit, Failure


class Owner(NamedTuple):
    """A source among several: its first sample id, its name and its settings."""

    first: int
    name: str
    settings: Any


def inspect_file(path: str, position: int, count: int, context: int) -> list[dict[str, Any]]:
    """`count` samples of `context` tokens of a prepared file, from this one on, as JSON data.

    Raises Failure(64) where it has not as many samples.
    """
    settings = Documents(path=path, context=context)
    with tempfile.TemporaryDirectory() as folder:
        source = open_documents(settings, Path(folder) / "digests.json")
    shown = np.arange(position, min(position + count, len(source)))
    return describe_samples(source, shown, shown, [Owner(0, path, settings)], np.ones(len(shown), bool))


def describe_samples(
    source: Source, positions: np.ndarray, ids: np.ndarray, owners: Sequence[Owner], kept: np.ndarray
) -> list[dict[str, Any]]:
    """What is told of the samples with these ids (int64, as their positions), as JSON data; those that are not `kept`
    (bool) are not read by the run. Raises Failure(64) where there are none."""
    if not len(ids):
        raise Failure(Exit.BAD_COMMAND, f"there are {len(source)} samples", "give a smaller --position")
    found = []
    decoders: dict[str, Callable[[Any], str]] = {}
    for at, (position, number) in enumerate(zip(positions.tolist(), ids.tolist(), strict=True)):
        _, owner, settings = [each for each in owners if each.first <= number][-1]
        if owner not in decoders:
            decoders[owner] = _decoder(settings)
        (sample,) = source.read(ids[at : at + 1], positions[at : at + 1])
        about = {"position": position, "sample": number, "source": owner, "quarantined": not kept[at]}
        runs = segments(sample)
        if runs is None:
            found.append(about | {"value": repr(sample)[:2000]})
            continue
        documents = []
        for document, start, tokens in runs:
            text = decoders[owner](tokens)
            documents.append({"document": document, "start": start, "tokens": len(tokens), "text": text})
        found.append(about | {"documents": documents})
    return found


def _decoder(settings: Any) -> Callable[[Any], str]:
    """How a source's tokens become text: by its file's tokenizer, as bytes, or as the numbers that they are."""
    found = None
    if isinstance(settings, (Documents, Tokens)):
        found = tokenizer_of(settings.path)
    if isinstance(settings, Text):
        found = Bytes()
    if found is None:
        return lambda tokens: " ".join(map(str, tokens.tolist()))
    return found.decode
