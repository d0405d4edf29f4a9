"""Text that others wrote, as it may be shown at a terminal."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """The text with every control character (terminal escapes among them) made visible, but for those to `keep`."""
    shown = []
    for char in text:
        plain = char.isprintable() or char in keep
        shown.append(char if plain else repr(char)[1:-1])
    return "".join(shown)
