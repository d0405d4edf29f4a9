"""What torch's compiler takes is told apart, whoever has asked it to work."""

from contextlib import ExitStack
from functools import partial

import pytest
import torch
from torch import nn

from clock import Clock
from drivetrain.runtime.compiling import CompileClock, compile_network, watch_compiler
from drivetrain.runtime.heartbeat import Heartbeat


def test_seconds_are_told_once_and_the_phase_is_what_it_was():
    clock, heartbeat = Clock(), Heartbeat()
    watch = CompileClock(heartbeat, clock)
    heartbeat.enter("backward")
    for seconds in (2.0, 3.0):
        watch.begin()
        assert heartbeat.phase == "compile"
        clock.sleep(seconds)
        watch.end()
        assert heartbeat.phase == "backward"
        clock.sleep(1.0)
    assert watch.take() == pytest.approx(5.0)
    assert watch.take() == 0.0


def test_the_compiler_of_torch_is_heard_until_the_stack_is_undone():
    import torch._dynamo

    seen = []

    def backend(graph, inputs):
        seen.append(heartbeat.phase)
        return graph.forward

    heartbeat = Heartbeat()
    with ExitStack() as stack:
        watch = watch_compiler(heartbeat, stack)
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(3))
        assert watch.take() > 0
    torch.compile(lambda x: x + 2, backend=backend)(torch.ones(3))
    assert watch.take() == 0
    assert seen == ["compile", "start"]


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, x):
        return self.inner(x)


class OwnSequential(nn.Sequential):
    pass


@pytest.mark.parametrize(
    "make",
    [
        Own,
        lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh()),
        lambda: OwnSequential(nn.Linear(3, 2)),
        lambda: nn.Linear(3, 2),
    ],
)
def test_networks_of_torchs_own_classes_are_compiled_too(make, monkeypatch):
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    network, x = make(), torch.ones(4, 3)
    plain, names = network(x), list(network.state_dict())
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    compile_network(network)
    assert torch.equal(network(x), plain)
    assert len(compiled) == 1
    assert list(network.state_dict()) == names
    network(x).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
