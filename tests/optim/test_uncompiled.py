import subprocess
import sys

import pytest

CODE = """
import copy, sys
import torch
from torch import nn
from drivetrain.optim.network_optimizer import build_network_optimizers
from drivetrain.optim.recipe import AdamW, Constant
from drivetrain.optim.schedules import Horizon
from drivetrain.spec.amount import Scale
from drivetrain.spec.batches import Batches

torch.manual_seed(0)
ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
theirs.load_state_dict(ours.state_dict())
settings, horizon = AdamW(lr=0.1, weight_decay=0.0), Horizon(10, Scale(Batches(1)))
built = build_network_optimizers({"m": ours}, settings, Constant(), horizon)["m"]
inputs = torch.randn(5, 2, 3)

def gradients(network, number):
    network.zero_grad()
    network(inputs[number]).square().sum().backward()
    return [parameter.grad for parameter in network.parameters()]

for number in range(3):
    built.optimizer.zero_grad()
    built.step(gradients(ours, number))
    built.optimizer.load_state_dict(copy.deepcopy(built.optimizer.state_dict()))
print("torch._dynamo" in sys.modules)
import torch._dynamo
plain = torch.optim.AdamW(theirs.parameters(), lr=0.1, weight_decay=0.0, fused=True)
for number in range(3):
    gradients(theirs, number)
    plain.step()
built.optimizer.load_state_dict(built.optimizer.state_dict())
print(all(map(torch.equal, ours.parameters(), theirs.parameters())))
"""


@pytest.mark.cold
def test_adams_steps_on_a_cpu_do_without_torchs_compiler_to_the_same_bits():
    assert subprocess.check_output([sys.executable, "-c", CODE], text=True).split() == ["False", "True"]
