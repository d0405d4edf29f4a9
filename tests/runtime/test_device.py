import pytest
import torch

from drivetrain.runtime.device import configure_determinism

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _as_before():
    threads, matmul = torch.get_num_threads(), torch.get_float32_matmul_precision()
    mode = torch.get_deterministic_debug_mode()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(matmul)
    torch.set_deterministic_debug_mode(mode)


@pytest.mark.parametrize("matmul", ["highest", "high", "medium"])
@pytest.mark.parametrize("exact", [False, True])
def test_what_numbers_depend_on_is_as_the_recipe_says(matmul, exact):
    configure_determinism(CPU, 1, matmul, exact=exact)
    assert torch.get_float32_matmul_precision() == matmul
    assert torch.get_num_threads() == 1
    assert torch.get_deterministic_debug_mode() == (2 if exact else 1)
