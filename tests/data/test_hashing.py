import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.data.hashing import hash_strings, rows_of

MASK = (1 << 64) - 1
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def reference(text: bytes, seed: int) -> int:
    """The hash as it is defined, a string at a time."""

    def mix(value):
        value ^= value >> 32
        value = value * FIRST & MASK
        value ^= value >> 29
        value = value * SECOND & MASK
        return value ^ value >> 32

    value = (len(text) ^ ((seed * 0x9E3779B97F4A7C15 + 1) & MASK)) * SECOND & MASK
    for start in range(0, len(text), 8):
        value = mix(value ^ int.from_bytes(text[start : start + 8], "little"))
    return value


@given(
    st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=40),
    st.integers(0, 2**40),
    st.sampled_from([pa.string(), pa.large_string()]),
    st.data(),
)
def test_strings_hash_as_the_plain_reference_says(words, seed, kind, data):
    start = data.draw(st.integers(0, len(words)))
    found = hash_strings(pa.array(words, kind)[start:], seed)
    assert found.tolist() == [reference((word or "").encode(), seed) for word in words[start:]]


def test_a_null_hashes_as_an_empty_string_whatever_lies_under_it():
    values = pa.array(["a", "hidden", "c"]).buffers()
    hidden = pa.StringArray.from_buffers(3, values[1], values[2], pa.py_buffer(b"\x05"))
    assert hidden.to_pylist() == ["a", None, "c"]
    assert hash_strings(hidden)[1] == reference(b"", 0)


def test_more_strings_than_a_batch_hash_alike():
    words = [f"user_{n % 977}" * (n % 3) for n in range(40_000)]
    assert hash_strings(pa.array(words), 7).tolist() == [reference(word.encode(), 7) for word in words]


@pytest.mark.parametrize(
    ("word", "seed", "digest"),
    [
        ("", 0, 0x94D049BB133111EB),
        ("a", 0, 0xFEC23D589C4B5C3A),
        ("12345678", 0, 0xD086986568B646D9),
        ("123456789", 0, 0x3F9D41482003FEDF),
        ("späte Grüße", 5, 0xBB9C374057075889),
    ],
)
def test_hashes_never_change(word, seed, digest):
    assert hash_strings(pa.array([word]), seed)[0] == digest


def test_rows_are_spread_evenly_and_stay_below_the_size():
    hashes = hash_strings(pa.array([f"user_{n}" for n in range(100_000)]))
    assert len(np.unique(hashes)) == 100_000
    counts = np.bincount(rows_of(hashes, 1000), minlength=1000)
    assert len(counts) == 1000
    assert 0.8 < ((counts - 100) ** 2 / 100).mean() < 1.2
    extremes = np.array([0, MASK], np.uint64)
    assert rows_of(extremes, 1 << 32).tolist() == [0, (1 << 32) - 1]
    assert rows_of(extremes, 7).tolist() == [0, 6]
