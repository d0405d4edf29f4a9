"""Data sets of the Hugging Face hub, read as they come: `datasets` streams their files, and nothing of them is kept.

No code of a data set is run: `datasets` from version 4 on has no way to.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.registry import nearest

PREFIX = "hub:"


@dataclass(frozen=True)
class Hub:
    """One split of a data set. `revision` is a commit of the hub, None for a local folder of files.

    `content` is a digest that stands for the files: their names, and commits or times of change.
    """

    name: str
    config: str | None
    split: str
    revision: str | None
    content: str
    rows: Any = field(compare=False, repr=False)  # datasets.IterableDataset

    @property
    def shards(self) -> int:
        """How many parts it has, mostly files, that can be read by themselves."""
        return self.rows.num_shards

    @property
    def record(self) -> dict[str, Any]:
        """What it is, for a manifest."""
        about = {"dataset": self.name, "config": self.config, "split": self.split}
        return about | {"revision": self.revision, "content": self.content}

    def tables(self, shard: int, rows: int) -> Iterator[Any]:
        """Arrow's tables of so many rows, the last one of fewer, of a shard in its order.

        Raises Failure(69) where the hub does not answer, 65 where a file cannot be read.
        """
        with told(f"{PREFIX}{self.name}, shard {shard}"):
            yield from self.rows.shard(self.shards, shard).with_format("arrow").iter(rows)

    def check(self) -> None:
        """Raises Failure(65) where local files are not what they were; those of a revision never change."""
        if self.revision is None and open_hub(self.name, self.config, self.split).content != self.content:
            cause = f"{self.name} changed while it was read"
            raise Failure(Exit.BAD_DATA, cause, "begin again when it is at rest", file=self.name)


def open_hub(given: str, config: str | None = None, split: str | None = None) -> Hub:
    """The split of NAME, NAME@REVISION or a local folder of data files. Where there is one only, it need not be said.

    Raises Failure(66) where it is not there, or `datasets` is not installed, 69 where the hub does not answer, 65 where
    it has no such config or split, or is none that can be streamed.
    """
    name, revision = given, ""
    if not Path(given).exists():
        name, _, revision = given.partition("@")
    with told(f"{PREFIX}{given}"):
        datasets = _datasets()
        with tempfile.TemporaryDirectory() as locks:  # the library leaves them in its cache
            builder = datasets.load_dataset_builder(name, config, revision=revision or None, cache_dir=locks)
            splits = builder.as_streaming_dataset()
    chosen = _split(given, split, list(splits))
    files = (builder.config.data_files or {}).get(chosen, ())
    origins = list(getattr(files, "origin_metadata", ()))
    digest = hashlib.sha256(json.dumps([list(files), origins]).encode(errors="surrogateescape")).hexdigest()
    commits = {origin[1] for origin in origins if len(origin) == 2}  # (repository, commit); else (time of change,)
    return Hub(name, config, chosen, "+".join(sorted(commits)) or None, digest, splits[chosen])


def _split(given: str, split: str | None, names: Sequence[str]) -> str:
    hint = f"--split is one of {', '.join(names)}"
    if split is None and len(names) != 1:
        raise Failure(Exit.BAD_DATA, f"{PREFIX}{given} has several data sets", hint, file=given)
    if split is not None and split not in names:
        cause = f"{PREFIX}{given} has no data set {split!r}{nearest(split, list(names))}"
        raise Failure(Exit.BAD_DATA, cause, hint, file=given)
    return split or names[0]


def _datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise Failure(Exit.INPUT_MISSING, f"{PREFIX} needs datasets", "pip install 'drivetrain[hf]'") from None
    return datasets


@contextmanager
def told(place: str) -> Iterator[None]:
    """What the libraries raise, which may be anything, as a Failure that says where."""
    try:
        yield
    except Failure:
        raise
    except FileNotFoundError as error:
        raise Failure(Exit.INPUT_MISSING, f"{place}: {error}", "mend the name, or log in to see it") from error
    except Exception as error:
        if _is_far(error):
            hint = "look at the network; the same command goes on"
            raise Failure(Exit.PEER_UNAVAILABLE, f"{place}: {error}", hint) from error
        cause = f"{place} cannot be read: {type(error).__name__}: {error}"
        raise Failure(Exit.BAD_DATA, cause, "mend it, or leave it out") from error


def _is_far(error: Exception) -> bool:
    """Whether it was the network or the hub's server."""
    from huggingface_hub.errors import HfHubHTTPError

    return isinstance(error, (ConnectionError, TimeoutError, HfHubHTTPError))
