"""How fields are called outside of Python, in recipes and in records."""

from __future__ import annotations


def key_of(field: str) -> str:
    """The key of a field: one that Python has a word for (`from`) ends in `_` here."""
    return field.removesuffix("_")
