"""How a text is drawn, token by token: what a task's `generate` is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from drivetrain.spec.exits import Exit, Failure


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """At most so many `tokens`, each drawn from the softmax of logits / `temperature` (0: always the likeliest).

    Of the likeliest tokens `top_k` are left, and of these the fewest whose probabilities reach `top_p`; None: all.
    Raises Failure(64) where a number makes no sense.
    """

    tokens: int = 100
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        wrong = {
            "tokens": (self.tokens, self.tokens < 0, "a number from 0"),
            "temperature": (self.temperature, not 0 <= self.temperature < float("inf"), "a number from 0"),
            "top-k": (self.top_k, self.top_k is not None and self.top_k < 1, "a number from 1"),
            "top-p": (self.top_p, self.top_p is not None and not 0 < self.top_p <= 1, "above 0, and at most 1"),
        }
        for name, (value, is_wrong, allowed) in wrong.items():
            if is_wrong:
                raise Failure(Exit.BAD_COMMAND, f"{name} is {value}", f"it is {allowed}")
