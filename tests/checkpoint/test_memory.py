"""Copies that are looked at while they are made."""

import numpy as np
import pytest

from drivetrain.checkpoint.memory import checksum, copied, same


@pytest.mark.parametrize("sizes", [[], [0, 1, 7, 8, 9, 1000], [0, (20 << 20) + 5, 3, 9 << 20]])
def test_every_byte_is_copied_and_the_checksums_are_those_of_the_sources_also_by_two_threads(sizes):
    random = np.random.default_rng(0)
    sources = [random.integers(0, 256, size, dtype=np.uint8) for size in sizes]
    targets = [np.zeros_like(source) for source in sources]
    assert copied(list(zip(sources, targets, strict=True))) == [checksum(source) for source in sources]
    assert all((source == target).all() for source, target in zip(sources, targets, strict=True))
    for source in sources:
        source[len(source) // 2 :][:1] ^= 16
    changed = copied([(source, None) for source in sources])
    assert [a != b for a, b in zip(changed, map(checksum, targets), strict=True)] == [size > 0 for size in sizes]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1000])
def test_memory_is_the_same_where_every_byte_is(size):
    one = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    assert same(one, one.copy())
    assert not same(one, np.append(one, one[:1] + 1 if size else np.uint8(0)))
    for at in range(size):
        other = one.copy()
        other[at] ^= 1
        assert not same(one, other)
