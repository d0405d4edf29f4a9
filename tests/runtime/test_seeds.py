import torch

from drivetrain.runtime.mix import mix
from drivetrain.runtime.seeds import seed_generators

CPU = torch.device("cpu")


def test_seeding_decides_what_is_drawn():
    seed_generators(CPU, mix(0, 1))
    first = torch.rand(4)
    seed_generators(CPU, mix(0, 1))
    assert torch.equal(torch.rand(4), first)
