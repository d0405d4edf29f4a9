import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.data.batch_reader import MicroBatch
from drivetrain.engine.cut import cut
from drivetrain.spec.exits import Exit, Failure
from engines import micros


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 9))
def test_pieces_are_the_same_samples_in_order_each_at_a_place_of_its_own(sizes, most):
    whole = micros(*sizes)
    pieces = cut(whole, most)
    assert torch.equal(torch.cat([piece.batch for piece in pieces]), torch.cat([micro.batch for micro in whole]))
    assert np.concatenate([piece.ids for piece in pieces]).tolist() == list(range(sum(sizes)))
    assert all(piece.size == len(piece.batch) == len(piece.ids) <= most for piece in pieces)
    assert [piece.start for piece in pieces] == [int(piece.ids[0]) for piece in pieces]
    assert len({(piece.lane, piece.part) for piece in pieces}) == len(pieces)


def test_a_batch_that_has_more_than_samples_is_refused_with_what_it_has():
    for batch, words in (
        ({"x": torch.ones(4, 2), "scale": torch.ones(())}, r"a tensor \[\]"),
        ([torch.ones(4), ["a", "b", "c", "d"]], "type str"),
    ):
        with pytest.raises(Failure, match=words) as caught:
            cut([MicroBatch(batch, 4, 0, 0, 0, np.arange(4))], 2)
        assert caught.value.outcome.code == Exit.BAD_RECIPE
