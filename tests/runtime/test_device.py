import subprocess
import sys

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


PLUG_IN = """
import torch
from types import SimpleNamespace

torch.utils.rename_privateuse1_backend("toy")
torch._register_device_module("toy", SimpleNamespace(MODULE))
import torch.distributed as dist

from drivetrain.runtime.device import claim_key, has_own_memory, name
from drivetrain.runtime.seeds import seed_generators, undrawn

device, host = torch.device("toy", 0), torch.device("cpu")
own = torch.Generator()
"""
WITH_GENERATORS = """default_generators=[torch.Generator()], get_device_name=lambda device: "Toy 1" """
WITHOUT = """manual_seed=lambda value: own.manual_seed(value), get_rng_state=lambda: own.get_state(),
    set_rng_state=lambda state: own.set_state(state)"""


@pytest.mark.parametrize(
    ("module", "generator"), [(WITH_GENERATORS, "torch.toy.default_generators[0]"), (WITHOUT, "own")], ids=["yes", "no"]
)
def test_a_device_that_a_plug_in_brings_is_seeded_as_any_other(module, generator):
    look = f"""
generator = {generator}
seed_generators(device, 7)
first = torch.rand(3, generator=generator)
seed_generators(device, 7)
with undrawn(device):
    torch.rand(5, generator=generator)
assert torch.equal(torch.rand(3, generator=generator), first)
seed_generators(host, 7)
assert not torch.equal(torch.rand(3, generator=generator), first)
assert has_own_memory(device) and not has_own_memory(host)
"""
    run_python(PLUG_IN.replace("MODULE", module) + look)


def test_a_plug_ins_name_and_backend_are_the_devices():
    look = """
dist.Backend.register_backend("toyccl", lambda *given: None, devices=["toy"])
assert name(device) == "Toy 1", name(device)
assert dist.get_default_backend_for_device(device) == "toyccl"
assert claim_key(device, world=1) != claim_key(host, world=1)
"""
    run_python(PLUG_IN.replace("MODULE", WITH_GENERATORS) + look)


def run_python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
