"""Curves as the page reads them."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from drivetrain.board.zoom import Curve


def encoded(found: Mapping[str, Curve], head: Mapping[str, Any]) -> bytes:
    """Curves as the page reads them: the length of the head (u32, little endian), the head, and of each curve x (f8),
    low, high, mean (f4) and flags (u1), each filled up to a multiple of eight bytes."""
    told = []
    for name, curve in found.items():
        told.append({"name": name, "length": len(curve.x), "exact": curve.exact})
    line = json.dumps({**head, "curves": told}).encode()
    line += b" " * (-(4 + len(line)) % 8)
    parts = [struct.pack("<I", len(line)), line]
    for curve in found.values():
        for column, kind in ((curve.x, "<f8"), (curve.low, "<f4"), (curve.high, "<f4"), (curve.mean, "<f4")):
            parts.append(_padded(column.astype(kind).tobytes()))
        parts.append(_padded(curve.flags.tobytes()))
    return b"".join(parts)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 8)
