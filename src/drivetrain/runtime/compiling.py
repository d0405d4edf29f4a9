"""Networks for torch's compiler, and how long it takes, in whatever step or evaluation it is that makes it work."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from drivetrain.runtime.heartbeat import Heartbeat


def compile_network(network: nn.Module) -> None:
    """Have a network compiled when it is first called."""
    # Of a class of torch's own, such as nn.Sequential, `compile` compiles nothing: the compiler passes torch's frames
    # over, and asked for the method itself it puts one of its own around it.
    if type(network).forward.__module__.partition(".")[0] == "torch":
        network.forward = torch.compile(network.forward)
    else:
        network.compile()


class CompileClock:
    """Adds up the seconds in which something is compiled. Meanwhile the process is at phase `compile`."""

    def __init__(self, heartbeat: Heartbeat, clock: Callable[[], float] = time.monotonic) -> None:
        self._heartbeat, self._clock = heartbeat, clock
        self._phase = heartbeat.phase
        self._began: float | None = None
        self._seconds = 0.0

    def begin(self, *_: Any) -> None:
        """Compiling begins; torch tells only the outermost one of several."""
        self._phase, self._began = self._heartbeat.phase, self._clock()
        self._heartbeat.enter("compile")

    def end(self, *_: Any) -> None:
        """It has ended, as it should or not."""
        if self._began is not None:
            self._seconds += self._clock() - self._began
            self._began = None
            self._heartbeat.enter(self._phase)

    def take(self) -> float:
        """Seconds since this was last asked."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def watch_compiler(heartbeat: Heartbeat, stack: ExitStack) -> CompileClock:
    """A clock that runs whenever torch's compiler works, until the stack is undone.

    Where nobody has loaded the compiler by now, nothing is compiled, and it is not loaded: that takes a second.
    """
    watch = CompileClock(heartbeat)
    if "torch._dynamo" in sys.modules:
        from torch._dynamo.callback import callback_handler

        callback_handler.register_start_callback(watch.begin)
        callback_handler.register_end_callback(watch.end)
        stack.callback(callback_handler.remove_end_callback, watch.end)
        stack.callback(callback_handler.remove_start_callback, watch.begin)
    return watch
