"""From bytes of text to token ids and back: bytes as they are, or a `tokenizer.json`."""

from __future__ import annotations

import array
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.registry import nearest

BYTES = "bytes"
_FILE = "tokenizer.json"


class Tokenizer(Protocol):
    """Text to ids and back."""

    @property
    def vocabulary(self) -> int:
        """The number of ids: one more than the largest."""
        ...

    @property
    def digest(self) -> str:
        """Digest of the tokenizer's own content."""
        ...

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """Ids of each text, unsigned, one-dimensional. Raises UnicodeDecodeError where it needs UTF-8 and has none."""
        ...

    def decode(self, ids: np.ndarray) -> str:
        """The text of these ids; what is no text is shown as U+FFFD."""
        ...

    def id_of(self, token: str) -> int:
        """The id of a token by its name. Raises Failure(64) where there is none."""
        ...


@dataclass(frozen=True)
class Bytes:
    """Each byte is its own id."""

    vocabulary: int = 256
    digest: str = BYTES

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """The bytes themselves, whatever their encoding."""
        return [np.frombuffer(text, np.uint8) for text in texts]

    def decode(self, ids: np.ndarray) -> str:
        """Ids of 256 and above, which are no bytes, are shown as `<256>`."""
        shown: list[str] = []
        # Bytes that stand side by side are decoded together: a character may have up to four.
        for run in np.split(ids, np.flatnonzero(np.diff(ids >= 256)) + 1):
            if len(run) and run[0] >= 256:
                shown += [f"<{token}>" for token in run.tolist()]
            else:
                shown.append(bytes(run.astype(np.uint8)).decode(errors="replace"))
        return "".join(shown)

    def id_of(self, token: str) -> int:
        """Bytes have no names."""
        raise Failure(Exit.BAD_COMMAND, f"bytes have no token {token!r}", "give --eod as an id, such as 0")


class Json:
    """A `tokenizer.json`, by the `tokenizers` library. No special tokens are added, nothing is cut or padded."""

    def __init__(self, content: bytes, name: str) -> None:
        """`name` is what messages call it. Raises Failure(65) where it cannot be read."""
        # Parallel over processes, not inside each; the library reads this when it encodes.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            self._tokenizer: Any = _library().Tokenizer.from_str(content.decode())
        except Failure:
            raise
        except Exception as error:  # the library raises bare Exception
            raise Failure(Exit.BAD_DATA, f"{name} is no tokenizer: {error}", "give the tokenizer's own file") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._words = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocabulary = max(self._words.values(), default=-1) + 1  # ids may have gaps, so their number is not enough
        self.digest = hashlib.sha256(content).hexdigest()
        # Without offsets, which nobody asks for here: older versions of the library only have the slower way.
        self._encode = getattr(self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch)

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """Ids of each text, uint32."""
        encoded = self._encode([text.decode() for text in texts], add_special_tokens=False)
        return [np.frombuffer(array.array("I", one.ids), np.uint32) for one in encoded]

    def decode(self, ids: np.ndarray) -> str:
        """The text, special tokens too."""
        return self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)

    def id_of(self, token: str) -> int:
        """The id of a token by its name."""
        found = self._tokenizer.token_to_id(token)
        if found is None:
            cause = f"the tokenizer has no token {token!r}{nearest(token, list(self._words))}"
            raise Failure(Exit.BAD_COMMAND, cause, "name one of its tokens, or give an id")
        return found


def content_of(where: str) -> bytes | None:
    """The content of the `tokenizer.json` that a path means; None for `bytes`. Raises Failure(66) without one."""
    if where == BYTES:
        return None
    path = Path(where)
    if path.is_dir():
        path /= _FILE
        hint = "write it with AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER), a fast tokenizer's"
    else:
        hint = "give bytes, a tokenizer.json, or a folder that holds one"
    try:
        return path.read_bytes()
    except OSError as error:
        raise Failure(Exit.INPUT_MISSING, f"no tokenizer at {path}: {error.strerror}", hint) from None


def open_tokenizer(content: bytes | None, name: str = _FILE) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`'s content; bytes where it is None."""
    if content is None:
        return Bytes()
    return Json(content, name)


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise Failure(
            Exit.INPUT_MISSING, "a tokenizer.json needs tokenizers", "pip install 'drivetrain[data]'"
        ) from None
    return tokenizers
