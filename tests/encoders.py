"""An encoder of columns for tests: small, and readable beside what it must give."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from drivetrain.data.columns import BadValue, Ragged
from drivetrain.data.hashing import hash_strings


class Small:
    """`n`: a number; `s`: the hash of a string; `l`: the bytes of it, ragged. `bad` is a string that it refuses."""

    columns = {"n": "number", "s": "string"}
    digest = "small"

    def encode(self, table):
        strings = table.column("s").chunk(0).cast(pa.string())
        words = [word or "" for word in strings.to_pylist()]
        if "bad" in words:
            raise BadValue(words.index("bad"), "s", "it is bad")
        letters = [word.encode() for word in words]
        offsets = np.concatenate([[0], np.cumsum([len(each) for each in letters])]).astype(np.int64)
        return {
            "n": table.column("n").to_numpy().astype(np.float32),
            "s": hash_strings(strings).view(np.int64),
            "l": Ragged(np.frombuffer(b"".join(letters), np.uint8), offsets),
            "length": np.array([len(word) for word in words]),
        }


def plain(columns):
    """Samples as `Small` makes them: pairs of a number and a string."""
    found, arrays = [], columns.arrays
    for n, letters, length in zip(arrays["n"], ragged(arrays["l"]), arrays["length"], strict=True):
        text = bytes(letters).decode()
        assert length == len(text)
        found.append((float(n), text))
    return found


def ragged(column):
    return [column.values[a:b] for a, b in zip(column.offsets, column.offsets[1:], strict=False)]
