"""What torch's compiler does, and how long it takes, in whatever step or evaluation it is that makes it work."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any, NamedTuple

from drivetrain.runtime.heartbeat import Heartbeat
from drivetrain.runtime.imports import after_import
from drivetrain.spec.text import printable, shortened

_MANY = 1 << 30
_LENGTH = 200  # characters of a reason


class Compilation(NamedTuple):
    """A graph that was made, or that could not be made, within a step or after it.

    `phase` is what the process was at: `forward`, `backward`, `evaluation` ... `function` is what was compiled, as
    `FILE:LINE NAME`. `why` is "first", or what of the graphs before did not hold, or why there is none.
    """

    step: int
    phase: str
    function: str
    seconds: float
    why: str
    cached: bool


class Compiler(NamedTuple):
    """What is asked of torch's compiler, and what it has answered."""

    seconds: Callable[[], float] = float
    """Seconds that it has worked since this was last asked."""
    found: Callable[[], Sequence[Compilation]] = tuple
    """What it has made since this was last asked."""


def eager() -> AbstractContextManager:
    """While entered, what was compiled runs as it is written. Where nobody has loaded the compiler nothing was."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    import torch  # it is loaded by now

    return torch.compiler.set_stance("force_eager")


class CompileClock:
    """Adds up the seconds in which something is compiled. Meanwhile the process is at phase `compile`."""

    def __init__(
        self,
        heartbeat: Heartbeat,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._heartbeat, self._clock = heartbeat, clock
        self._at = heartbeat.step, heartbeat.phase
        self._began: float | None = None
        self._seconds = 0.0
        self._metrics: Callable[[], Sequence[Any]] = tuple
        self._last: Any = None
        self._found: list[Compilation] = []
        self._functions: dict[str, str] = {}

    def follow(self, metrics: Callable[[], Sequence[Any]]) -> None:
        """From here on look at these: the newest of what torch keeps of each compilation, once it is over."""
        self._metrics, known = metrics, metrics()
        self._last = known[-1] if known else None

    def begin(self, *_: Any) -> None:
        """Compiling begins; torch tells only the outermost one of several."""
        self._look()  # what ended before: torch keeps a few only
        self._at, self._began = (self._heartbeat.step, self._heartbeat.phase), self._clock()
        self._heartbeat.enter("compile")

    def end(self, *_: Any) -> None:
        """It has ended, as it should or not."""
        if self._began is not None:
            self._seconds += self._clock() - self._began
            self._began = None
            self._heartbeat.enter(self._at[1])

    def take(self) -> float:
        """Seconds since this was last asked."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def found(self) -> list[Compilation]:
        """What was compiled since this was last asked."""
        self._look()
        found, self._found = self._found, []
        return found

    def _look(self) -> None:
        for told in _since(self._metrics(), self._last):
            self._last = told
            # The backward pass has the forward one's number, and no name.
            if told.co_name is not None:
                self._functions[told.compile_id] = f"{told.co_filename}:{told.co_firstlineno} {told.co_name}"
            if told.is_forward is False or told.graph_op_count or told.fail_reason:
                self._found.append(_compilation(told, self._functions.get(told.compile_id, ""), *self._at))


def _since(metrics: Sequence[Any], last: Any) -> Iterator[Any]:
    """Those behind the last one that is known."""
    first = 0
    for place, told in enumerate(metrics, 1):
        if told is last:
            first = place
    yield from metrics[first:]


def _compilation(told: Any, function: str, step: int, phase: str) -> Compilation:
    seconds = (told.end_time_us - told.start_time_us) / 1e6
    misses = told.inductor_fx_local_cache_miss_count or 0
    hits = told.inductor_fx_local_cache_hit_count or 0
    return Compilation(step, phase, function, seconds, _why(told), cached=bool(hits) and not misses)


def _why(told: Any) -> str:
    """In one line, what made the compiler work, or why it could not."""
    if told.fail_reason:
        return _line(f"not compiled: {told.fail_reason}")
    if told.recompile_reason:
        return _line(told.recompile_reason.partition(": ")[2] or told.recompile_reason)
    return "first"


def _line(text: str) -> str:
    return shortened(printable(text.strip().partition("\n")[0]), _LENGTH)


def watch_compiler(heartbeat: Heartbeat, stack: ExitStack) -> Compiler:
    """What hears of torch's compiler whenever it works, until the stack is undone.

    Meanwhile it never gives up on a function that it had to compile often: which passes are compiled would then follow
    from all that a process has seen, and be others after a resume. And what is compiled draws the random numbers that
    it draws without: other stages of a pipeline go on from there. Nobody is made to load the compiler, which takes a
    second: it is watched from where somebody does, be it within a step.
    """
    watch = CompileClock(heartbeat)
    stack.enter_context(after_import("torch._dynamo", partial(_hear, watch, stack)))
    return Compiler(watch.take, watch.found)


def _hear(watch: CompileClock, stack: ExitStack) -> None:
    """Let a clock hear of the compiler, which is loaded by now, until the stack is undone."""
    from torch._dynamo import config
    from torch._dynamo.callback import callback_handler
    from torch._dynamo.utils import get_compilation_metrics
    from torch._inductor import config as inductor

    watch.follow(get_compilation_metrics)
    stack.enter_context(config.patch(recompile_limit=_MANY, accumulated_recompile_limit=_MANY))
    stack.enter_context(inductor.patch(fallback_random=True))
    callback_handler.register_start_callback(watch.begin)
    callback_handler.register_end_callback(watch.end)
    stack.callback(callback_handler.remove_end_callback, watch.end)
    stack.callback(callback_handler.remove_start_callback, watch.begin)
