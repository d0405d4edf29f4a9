"""The `drivetrain` command. Each verb is a thin file beside this one, imported when it is asked for; what a verb needs
is imported when it runs."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

try:  # newer typers carry their own click
    from typer._click.exceptions import ClickException, UsageError
except ImportError:
    from click import ClickException, UsageError

from drivetrain.spec.exits import Exit, Failure

NAMES = (
    *("train", "plan", "evaluate", "export", "predict", "generate", "report", "control", "compare", "diff", "verify"),
    *("submit", "jobs", "status", "logs", "attach", "cancel", "requeue", "targets", "worker"),
    *("board", "recipe", "data", "infer", "checkpoint"),
)
"""The verbs, in the order in which the help lists them; each is the name of its file."""
_HIDDEN = ("worker",)
_INTERRUPTED = 130  # what newer typers return where older ones raise KeyboardInterrupt


class _Commands(Mapping[str, Any]):
    """click's commands by name: a file's function of that name, or its `app` of several commands."""

    def __getitem__(self, name: str) -> Any:
        if name not in NAMES:
            raise KeyError(name)
        module = import_module(f"drivetrain.cli.{name}")
        if hasattr(module, "app"):
            group = get_group(module.app)
            group.name = name
            return group
        single = typer.Typer(add_completion=False)
        single.command(name, hidden=name in _HIDDEN)(getattr(module, name))
        return get_command(single)

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


command = TyperGroup(
    name="drivetrain",
    commands=_Commands(),  # type: ignore[arg-type] - it is only read
    help="Trains PyTorch models: one recipe, the same bits after any stop, a ledger that proves it.",
    epilog="Start with: drivetrain train quickstart",
    context_settings={"help_option_names": ["-h", "--help"]},
)
"""The whole command line."""


def main() -> None:
    """Run the command line and end the process with a documented exit code."""
    warnings.formatwarning = _told
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command; the last line on stderr says why it failed, where it did."""
    try:
        code = command(arguments or ["--help"], prog_name="drivetrain", standalone_mode=False)
        # Older typers raise it themselves; both end here with the same words and the same code.
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        return code if isinstance(code, int) else Exit.DONE
    except Failure as failure:
        return _say(_with_kept_trace(failure))
    except ClickException as error:
        asked = "drivetrain"
        if isinstance(error, UsageError) and error.ctx:
            asked = error.ctx.command_path
        return _say(Failure(Exit.BAD_COMMAND, error.format_message(), f"`{asked} --help` says what there is"))
    except (KeyboardInterrupt, typer.Abort):
        return _say(Failure(Exit.STOPPED, "", "the same command begins again", **{"class": "interrupted"}))
    except Exception as error:
        return _say(_unexpected(error))


def _unexpected(error: Exception) -> Failure:
    """What no verb has expected: an error in the user's own code, too little memory, or an error of ours."""
    import traceback

    from drivetrain.runtime.mistakes import failure_of

    failure = failure_of(error)
    if failure is None:
        traceback.print_exception(error)
        return Failure(Exit.INTERNAL, f"{type(error).__name__}: {error}", "the traceback is above")
    return _with_kept_trace(failure)


def _with_kept_trace(failure: Failure) -> Failure:
    """The failure with the file that its whole traceback is in, where it has one."""
    if not failure.trace:
        return failure
    import tempfile

    # There is not always a run directory that could keep it.
    with tempfile.NamedTemporaryFile("w", prefix="drivetrain-traceback-", suffix=".txt", delete=False) as file:
        file.write(failure.trace)
    told = failure.outcome
    complete = Failure(told.code, told.cause, f"{told.hint}; the whole traceback is in {file.name}", **told.where)
    complete.details = failure.details
    return complete


def _told(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    """A warning of ours as a sentence; others say where they come from, as they always do."""
    if category.__module__.partition(".")[0] == "drivetrain":
        return f"drivetrain: note: {message}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def _say(failure: Failure) -> int:
    if failure.details:
        print(failure.details, file=sys.stderr)
    print(failure.outcome.line(), file=sys.stderr)
    return failure.outcome.code
