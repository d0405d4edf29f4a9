"""Warnings of libraries that mean nothing are kept back, and no others."""

import logging
import subprocess
import sys
import warnings

import pytest

import glues
from drivetrain.runtime.quiet import quiet_libraries


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torchao", "Failed to load %s: no such thing"),
        ("torch.utils._pytree", "%s is an Enum subclass and is now natively supported by torch.compile"),
        ("bitsandbytes.backends.cpu.ops", "Failed to load CPU gemm_4bit_forward from kernels-community: %s"),
        ("torch.fx._symbolic_trace", "is_fx_tracing will return true for both fx.symbolic_trace and %s"),
    ],
)
def test_a_message_that_means_nothing_is_kept_back_and_others_of_its_logger_are_told(name, message, caplog):
    quiet_libraries()
    quiet_libraries()
    logger = logging.getLogger(name)
    logger.addHandler(caplog.handler)
    try:
        logger.warning(message, "this")
        logger.warning("something else: %s", "that")
    finally:
        logger.removeHandler(caplog.handler)
    assert {record.getMessage() for record in caplog.records} == {"something else: that"}


@pytest.mark.parametrize(
    ("said", "kind", "module"),
    [
        (
            "Kind does not implement _stable_hash_for_caching. It is recommended",
            UserWarning,
            "torch._functorch._aot_autograd.autograd_cache",
        ),
        (
            "`torch.distributed.reduce_scatter_tensor` is deprecated. Please use",
            FutureWarning,
            "torch.distributed.c10d_logger",
        ),
    ],
)
def test_a_warning_is_kept_back_by_its_words_and_its_module(said, kind, module):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        quiet_libraries()
        warnings.warn_explicit(said, kind, "x.py", 1, module=module)
        warnings.warn_explicit(said, kind, "x.py", 1, module="mine")
        warnings.warn_explicit("something else", kind, "x.py", 1, module=module)
    assert [str(each.message) for each in caught] == [said, "something else"]


@pytest.mark.slow
@pytest.mark.cold
@pytest.mark.parametrize("more", [[], ["task.lora.rank=4", "launch.processes=2"]], ids=["plain", "adapters"])
def test_a_user_sees_no_warning_of_a_library_above_a_fine_tuning(tmp_path, more):
    place = glues.folders(tmp_path / "data")
    asked = [f"task.folder={place}", f"task.model={place / 'bert'}", "task.length=48", "budget={steps: 2}"]
    asked += ["schedule.warmup=null", "evaluate.every=null", "checkpoint.every=null", "checkpoint.keep_best=null"]
    done = subprocess.run(
        [sys.executable, "-m", "drivetrain", "train", "glue", *asked, *more, "--run", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
