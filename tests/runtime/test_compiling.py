"""What torch's compiler takes is told apart, whoever has asked it to work."""

import subprocess
import sys
from contextlib import ExitStack

import pytest
import torch
import torch._dynamo

from clock import Clock
from drivetrain.runtime.compiling import CompileClock, watch_compiler
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
    seen = []

    def backend(graph, inputs):
        seen.append(heartbeat.phase)
        return graph.forward

    heartbeat = Heartbeat()
    with ExitStack() as stack:
        watch = watch_compiler(heartbeat, stack)
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(3))
        assert watch.seconds() > 0
    torch.compile(lambda x: x + 2, backend=backend)(torch.ones(3))
    assert watch.seconds() == 0
    assert seen == ["compile", "start"]


def test_each_graph_is_told_with_its_place_its_time_and_what_did_not_hold():
    def doubled(x):
        return x + x

    heartbeat = Heartbeat()
    with ExitStack() as stack:
        watch = watch_compiler(heartbeat, stack)
        compiled = torch.compile(doubled, backend="aot_eager", dynamic=False)
        heartbeat.step = 7
        heartbeat.enter("forward")
        for size in (3, 3, 4):
            compiled(torch.ones(size))
        first, again = watch.found()
        assert watch.found() == []
    assert (first.step, first.phase, first.why) == (7, "forward", "first")
    assert first.function == f"{__file__}:{doubled.__code__.co_firstlineno} doubled"
    assert first.seconds > 0
    assert again.why == "tensor 'x' size mismatch at index 0. expected 3, actual 4"


def test_a_function_of_many_sizes_is_compiled_for_each_as_long_as_it_is_watched():
    def tripled(x):
        return x * 3

    with ExitStack() as stack:
        watch = watch_compiler(Heartbeat(), stack)
        compiled = torch.compile(tripled, backend="aot_eager", dynamic=False)
        for size in range(2, 14):  # torch gives up after eight
            compiled(torch.ones(size))
        assert len(watch.found()) == 12
    assert torch._dynamo.config.recompile_limit == 8


_LATE = """
import sys
from contextlib import ExitStack
import torch
from drivetrain.runtime.compiling import watch_compiler
from drivetrain.runtime.heartbeat import Heartbeat

assert "torch._dynamo" not in sys.modules
with ExitStack() as stack:
    watch = watch_compiler(Heartbeat(), stack)
    assert (watch.seconds(), list(watch.found())) == (0.0, [])
    torch.compile(torch.sin, backend="eager")(torch.ones(3))
    from torch._dynamo import config
    from torch._inductor import config as inductor
    assert inductor.fallback_random and config.recompile_limit > 1000
    assert watch.seconds() > 0
    assert [made.why for made in watch.found()] == ["first"]
assert not inductor.fallback_random and config.recompile_limit == 8
assert sys.modules["torch._dynamo"].__spec__.loader.__class__.__name__ == "SourceFileLoader"
"""


def test_a_compiler_that_is_loaded_within_a_step_is_watched_from_there():
    command = [sys.executable, "-B", "-c", _LATE]  # with an option, so no fork of one that has loaded it
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
