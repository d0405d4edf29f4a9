"""Text as it may be shown at a terminal: what others wrote made visible, what is long cut."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """The text with every control character (terminal escapes among them) made visible, but for those to `keep`."""
    shown = []
    for char in text:
        plain = char.isprintable() or char in keep
        shown.append(char if plain else repr(char)[1:-1])
    return "".join(shown)


def shortened(text: str, most: int) -> str:
    """A text of at most so many characters; where it is longer, its end is three dots."""
    if len(text) <= most:
        return text
    return f"{text[: most - 3]}..."
