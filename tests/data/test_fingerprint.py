import random

from hypothesis import given
from hypothesis import strategies as st

from drivetrain.data.fingerprint import checksum

ROW = 8 * 4096
"""Bytes of a row of the table that sums are taken of."""
DATA = random.Random(0).randbytes(3 * ROW + 13)


@given(st.integers(1, len(DATA)), st.data())
def test_any_flipped_bit_and_any_two_words_that_change_places_change_the_checksum(size, data):
    """Of stretches with a table of words and without one, and behind it."""
    whole = bytearray(DATA[:size])
    before = checksum(bytes(whole))
    flipped = bytearray(whole)
    flipped[data.draw(st.integers(0, size - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert checksum(bytes(flipped)) != before
    words = [data.draw(st.integers(0, max(size // 8 - 1, 0))) * 8 for _ in range(2)]
    first, second = (bytes(whole[at : at + 8]) for at in words)
    whole[words[0] : words[0] + len(second)], whole[words[1] : words[1] + len(first)] = second, first
    assert (checksum(bytes(whole)) != before) == (first != second)


def test_rows_of_words_that_change_places_and_zeros_at_the_end_change_the_checksum():
    turned = DATA[ROW : 2 * ROW] + DATA[:ROW] + DATA[2 * ROW :]
    sums = [checksum(data) for data in (DATA, turned, DATA + bytes(1), DATA + bytes(ROW), bytes(ROW), bytes(2 * ROW))]
    assert len(set(sums)) == len(sums)


def test_checksums_that_indexes_keep_stay_what_they_are():
    assert [checksum(data) for data in (b"", b"a row\n", DATA)] == FROZEN


FROZEN = [0, 2981998717, 445731535]
