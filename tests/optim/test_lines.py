"""Lines of a matrix, beside torch's own ways to them."""

import pytest
import torch

from drivetrain.optim.lines import add_lines, lines_of, put_lines

ROWS = [[], [4], [0, 3, 8]]


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dim", [1, 3, 16])
@pytest.mark.usefixtures("threads")
def test_lines_are_read_put_and_added_as_torch_does(rows, dim):
    matrix, rows = torch.randn(9, dim), torch.tensor(rows, dtype=torch.int64)
    lines = torch.randn(len(rows), dim)
    assert torch.equal(lines_of(matrix, rows), matrix[rows])
    for kind in (torch.float32, torch.bfloat16):
        found = matrix.to(kind)
        wanted = found.index_copy(0, rows, lines.to(kind))
        put_lines(found, rows, lines.to(kind))
        assert torch.equal(found, wanted)
    wanted = matrix.index_add(0, rows, lines)
    add_lines(matrix, rows, lines)
    assert torch.equal(matrix, wanted)


@pytest.mark.usefixtures("threads")
def test_a_stretch_of_a_matrix_is_put_where_it_lies():
    whole = torch.zeros(6, 2)
    put_lines(whole[2:4], torch.tensor([1]), torch.ones(1, 2))
    assert whole.sum(1).tolist() == [0, 0, 0, 2, 0, 0]
