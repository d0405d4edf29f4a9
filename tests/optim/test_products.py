"""Products are products, whoever computes them: of any layout, of vectors, and of nothing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.optim import products
from drivetrain.optim.products import add_product, matmul

SIZES = st.integers(0, 70)


def matrix(rows, columns, turned, seed, dtype=torch.float32):
    shape = (columns, rows) if turned else (rows, columns)
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return drawn.mT if turned else drawn


@given(m=SIZES, k=SIZES, n=SIZES, turned=st.tuples(st.booleans(), st.booleans()))
def test_a_product_is_the_one_of_float64(m, k, n, turned):
    first, second = matrix(m, k, turned[0], 1), matrix(k, n, turned[1], 2)
    expected = (first.double() @ second.double()).float()
    torch.testing.assert_close(matmul(first, second), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("keep", [1.0, 0.9])
@given(m=SIZES, k=SIZES, n=st.integers(1, 70), block=st.integers(1, 3000))
def test_products_are_added_block_by_block(m, k, n, block, keep, dtype):
    weights, first, second = (matrix(*shape, False, 3, dtype) for shape in ((m, n), (m, k), (k, n)))
    expected = keep * weights.double() - 0.5 * first.double() @ second.double()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "BLOCK", block)
        add_product(weights, first, second, keep, -0.5)
    torch.testing.assert_close(weights, expected.to(dtype), rtol=1e-5, atol=1e-5)


def test_who_asks_for_less_precision_gets_torchs_own_product():
    first, second = matrix(64, 64, False, 1), matrix(64, 64, False, 2)
    try:
        torch.set_float32_matmul_precision("medium")
        assert torch.equal(matmul(first, second), first @ second)
    finally:
        torch.set_float32_matmul_precision("highest")
