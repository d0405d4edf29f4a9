"""Exceptions of torch told as what they are."""

import errno

import pytest
import torch

from drivetrain.runtime.mistakes import failure_of

CUDA = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 15.89 GiB of which 14.04 GiB is "
    "free. Process 1 has 1.85 GiB memory in use."
)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (torch.OutOfMemoryError(CUDA), "20.00 GiB more memory were asked for than the accelerator has"),
        (RuntimeError("CUDA error: out of memory"), "more memory was asked for than the accelerator has"),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            "more memory was asked for than the accelerator has",
        ),
        (
            RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes."
            ),
            "4.0 KiB more memory were asked for than this machine has",
        ),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "more memory was asked for than this machine has"),
        (MemoryError(), "more memory was asked for than this machine has"),
    ],
)
def test_too_little_memory_is_told_with_what_was_asked_for_and_where(error, cause):
    failure = failure_of(error, rank=1, step=3, phase="backward")
    assert failure is not None
    assert failure.outcome.cause == cause
    assert failure.outcome.where == {"rank": 1, "step": 3, "phase": "backward", "class": "oom"}
    assert "lower batch.micro" in failure.outcome.line()


def test_other_errors_that_are_not_the_users_are_left_to_others():
    assert failure_of(RuntimeError("Expected all tensors to be on the same device")) is None
