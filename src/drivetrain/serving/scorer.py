"""Scores of raw values by an export: `Scorer(folder)(rows)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .arrays import Arrays, Ragged, padded
from .features import FeatureSpec, SideTable, encoded
from .files import BadExport, load_program, load_weights, read_json
from .hashing import NAME
from .plain import PlainColumns

FORMAT = "drivetrain features 1"
"""What the file `features.json` begins with: another one is another way to read it."""
LOOKUP = "lookups."
"""What names of tensors begin with that are not the network's: lookups.TABLE.keys and so on."""
Inputs = dict[str, dict[str, Tensor]]


class Scorer:
    """A program, its weights, and how its features are made of columns.

    It holds no state between calls. Tables are mapped into memory: processes on a machine share them.
    """

    def __init__(self, folder: str | Path) -> None:
        """`folder` has `features.json`, `model.pt2` and `model.safetensors`. Raises BadExport where they are not what
        an export writes."""
        folder = Path(folder)
        path = folder / "features.json"
        spec = read_json(path, path.read_bytes())
        # The hash is a part of the format: by another one all ids would be other rows, and scores wrong without an
        # error.
        if (spec.get("format"), spec.get("hash")) != (FORMAT, {"function": NAME, "seed": 0}):
            why = f"{spec.get('format')!r}, hash {spec.get('hash')}: written for another version of this"
            raise BadExport(path, why)
        tensors = load_weights(folder / "model.safetensors")
        try:
            self._features = _specs(spec["features"])
            self._keys: dict[str, str] = spec["lookups"]
            self._padded, self._nulls = frozenset(spec["padded"]), tuple(spec["nulls"])
            self._weights, self._sides = _apart(tensors, self._keys)
            # Tensors that only training needs: the program takes exactly its own.
            for name in spec.get("training", ()):
                del self._weights[name]
            self.outputs: tuple[str, ...] = tuple(spec["outputs"])
            wanted = [column for feature in self._features.values() for column in feature.wanted()]
            self.columns: tuple[str, ...] = tuple(sorted({*wanted, *self._keys.values()}))
        except (KeyError, TypeError, AttributeError, ValueError, RuntimeError) as error:
            why = f"it does not say how features are made, or {folder} lacks a part of it ({error!r})"
            raise BadExport(path, why) from error
        self._program = load_program(folder / "model.pt2")

    def __call__(self, rows: Mapping[str, Sequence[Any]]) -> dict[str, np.ndarray]:
        """What the program says of rows, float32 [rows] or [rows, d], by output.

        `rows` has for each of `columns` a list of its values: numbers, texts or None; lists of them where a feature
        reads lists, or texts that it cuts. Others are not looked at. Raises ValueError, BadValue with row and column
        where a value is none of what its feature takes.
        """
        with torch.no_grad():
            outputs = self._program(self._weights, inputs_of(self.encoded(rows), self._padded))
        return {name: outputs[name].numpy() for name in self.outputs}

    def encoded(self, rows: Mapping[str, Sequence[Any]]) -> Arrays:
        """The arrays that the program's inputs are made of. Raises as a call."""
        reader = PlainColumns(rows, self.columns, self._nulls)
        arrays = encoded(self._features, reader)
        for name, side in self._sides.items():
            arrays |= side.of(reader.values(self._keys[name]))
        return arrays


def inputs_of(arrays: Arrays, whole: frozenset[str] | set[str]) -> Inputs:
    """A program's inputs, by feature: `ids`, int64 [samples] or, of lists, [ids] with `offsets`, int64 [samples + 1];
    `id_weights`, float32 as the ids; `numbers`, float32 [samples] or [samples, width].

    Lists of features in `whole` are padded in their place: [samples, longest], ids by -1 and weights by 0.
    """
    inputs: Inputs = {"ids": {}, "offsets": {}, "id_weights": {}, "numbers": {}}
    # In one order, whatever that of the columns was: the program was exported with this one.
    for key in sorted(arrays):
        part, _, name = key.partition(".")
        array = arrays[key]
        if isinstance(array, Ragged) and name in whole:
            array = padded(array, -1 if part == "ids" else 0)
        elif isinstance(array, Ragged):
            inputs["offsets"][name] = torch.from_numpy(np.ascontiguousarray(array.offsets))
            array = array.values
        inputs[part][name] = torch.from_numpy(np.ascontiguousarray(array))
    return inputs


def _specs(told: Mapping[str, Any]) -> dict[str, FeatureSpec]:
    return {name: FeatureSpec.from_json(feature) for name, feature in told.items()}


def _apart(tensors: Mapping[str, Tensor], lookups: Mapping[str, str]) -> tuple[dict[str, Tensor], dict[str, SideTable]]:
    """The network's tensors, and the tables beside the samples."""
    weights = {name: tensor for name, tensor in tensors.items() if not name.startswith(LOOKUP)}
    sides = {}
    for table in lookups:
        start, arrays = f"{LOOKUP}{table}.", {}
        own = {name.removeprefix(start): tensor.numpy() for name, tensor in tensors.items() if name.startswith(start)}
        for name, array in own.items():
            whole, _, part = name.rpartition("/")
            if part == "values":
                arrays[whole] = Ragged(array, own[f"{whole}/offsets"])
            elif not whole and name != "keys":
                arrays[name] = array
        sides[table] = SideTable(own["keys"].view(np.uint64), arrays)
    return weights, sides
