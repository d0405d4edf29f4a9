"""Tables beside the samples: what is known of a user or an item, found by its key."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from drivetrain.data.column_files import open_columns
from drivetrain.data.recipe import ColumnFiles
from drivetrain.tasks.ranking.features import FeatureEncoder, OpenedLookup, SideEncoder, side_table
from drivetrain.tasks.ranking.recipe import Ranking


def open_lookups(settings: Ranking) -> dict[str, OpenedLookup]:
    """The tables of `task.lookups` by name, each read whole.

    Raises Failure: 66 where a file is missing, 65 where a row cannot be read or has a key that is there already.
    """
    found = {}
    for name, lookup in settings.lookups.items():
        features = {each: feature for each, feature in settings.features.items() if feature.lookup == name}
        encoder = SideEncoder(features, lookup.key)
        files = ColumnFiles(path=lookup.path, format=lookup.format)
        with TemporaryDirectory() as folder:  # nobody asks for these digests again
            source = open_columns(files, Path(folder) / "sources.json").encoded(encoder)
            rows = np.arange(len(source), dtype=np.int64)
            arrays = source.read(rows, rows).arrays  # type: ignore[attr-defined] - they are `Columns`
        table = side_table(arrays, encoder.encode_nothing(), lookup.path)
        found[name] = OpenedLookup(table, source.fingerprint)
    return found


class Encoders:
    """What reads samples, with their labels and without. Both share the tables of `task.lookups`, which are read once,
    when the first of them is asked for."""

    def __init__(self, settings: Ranking) -> None:
        self._settings = settings
        self._made: dict[bool, FeatureEncoder] = {}

    def get(self, *, labelled: bool) -> FeatureEncoder:
        """Raises Failure as `open_lookups`."""
        if labelled not in self._made:
            self._made[labelled] = FeatureEncoder(self._settings, self._sides, labelled=labelled)
        return self._made[labelled]

    @cached_property
    def _sides(self) -> dict[str, OpenedLookup]:
        return open_lookups(self._settings)
