"""A user's map-style dataset as a source."""

from __future__ import annotations

import hashlib
import inspect
import json
from typing import Any

import numpy as np
import torch

from drivetrain.data.content import absorb, seed_sample
from drivetrain.data.fingerprint import combined
from drivetrain.runtime.mistakes import is_out_of_memory, returned, with_place
from drivetrain.runtime.mix import mix
from drivetrain.spec.code.blame import own_place, place_of, words
from drivetrain.spec.custom import Custom, build_custom
from drivetrain.spec.exits import Exit, Failure

_LOOKED_AT = 8  # samples that enter the fingerprint
_SAMPLE = 1 << 35  # a place in the seeds' path that no step has


class MapSource:
    """Any object with `__len__` and `__getitem__`, named by `package.module:Name` in the recipe.

    What a sample draws from `random`, `numpy.random` or `torch` follows from the run's seed and its position. The
    global generators are seeded for that, so samples are read between steps or in other processes, never beside a step.
    """

    thread_safe = False

    def __init__(self, settings: Custom, seed: int, fingerprint: str | None = None, *, by_text: bool = False) -> None:
        """`fingerprint` is given where it is known already; `by_text` as in `open_source`.

        Raises Failure(78) where settings do not fit the constructor, 65 where the dataset is empty.
        """
        self._settings = settings
        self._seed = seed
        self._dataset = build_custom(settings)
        self._size = _length(self._dataset, settings.told)
        if self._size == 0:
            raise Failure(Exit.BAD_DATA, f"{settings.told} has no sample", "a source needs at least one")
        own = getattr(self._dataset, "fingerprint", None)
        if not fingerprint and isinstance(own, str):
            fingerprint = own
        self.fingerprint = fingerprint or self._look(by_text)

    def __len__(self) -> int:
        """Number of samples."""
        return self._size

    def __reduce__(self) -> tuple[Any, ...]:
        """Other processes build the dataset anew instead of being sent its content.

        They compute with as many threads as this one, so that no sum in a sample depends on who reads it.
        """
        return _rebuilt, (torch.get_num_threads(), self._settings, self._seed, self.fingerprint)

    def read(self, ids: np.ndarray, positions: np.ndarray) -> list[Any]:
        """The samples with these ids; Failure(65) names the one that cannot be read."""
        return [self._sample(int(i), int(position)) for i, position in zip(ids, positions, strict=True)]

    def _sample(self, index: int, position: int) -> Any:
        seed_sample(mix(self._seed, _SAMPLE, position))
        try:
            return self._dataset[index]
        except Exception as error:
            if is_out_of_memory(error):
                raise
            failure = Failure(
                Exit.BAD_DATA,
                f"{self._settings.kind}: sample {index} cannot be read: {type(error).__name__}: {error}",
                "mend the sample or the dataset",
                sample_id=index,
                position=position,
            )
            raise with_place(failure, error, self._settings.folder) from error

    def _look(self, by_text: bool) -> str:
        """A fingerprint where the dataset gives none: settings, size, some samples. Its code is the run's."""
        chosen = sorted({round(k * (self._size - 1) / (_LOOKED_AT - 1)) for k in range(_LOOKED_AT)})
        content = hashlib.sha256()
        for index in chosen:
            absorb(content, self._sample(index, index))
        settings = json.dumps(self._settings.settings, sort_keys=True, default=repr)
        parts = [settings, str(self._size), content.hexdigest()]
        return combined([self._text(), *parts] if by_text else parts)

    def _text(self) -> str:
        """The class as it is written, or its name where nobody can tell."""
        kind = type(self._dataset)
        try:
            return inspect.getsource(kind)
        except (OSError, TypeError):
            return kind.__qualname__


def _length(dataset: Any, told: str) -> int:
    """How many samples it has. Raises Failure where it cannot tell: 70 where its class is the user's own, else 78."""
    try:
        return len(dataset)
    except Exception as error:
        if own_place(error) is not None or is_out_of_memory(error):
            raise
        cause = f"{told}: its length cannot be told: {words(error)}"
        if place_of(type(dataset).__len__) is not None:
            raise returned(type(dataset).__len__, cause, "return a number") from error
        raise Failure(Exit.BAD_RECIPE, cause, "mend its arguments, or take another class") from error


def _rebuilt(threads: int, settings: Custom, seed: int, fingerprint: str) -> MapSource:
    torch.set_num_threads(threads)
    return MapSource(settings, seed, fingerprint)
