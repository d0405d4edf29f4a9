import pytest

from drivetrain.launch import preparation
from drivetrain.launch.job import StartOptions
from drivetrain.launch.preparation import COMPILER, prepare_job
from drivetrain.spec.load import load


@pytest.mark.parametrize(
    ("overrides", "accelerator", "needed"),
    [
        ((), False, False),
        (("launch.processes=2",), False, False),
        (("device=cpu",), True, False),
        ((), True, True),
        (("compile=true",), False, True),
        (("activations=recompute",), False, True),
        (("optimizer.kind=sgd",), False, True),
        (("launch.processes=2", "parallel.shard=2"), False, True),
    ],
)
def test_the_compiler_is_loaded_before_workers_start_if_a_step_would_load_it(
    tmp_path, monkeypatch, overrides, accelerator, needed
):
    monkeypatch.setattr(preparation, "has_accelerator", lambda: accelerator)
    resolved = load("quickstart", overrides)
    job = prepare_job(resolved, run=tmp_path / "run", overrides=overrides, options=StartOptions())
    assert (COMPILER in job.preload) == needed
