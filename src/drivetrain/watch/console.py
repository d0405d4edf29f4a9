"""The run as a person watches it: one live line, evaluations, samples, and where everything is at the end."""

from __future__ import annotations

import math
from collections import deque
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from drivetrain.spec.exits import Exit, Outcome

_WINDOW = 5.0  # seconds of steps that the rate is taken over
_REFRESH = 0.1  # seconds between two pictures of the live line
_PLAIN = 5.0  # seconds between two plain lines
_BAR = 24  # characters


class ConsoleSink:
    """Progress for a terminal, or plain lines where there is none. Earlier attempts' records are passed over."""

    def __init__(self, console: Console, started: float) -> None:
        """`started`: records before this Unix time belong to earlier attempts."""
        self._console = console
        self._started = started
        self._live: Live | None = None
        self._shown = 0.0
        self._steps = 0
        self._reached = 0  # highest step of earlier attempts
        self._recent: deque[tuple[float, float, int]] = deque()  # seconds, units, steps
        self._unit = "samples"

    def record(self, record: dict[str, Any]) -> None:
        """Show one record."""
        if record["time"] < self._started:
            if record["kind"] == "step":
                self._reached = max(self._reached, record["step"])
            return
        show = getattr(self, f"_{record['kind']}", None)
        if show:
            show(record)

    def close(self) -> None:
        """Leave the last picture of the live line standing."""
        if self._live:
            self._live.stop()
            self._live = None

    def _attempt(self, record: dict[str, Any]) -> None:
        self._steps = record["budget"]["steps"]
        parameters = sum(record["parameters"].values())
        processes = f"{record['world']} process{'es' if record['world'] > 1 else ''}"
        begin = f"{_count(parameters)} parameters, {processes}, {self._steps} steps"
        if record["from_step"]:
            begin += f"; goes on after step {record['from_step']}"
        lost = self._reached - record["from_step"]
        if lost > 0:
            begin += f" ({lost} step{'s' if lost > 1 else ''} made before are made again)"
        self._print(Text(begin))
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.start()

    def _step(self, record: dict[str, Any]) -> None:
        seconds = record["seconds"] + record["wait"]
        self._unit = "tokens" if "tokens" in record["counts"] else "samples"
        self._recent.append((seconds, record["counts"].get(self._unit, 0), 1))
        while len(self._recent) > 1 and sum(part[0] for part in self._recent) > _WINDOW:
            self._recent.popleft()
        last = record["step"] == self._steps
        pause = _REFRESH if self._live else _PLAIN
        if last or record["time"] - self._shown >= pause:
            self._shown = record["time"]
            if self._live:
                self._live.update(self._line(record), refresh=True)
            else:
                self._console.print(self._words(record), highlight=False, soft_wrap=True)

    def _evaluation(self, record: dict[str, Any]) -> None:
        for name, metrics in record["metrics"].items():
            words = "  ".join(f"{metric} {_number(float(value))}" for metric, value in metrics.items())
            self._print(Text(f"evaluation at step {record['step']}  {name}  {words}", style="bold"))

    def _show(self, record: dict[str, Any]) -> None:
        for name, text in record["text"].items():
            title = f"{printable(name)} at step {record['step']}"
            body = Text(printable(text, keep="\n\t"))
            self._print(Panel(body, title=title, title_align="left", border_style="dim"))

    def _note(self, record: dict[str, Any]) -> None:
        self._print(Text(f"note: {printable(record['text'])}", style="yellow"))

    def _print(self, what: RenderableType) -> None:
        self._console.print(what, highlight=False, soft_wrap=not isinstance(what, Panel))

    def _pace(self, record: dict[str, Any]) -> tuple[float, float]:
        """Units per second, and seconds left."""
        seconds = sum(part[0] for part in self._recent) or 1e-9
        units = sum(part[1] for part in self._recent)
        return units / seconds, (self._steps - record["step"]) * seconds / len(self._recent)

    def _words(self, record: dict[str, Any]) -> Text:
        rate, left = self._pace(record)
        losses = "  ".join(f"{printable(name)} {_number(float(value))}" for name, value in record["losses"].items())
        rate_now = next(iter(record["lr"].values()), 0.0)
        return Text(
            f"step {record['step']}/{self._steps}  {losses}  {_count(rate)} {self._unit}/s  "
            f"lr {rate_now:.1e}  {_duration(left)} left"
        )

    def _line(self, record: dict[str, Any]) -> Group:
        full = _BAR * record["step"] // max(1, self._steps)
        bar = Text("━" * full, style="green") + Text("━" * (_BAR - full), style="dim")
        return Group(bar + Text("  ") + self._words(record))


def closing(console: Console, run: Path, outcome: Outcome, command: str) -> None:
    """The summary after a run: where everything is, and what to run next."""
    shown = _near(run)
    lines = [("run", shown)]
    gallery = sorted((run / "gallery").glob("step-*"))
    commits = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
    if commits:
        lines.append(("commits", f"{shown}/checkpoints/  ({', '.join(commits)})"))
    if gallery:
        lines.append(("gallery", f"{_near(gallery[-1])}/"))
    if (run / "tensorboard").is_dir():
        lines.append(("tensorboard", f"tensorboard --logdir {shown}/tensorboard"))
    if outcome.code is Exit.DONE:
        lines.append(("report", f"drivetrain report {shown}"))
        lines.append(("evaluate", f"drivetrain evaluate {shown}"))
        lines.append(("export", f"drivetrain export {shown} --to exported"))
    elif outcome.code is Exit.STOPPED:
        lines.append(("go on", command))
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        console.print(
            Text(f"  {name:<{width}}  ", style="dim") + Text(printable(text)), highlight=False, soft_wrap=True
        )


def printable(text: str, keep: str = "") -> str:
    """The text with every control character (terminal escapes among them) made visible."""
    return "".join(char if char.isprintable() or char in keep else repr(char)[1:-1] for char in text)


def _near(path: Path) -> str:
    """The path from here, if it is below."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def _count(value: float) -> str:
    for limit, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.3g}"


def _duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
