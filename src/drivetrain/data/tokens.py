"""Plain files of token ids, memory-mapped."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from drivetrain.data.fingerprint import FileStamp, remembered
from drivetrain.data.recipe import Tokens
from drivetrain.data.source import Source
from drivetrain.data.split import parted
from drivetrain.data.windows import Windows
from drivetrain.spec.exits import Exit, Failure

_CHUNK = 16 << 20  # bytes read at a time


def open_tokens(settings: Tokens, cache: Path) -> Source:
    """Windows over the file, memory-mapped: the process's own memory does not grow with it.

    Pages that were read stay mapped and count as resident, shared with all ranks, until the kernel wants them back.
    The first start reads it once, for its digest and its largest token. Raises Failure(66) where it is missing, 65
    where its size does not fit the type, a token is beyond the vocabulary, or the part holds not one sample.
    """
    assert settings.context is not None, "spec derives the context"
    path, dtype = Path(settings.path), np.dtype(settings.dtype).newbyteorder("<")
    if not path.is_file():
        raise Failure(Exit.INPUT_MISSING, f"no token file at {path}", "data.train.sources[*].path must be a file")
    seen = FileStamp.now(path)
    size = path.stat().st_size
    if size % dtype.itemsize or size < (settings.context + 1) * dtype.itemsize:
        raise Failure(
            Exit.BAD_DATA,
            f"{path}: {size} bytes are not whole {settings.dtype} tokens, or not one sample of {settings.context} + 1",
            "see that dtype is how the file was written, and that it was written to its end",
        )
    question = f"{settings.dtype}<{settings.vocabulary}"
    digest = remembered(path, cache, question, lambda: checked_digest(path, dtype, settings.vocabulary))
    return parted(_mapped(seen, dtype, settings.context, digest), settings, str(path))


def _mapped(seen: FileStamp, dtype: np.dtype, context: int, digest: str) -> Windows:
    """Windows over a file that is as it was seen; Failure(65) where it is not."""
    tokens = np.memmap(seen.path, dtype=dtype, mode="r")
    seen.check()
    return Windows(tokens, context, digest, seen, (_mapped, (seen, dtype, context, digest)))


def checked_digest(path: Path, dtype: np.dtype, vocabulary: int | None) -> str:
    """SHA-256 of the file, while every token is checked against the vocabulary."""
    digest = hashlib.sha256()
    offset = 0
    with path.open("rb") as file:  # buffered: a short read would cut a token in two
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            tokens = np.frombuffer(chunk[: len(chunk) // dtype.itemsize * dtype.itemsize], dtype=dtype)
            if vocabulary is not None and len(tokens):
                _check(tokens, vocabulary, path, offset)
            offset += len(tokens)
    return digest.hexdigest()


def _check(tokens: np.ndarray, vocabulary: int, path: Path, offset: int) -> None:
    if int(tokens.min()) >= 0 and int(tokens.max()) < vocabulary:
        return
    at = int(np.flatnonzero((tokens >= vocabulary) | (tokens < 0))[0])
    raise Failure(
        Exit.BAD_DATA,
        f"{path}: token {offset + at} is {int(tokens[at])}, the vocabulary has {vocabulary}",
        "see that dtype and task.model.vocabulary are the tokenizer's",
        file=str(path),
    )
