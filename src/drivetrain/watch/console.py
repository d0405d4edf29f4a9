"""The run as a person watches it: one live line, evaluations, samples, and where everything is at the end."""

from __future__ import annotations

import io
import math
import shlex
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from drivetrain.ledger.records import (
    AttemptRecord,
    CommandRecord,
    CommitRecord,
    CompileRecord,
    EvaluationRecord,
    ExitRecord,
    FinalRecord,
    MissRecord,
    NoteRecord,
    Record,
    RollbackRecord,
    ShowRecord,
    StatisticsRecord,
    StepRecord,
    TrainingRecord,
)
from drivetrain.ledger.run_summary import goes_back_to
from drivetrain.ledger.throughput import full_rate, work
from drivetrain.spec.exits import Exit, Outcome
from drivetrain.spec.text import printable

_WINDOW = 5.0  # seconds of steps that the rate is taken over
_REFRESH = 0.1  # seconds between two pictures of the live line
_PLAIN = (5.0, 60.0)  # seconds between two plain lines: at first, and at most in a long run
_BAR = (6, 24)  # characters: less is no picture, more says no more
_LINES = 24  # of a shown text; its file has all


Work = tuple[float, int, int]
"""Seconds, and the samples and tokens that were trained in them."""
_NONE: Work = (0.0, 0, 0)


def _sum(one: Work, other: Work) -> Work:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


class _Pace:
    """How fast an attempt trains, over its last seconds and over all of it. `full_rate` are the samples a second that
    would be an MFU of 1, 0 where that is not known."""

    def __init__(self, full_rate: float = 0.0) -> None:
        self.unit = "samples"
        self.whole: Work = _NONE
        self.window: Work = _NONE
        self._recent: deque[Work] = deque()
        self._full_rate = full_rate

    def add(self, record: StepRecord) -> None:
        """One more step."""
        self.unit = "tokens" if "tokens" in record.counts else "samples"
        made = work(record)
        # Running sums: there may be thousands of steps in the window.
        self._recent.append(made)
        self.whole = _sum(self.whole, made)
        self.window = _sum(self.window, made)
        while len(self._recent) > 1 and self.window[0] > _WINDOW:
            seconds, samples, tokens = self._recent.popleft()
            self.window = _sum(self.window, (-seconds, -samples, -tokens))

    def step_seconds(self) -> float:
        """Seconds of a step, as the last ones took; there is one."""
        return self.window[0] / len(self._recent)

    def rate(self, made: Work) -> str:
        """Tokens or samples a second and, where it is known, the MFU."""
        seconds, samples, tokens = made
        seconds = max(seconds, 1e-9)
        units = tokens if self.unit == "tokens" else samples
        told = f"{amount(units / seconds)} {self.unit}/s"
        if self._full_rate:
            told += f"  {samples / seconds / self._full_rate:.1%} MFU"
        return told


class ConsoleSink:
    """Progress for a terminal, or plain lines where there is none. Earlier attempts' records are passed over."""

    def __init__(self, console: Console, started: float) -> None:
        """`started`: attempts that were started before this Unix time are earlier ones."""
        self._console = console
        self._since = started
        self._mine = False  # whether the records that come are of an attempt to be shown
        self._started = started  # the attempt
        self._live: Live | None = None
        self._shown = 0.0
        self._steps = 0
        self._reached = 0  # step
        self._pace = _Pace()

    def record(self, record: Record) -> None:
        """Show one record."""
        if isinstance(record, AttemptRecord):
            self._mine = record.started >= self._since
        # Earlier attempts are passed over, but for how far they came: by that it is told which steps are made again.
        if self._mine:
            self._show_record(record)
        if isinstance(record, StepRecord):
            self._reached = record.step
        elif (begin := goes_back_to(record)) is not None:
            self._reached = begin

    def _show_record(self, record: Record) -> None:
        match record:
            case StepRecord():
                self._step(record)
            case AttemptRecord():
                self._attempt(record)
            case EvaluationRecord():
                self._scores("evaluation", record)
            case FinalRecord():
                self._scores("test" if record.part == "test" else "full evaluation", record)
            case ShowRecord():
                self._show(record)
            case StatisticsRecord() | TrainingRecord() | CompileRecord():
                for words in _measured(record):
                    self._print(Text(words, style="dim"))
            case CommitRecord():
                self._commit(record)
            case CommandRecord():
                self._command(record)
            case RollbackRecord():
                self._rollback(record)
            case MissRecord():
                self._print(Text(f"commit missed: {printable(record.cause)}", style="bold yellow"))
            case NoteRecord():
                self._print(Text(f"note: {printable(record.text)}", style="yellow"))
            case ExitRecord():
                self._exit(record)

    def close(self) -> None:
        """Leave the last picture of the live line standing."""
        if self._live:
            self._live.stop()
            self._live = None

    def _attempt(self, record: AttemptRecord) -> None:
        self._started = record.started
        self._steps = record.budget.steps
        self._pace = _Pace(full_rate(record))
        parameters = sum(record.parameters.values())
        processes = f"{record.world} process{'es' if record.world > 1 else ''}"
        self._print(Text(f"{amount(parameters)} parameters, {processes}, {self._steps} steps"))
        lost = self._reached - record.from_step
        if lost > 0:
            words = f"{lost} steps after it are" if lost > 1 else "1 step after it is"
            self._print(Text(f"goes on after step {record.from_step}; {words} made again"))
        elif record.from_step:
            self._print(Text(f"goes on after step {record.from_step}"))
        if self._console.is_terminal and self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.start()

    def _step(self, record: StepRecord) -> None:
        self._pace.add(record)
        left_out = []
        for name, why in (record.skipped or {}).items():
            if why != "overflow":  # that is the loss scale's search for its place
                left_out.append(f"{printable(name)}: {why}")
        if left_out:
            self._print(Text(f"step {record.step} is left out ({', '.join(left_out)})", style="yellow"))
        pause = _REFRESH
        if not self._live:
            # Plain lines stay in a log: the longer the run, the fewer of them.
            first, most = _PLAIN
            pause = min(most, max(first, (record.time - self._started) / 20))
        if record.step == self._steps or record.time - self._shown >= pause:
            self._shown = record.time
            if self._live:
                self._live.update(self._line(record), refresh=True)
            else:
                self._print(self._words(record))

    def _scores(self, what: str, record: EvaluationRecord | FinalRecord) -> None:
        for name, metrics in record.metrics.items():
            words = "  ".join(f"{printable(metric)} {_number(float(value))}" for metric, value in metrics.items())
            words = words or f"{record.counts[name]} samples, of which no metric has gathered anything"
            self._print(Text(f"{what} at step {record.step}  {printable(name)}  {words}", style="bold"))

    def _show(self, record: ShowRecord) -> None:
        for name, text in record.text.items():
            title = Text(f"{printable(name)} at step {record.step}")
            lines = printable(text, keep="\n\t").strip("\n").split("\n")
            body = Text("\n".join(lines[:_LINES]))
            if len(lines) > _LINES:
                where = ""
                if name in record.files:
                    where = f" in {printable(record.files[name])}"
                body.append(f"\n... {len(lines) - _LINES} more lines{where}", style="dim")
            self._print(Panel(body, title=title, title_align="left", border_style="dim"))

    def _commit(self, record: CommitRecord) -> None:
        size = f"{record.bytes / 1e6:.1f} MB, training waited {record.seconds:.2f} s"
        self._print(Text(f"commit {printable(record.name)}  {size}", style="dim"))

    def _command(self, record: CommandRecord) -> None:
        told = printable(f"{record.verb} {record.argument}".rstrip())
        why = f"done after step {record.step}"
        if record.refused is not None:
            why = f"refused: {printable(record.refused)}"
        self._print(Text(f"control: {told}  {why}", style="cyan"))

    def _rollback(self, record: RollbackRecord) -> None:
        count = len(record.samples)
        left_out = "1 sample is" if count == 1 else f"{count} samples are"
        undone = f"step {record.step} is undone, back to step {record.to}: {printable(record.why)}"
        words = f"{undone}; {left_out} left out from there on"
        self._print(Text(words, style="yellow"))

    def _exit(self, record: ExitRecord) -> None:
        self.close()
        if record.code == Exit.DONE:
            took = duration(record.time - self._started)
            self._print(Text(f"done in {took}: {printable(record.cause)}", style="green"))
        pace = self._pace
        seconds, samples, tokens = pace.whole
        if seconds:
            trained = amount(tokens if pace.unit == "tokens" else samples)
            self._print(Text(f"trained {trained} {pace.unit}: {pace.rate(pace.whole)}"))

    def _print(self, what: RenderableType) -> None:
        self._console.print(what, highlight=False, soft_wrap=not isinstance(what, Panel))

    def _words(self, record: StepRecord) -> Text:
        losses = "  ".join(f"{printable(name)} {_number(value)}" for name, value in record.losses.items())
        left = (self._steps - record.step) * self._pace.step_seconds()
        rate = next(iter(record.lr.values()), 0.0)
        return Text(
            f"step {record.step:>{len(str(self._steps))}}/{self._steps}  {losses}  "
            f"{self._pace.rate(self._pace.window)}  {duration(left)} left  lr {rate:.1e}"
        )

    def _line(self, record: StepRecord) -> Text:
        words = self._words(record)
        least, most = _BAR
        width = min(most, self._console.width - words.cell_len - 3)
        if width < least:
            return words
        full = width * record.step // max(1, self._steps)
        return Text.assemble(("━" * full, "green"), ("━" * (width - full), "dim"), "  ", words)


def closing(console: Console, run: Path, outcome: Outcome, command: str) -> None:
    """The summary after a run: where everything is, and what to run next."""
    shown = _near(run)
    quoted = shlex.quote(shown)
    lines = [("run", shown)]
    gallery = sorted((run / "gallery").glob("step-*"))
    commits = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
    if commits:
        newest = commits[-1]
        if len(commits) > 1:
            newest = f"{len(commits)} commits, the newest {newest}"
        lines.append(("commits", f"{shown}/checkpoints/  ({newest})"))
    if gallery:
        lines.append(("gallery", f"{_near(gallery[-1])}/"))
    if (run / "tensorboard").is_dir():
        lines.append(("tensorboard", f"tensorboard --logdir {quoted}/tensorboard"))
    if outcome.code is Exit.STOPPED:
        lines.append(("go on", command))
    if (run / "ledger.jsonl").is_file():
        lines.append(("report", f"drivetrain report {quoted}"))
    if outcome.code is Exit.DONE:
        lines.append(("evaluate", f"drivetrain evaluate {quoted}"))
        lines.append(("export", f"drivetrain export {quoted} --to exported"))
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        console.print(
            Text(f"  {name:<{width}}  ", style="dim") + Text(printable(text)), highlight=False, soft_wrap=True
        )


def tolerant(console: Console) -> Console:
    """The console, with a '?' for every character that its encoding does not have, rather than an error."""
    if isinstance(console.file, io.TextIOWrapper):
        console.file.reconfigure(errors="replace")
    return console


def _near(path: Path) -> str:
    """The path from here, if it is below."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _measured(record: StatisticsRecord | TrainingRecord | CompileRecord) -> Iterator[str]:
    """Lines on what a step's samples, gradients and weights tell, and on what was compiled for it."""
    if isinstance(record, StatisticsRecord):
        yield from _statistics(record)
        return
    if isinstance(record, CompileRecord):
        again = "" if record.why == "first" else f": {record.why}"
        where = record.modules or record.function
        yield printable(f"compiled {where} in {record.seconds:.1f} s ({record.phase}){again}")
        return
    told = []
    for name, value in record.metrics.items():
        mean = f" (mean {_number(record.means[name])})" if name in record.means else ""
        told.append(f"{printable(name)} {_number(float(value))}{mean}")
    yield f"training at step {record.step}  {'  '.join(told)}"


def _statistics(record: StatisticsRecord) -> Iterator[str]:
    """A line for each network of which something was measured."""
    for network, numbers in record.networks.items():
        words = "  ".join(f"{printable(name)} {_number(value)}" for name, value in numbers.items())
        if words:
            yield f"statistics of step {record.step}  {printable(network)}  {words}"


def _number(value: float) -> str:
    """Four digits, zeros too, so that the live line does not jump."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:#.4g}".rstrip(".")


def amount(value: float) -> str:
    """Three digits and a suffix, such as 25.4k."""
    for limit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= limit * 0.9995:  # what three digits round to the limit
            digits = f"{value / limit:#.3g}".rstrip(".")
            return f"{digits}{suffix}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """As m:ss or h:mm:ss."""
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{whole % 60:02d}"
    return f"{minutes}:{whole % 60:02d}"
