"""Amounts of training: exactly one of steps, samples, tokens, epochs."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Annotated

from drivetrain.spec.batches import Batches
from drivetrain.spec.settings import Count, Positive, Settings, bits


@dataclass(frozen=True)
class Scale:
    """What one step, one token and one epoch are in samples.

    `tokens` is the number of tokens in a sample, None where it is not fixed; `epoch` is None until the data are open.
    """

    batches: Batches
    tokens: int | None = None
    epoch: int | None = None


@dataclass(frozen=True, kw_only=True)
class Amount(Settings):
    """A stretch of training, in exactly one unit."""

    steps: Annotated[Count | None, bits("optimizer steps, such as 500 or 10k")] = None
    samples: Annotated[Count | None, bits("samples, such as 10k")] = None
    tokens: Annotated[Count | None, bits("tokens, such as 1.5B, 500M or 10k")] = None
    epochs: Annotated[Positive | None, bits("passes over the training data")] = None

    def __post_init__(self) -> None:
        if len(self.given) != 1:
            raise ValueError(f"give exactly one of steps, samples, tokens, epochs (got {self.given or 'none'})")

    @property
    def given(self) -> dict[str, float]:
        """The units that have a value."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    def samples_at(self, scale: Scale) -> int:
        """The amount in whole samples, counted from the start of the run and rounded up.

        Raises ValueError where it is in tokens and a sample has no fixed number of them.
        """
        if self.steps is not None:
            return scale.batches.samples(self.steps)
        if self.samples is not None:
            return self.samples
        if self.tokens is not None:
            if scale.tokens is None:
                raise ValueError("an amount in tokens needs samples with a fixed number of tokens")
            return -(-self.tokens // scale.tokens)
        assert self.epochs is not None
        if scale.epoch is None:
            raise ValueError("an amount in epochs needs the size of the training data")
        return math.ceil(self.epochs * scale.epoch)

    def is_due(self, step: int, position: int, scale: Scale) -> bool:
        """Whether a multiple of this amount lies in the step that has just ended at this position."""
        if step == 0:
            return False
        if self.steps is not None:
            return step % self.steps == 0
        # Samples and tokens need not come to whole steps: a multiple that a step has passed is due at its end.
        before = scale.batches.span(step)[0]
        return self.multiples(step, position, scale) > self.multiples(step - 1, before, scale)

    def multiples(self, step: int, position: int, scale: Scale) -> int:
        """How many whole multiples of this amount lie behind a run that has made `step` steps to `position`."""
        if self.steps is not None:
            return step // self.steps
        if self.tokens is not None and scale.tokens is not None:
            return position * scale.tokens // self.tokens
        if self.epochs is not None and scale.epoch is not None:
            return int(position / (Fraction(repr(self.epochs)) * scale.epoch))
        return position // self.samples_at(scale)
