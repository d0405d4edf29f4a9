"""How the text that a run was trained on became tokens: what else it reads and writes has to be tokenized alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from drivetrain.data.indexed import beside, name_of, read_manifest, tokenizer_content
from drivetrain.data.recipe import Documents, Text, Tokens
from drivetrain.data.tokenizers import Tokenizer, open_tokenizer
from drivetrain.spec.exits import Exit, Failure


@dataclass(frozen=True)
class TextTokens:
    """`content` is that of a tokenizer.json, None for bytes; `end` the id that ends a document, where one does."""

    content: bytes | None
    end: int | None = None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """From text to ids and back."""
        return open_tokenizer(self.content)


def text_tokens(sources: Iterable[Any], *, only_bytes: bool) -> TextTokens:
    """What training sources (their settings) say of it. `only_bytes`: the model knows no other tokens, so that sources
    need not say so.

    Raises Failure: 66 where nobody knows, 65 where a tokenizer is not the one of its file, 64 where there are several.
    """
    found: dict[TextTokens, None] = {}
    for source in sources:
        found[_of_source(source, only_bytes)] = None
    if len(found) > 1:
        cause = "the training sources have several tokenizers, or ends of documents"
        raise Failure(Exit.BAD_COMMAND, cause, "name the one to use: --tokenizer")
    return next(iter(found))


def _of_source(source: Any, only_bytes: bool) -> TextTokens:
    if isinstance(source, Text):
        return TextTokens(None)
    name, content, end = getattr(source, "path", ""), None, None
    if isinstance(source, (Documents, Tokens)):
        content = tokenizer_content(name)
        if beside(name_of(name), ".json").is_file():
            end = read_manifest(name_of(name)).get("eod")
    if content is not None:
        return TextTokens(None if isinstance(content, str) else content, end)
    if only_bytes:
        return TextTokens(None, end)
    kind = getattr(source, "kind", type(source).__name__)
    cause = f"nothing says how text becomes tokens: there is no tokenizer beside the source {name or kind}"
    raise Failure(Exit.INPUT_MISSING, cause, "prepared files keep theirs as NAME.tokenizer.json")
