"""`drivetrain data`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drivetrain.cli.options import DELIMITER, AsJson

if TYPE_CHECKING:
    from drivetrain.data.inputs import Input
    from drivetrain.data.prepare import Report

# More than any run reads, and few enough that what is computed of them has 64 bits.
_FAR = 2**48
_LAST = 2**32
_MOST = 10**6

app = typer.Typer(help="Prepare token files, and look at what is trained on.")


@app.command()
def prepare(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="INPUT...", help="Files, folders, patterns: text, .jsonl, .parquet; .gz; hub:NAME ..."),
    ],
    to: Annotated[str, typer.Option("--to", metavar="NAME", help="Writes NAME.bin, its index, and NAME.json.")],
    tokenizer: Annotated[str, typer.Option(help="bytes, a tokenizer.json, or a Hugging Face folder.")] = "bytes",
    field: Annotated[str, typer.Option(help="The key or column that holds the text.")] = "text",
    eod: Annotated[str | None, typer.Option(metavar="ID|TOKEN", help="Ends each document.")] = None,
    vocabulary: Annotated[int | None, typer.Option(min=1, help="Every id is below; else the tokenizer's own.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; else as many as there are cores.")] = None,
    format_: Annotated[str, typer.Option("--format", metavar="drivetrain|megatron", help="The index.")] = "drivetrain",
    kind: Annotated[str, typer.Option(metavar="auto|text|jsonl|parquet", help="auto: by each file's suffix.")] = "auto",
    include: Annotated[list[str] | None, typer.Option(help="Patterns of file names within folders.")] = None,
    split: Annotated[str | None, typer.Option(help="Which of a saved folder's or a hub: data set's splits.")] = None,
    config: Annotated[str | None, typer.Option(help="Which configuration of a hub: data set.")] = None,
    skip_bad: Annotated[int, typer.Option(min=0, metavar="N", help="Pass over up to N malformed lines.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Tokenize documents into a file for `kind: documents`; started again after a kill, it goes on."""
    import json

    from drivetrain.data import prepare as preparing
    from drivetrain.data.indexed import name_of
    from drivetrain.data.tokenizers import content_of
    from drivetrain.runtime.cores import cores

    _one_of("--format", format_, ("drivetrain", "megatron"))
    _one_of("--kind", kind, ("auto", "text", "jsonl", "parquet"))
    as_kind: Any = None if kind == "auto" else kind
    as_format: Any = format_
    how = preparing.encoding(content_of(tokenizer), field, eod, vocabulary, format_)
    found = _found(inputs, include or [], as_kind, split, config)
    asked = preparing.Preparation(name_of(to), tuple(found), how, as_format, skip_bad, workers or cores())
    with _progress(found, as_json) as report:
        manifest = preparing.prepare(asked, report)
    if as_json:
        typer.echo(json.dumps({"name": str(asked.name), **manifest}))
        return
    bad = ""
    if manifest["bad"]:
        bad = f"; {len(manifest['bad'])} bad lines passed over, listed in {asked.name}.json"
    counts = f"{manifest['tokens']:,} tokens in {manifest['documents']:,} documents"
    typer.echo(f"{asked.name}.bin: {counts}{bad}; now `drivetrain data inspect {asked.name}`")


def _found(inputs: list[str], include: list[str], kind: Any, split: str | None, config: str | None) -> list[Input]:
    from drivetrain.data.hub import PREFIX
    from drivetrain.data.inputs import find_inputs, find_shards
    from drivetrain.spec.exits import Exit, Failure

    # One hub: input makes all of them the hub's; `find_shards` refuses a mixture.
    if not any(one.startswith(PREFIX) for one in inputs):
        if config is not None:
            raise Failure(Exit.BAD_COMMAND, f"--config is for {PREFIX} data sets, and none is given", "leave it out")
        return find_inputs(inputs, include, kind, split)
    if include or kind is not None:
        raise Failure(Exit.BAD_COMMAND, f"--include and --kind are for files, not for {PREFIX}", "leave them out")
    return find_shards(inputs, config, split)


@app.command()
def describe(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A prepared file, a Megatron .idx, CSV or Parquet.")],
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="FILE", help="CSV or Parquet: how FILE's columns differ from its."),
    ] = None,
    delimiter: Annotated[str | None, typer.Option(help=DELIMITER)] = None,
    as_json: AsJson = False,
) -> None:
    """Sizes and counts of a token file, whose index is checked against it, or of the columns of a table."""
    import json

    from drivetrain.data.column_profile import SUFFIXES, describe_columns
    from drivetrain.data.drift import describe_drift
    from drivetrain.data.indexed import describe
    from drivetrain.spec.exits import Exit, Failure
    from drivetrain.spec.text import printable

    if against is not None:
        for name in (file, against):
            if not name.lower().endswith(SUFFIXES):
                cause = f"{name}: --against compares columns, and this ends in none of {', '.join(SUFFIXES)}"
                raise Failure(Exit.BAD_COMMAND, cause, "give CSV or Parquet files")
        _describe_drift(describe_drift(file, against, delimiter), as_json)
        return
    about = describe_columns(file, delimiter) if file.lower().endswith(SUFFIXES) else describe(file)
    if as_json:
        typer.echo(json.dumps(about))
        return
    columns = about.pop("columns", {})
    for name, value in about.items():
        typer.echo(f"{name}: {value:,}" if isinstance(value, int) else f"{name}: {value}")
    for name, column in columns.items():
        facts = (f"{fact} {value:,.10g}" for fact, value in column.items() if fact != "type")
        typer.echo(f"column {printable(name)}: {column['type']}, {', '.join(facts)}")


def _describe_drift(about: dict[str, Any], as_json: bool) -> None:
    import json

    from drivetrain.spec.text import printable

    if as_json:
        typer.echo(json.dumps(about))
        return
    file, against, (rows, others) = about["name"], about["against"], about["rows"]
    typer.echo(f"{file}: {rows:,} rows, beside {others:,} of {against}")
    for name, column in about["columns"].items():
        typer.echo(f"column {printable(name)}: {column['type']}, {', '.join(_differences(column))}")
    if about["gone"]:
        typer.echo(printable(f"gone: {', '.join(about['gone'])}"))


def _differences(column: dict[str, Any]) -> Iterator[str]:
    """What is told of one column beside another file's."""
    if "new" in column:
        yield "not there before"
    if "was" in column:
        yield f"was {column['was']}"
    if "psi" not in column:
        return
    yield f"psi {column['psi']:.3f}"
    yield f"nulls {column['nulls'][0]:.1%} (were {column['nulls'][1]:.1%})"
    if "unseen" in column:
        yield f"unseen {column['unseen']:.1%}"
    if "shift" in column:
        yield f"mean {column['means'][0]:.6g} (was {column['means'][1]:.6g}; {column['shift']:+.2f} deviations)"


@app.command()
def inspect(
    what: Annotated[str, typer.Argument(metavar="RECIPE|RUN|FILE", help="A recipe, a run, or a prepared file.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="For a recipe.")] = None,
    position: Annotated[int | None, typer.Option(min=0, max=_FAR, help="The first sample's position.")] = None,
    step: Annotated[int | None, typer.Option(min=1, max=_LAST, help="The samples of a step instead.")] = None,
    count: Annotated[int | None, typer.Option(min=1, max=_MOST, help="Samples; else 1, or the whole step.")] = None,
    context: Annotated[int, typer.Option(min=1, max=_MOST, help="Tokens of a sample of a file.")] = 256,
    as_json: AsJson = False,
) -> None:
    """Training samples in the order of the run, as text, with where documents begin."""
    import json

    from drivetrain.data.indexed import beside, name_of
    from drivetrain.data.inspection import inspect_file
    from drivetrain.spec.exits import Exit, Failure
    from drivetrain.spec.text import printable

    name = name_of(what)
    if beside(name, ".bin").is_file():
        if step is not None or overrides:
            raise Failure(Exit.BAD_COMMAND, "a file has no steps and no settings", "give a recipe, or --position")
        samples = inspect_file(what, position or 0, count or 1, context)
    else:
        # Imported here: it imports torch, and files do without.
        from drivetrain.run.inspection import inspect_recipe

        samples = inspect_recipe(what, overrides or [], position, step, count)
    if as_json:
        typer.echo(json.dumps(samples))
        return
    for sample in samples:
        typer.echo("\n".join(printable(line, "\n\t") for line in _lines(sample)))


def _lines(sample: dict[str, Any]) -> Iterator[str]:
    held = ", in quarantine: not read" if sample["quarantined"] else ""
    yield f"--- position {sample['position']}, sample {sample['sample']} of source {sample['source']}{held}"
    if "value" in sample:
        yield sample["value"]
    for part in sample.get("documents", ()):
        name = "padding" if part["document"] == -1 else f"document {part['document']}"
        if part["document"] is not None:
            yield f"[{name}: tokens {part['start']} to {part['start'] + part['tokens'] - 1} of the sample]"
        yield part["text"]


def _one_of(option: str, given: str, known: tuple[str, ...]) -> None:
    from drivetrain.spec.exits import Exit, Failure

    if given not in known:
        raise Failure(Exit.BAD_COMMAND, f"{option} {given!r} is not known", f"it is one of {', '.join(known)}")


@contextmanager
def _progress(inputs: list[Input], quiet: bool) -> Iterator[Report]:
    """A bar on stderr where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda stand: None
        return
    columns = (
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=max(1, sum(source.size for source in inputs)))
        yield lambda stand: bar.update(task, completed=stand.cost, description=f"{stand.tokens:,} tokens")
