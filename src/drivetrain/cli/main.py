"""The `drivetrain` command. Each verb is a thin file beside this one; what it needs is imported when it runs."""

from __future__ import annotations

import sys

import typer

try:  # newer typers carry their own click
    from typer._click.exceptions import ClickException, UsageError
except ImportError:
    from click import ClickException, UsageError

from drivetrain.cli import (
    attach,
    cancel,
    checkpoint,
    compare,
    control,
    data,
    evaluate,
    export,
    infer,
    jobs,
    logs,
    predict,
    recipe,
    report,
    requeue,
    status,
    submit,
    targets,
    train,
    verify,
    worker,
)
from drivetrain.spec.exits import Exit, Failure

app = typer.Typer(
    name="drivetrain",
    help="Trains PyTorch models: one recipe, the same bits after any stop, a ledger that proves it.",
    epilog="Start with: drivetrain train quickstart",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("export")(export.export)
app.command("predict")(predict.predict)
app.command("report")(report.report)
app.command("control")(control.control)
app.command("compare")(compare.compare)
app.command("verify")(verify.verify)
app.command("submit")(submit.submit)
app.command("jobs")(jobs.jobs)
app.command("status")(status.status)
app.command("logs")(logs.logs)
app.command("attach")(attach.attach)
app.command("cancel")(cancel.cancel)
app.command("requeue")(requeue.requeue)
app.command("targets")(targets.targets)
app.command("worker", hidden=True)(worker.worker)
app.add_typer(recipe.app, name="recipe")
app.add_typer(data.app, name="data")
app.add_typer(infer.app, name="infer")
app.add_typer(checkpoint.app, name="checkpoint")


def main() -> None:
    """Run the command line and end the process with a documented exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command; the last line on stderr says why it failed, where it did."""
    try:
        code = app(arguments or ["--help"], prog_name="drivetrain", standalone_mode=False)
        return code if isinstance(code, int) else Exit.DONE
    except Failure as failure:
        return _say(failure)
    except ClickException as error:
        command = error.ctx.command_path if isinstance(error, UsageError) and error.ctx else "drivetrain"
        return _say(Failure(Exit.BAD_COMMAND, error.format_message(), f"`{command} --help` says what there is"))
    except (KeyboardInterrupt, typer.Abort):
        return _say(Failure(Exit.STOPPED, "interrupted"))


def _say(failure: Failure) -> int:
    if failure.details:
        print(failure.details, file=sys.stderr)
    print(failure.outcome.line(), file=sys.stderr)
    return failure.outcome.code
