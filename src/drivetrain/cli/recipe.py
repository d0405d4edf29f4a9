"""`drivetrain recipe`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drivetrain.cli.options import DELIMITER, AsJson, Overrides

if TYPE_CHECKING:
    from drivetrain.spec.load import Resolved

app = typer.Typer(help="List, show, check and write recipes.")
Source = Annotated[str, typer.Argument(help="A shipped recipe's name, a file, or a run directory.")]


@app.command("list")
def list_recipes(as_json: AsJson = False) -> None:
    """The recipes that come with the package, with the first line of each."""
    import json

    from drivetrain.spec.load import SHIPPED, shipped_names

    about = {}
    for name in shipped_names():
        first = (SHIPPED / f"{name}.yaml").read_text().partition("\n")[0]
        about[name] = first.removeprefix("#").strip()
    if as_json:
        typer.echo(json.dumps(about))
        return
    for name, text in about.items():
        typer.echo(f"{name}  {text}")


@app.command()
def show(
    recipe: Source,
    overrides: Overrides = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
    as_json: AsJson = False,
) -> None:
    """The whole recipe with every default: as YAML or JSON a recipe again, with --json --origin beside its origins."""
    import json

    from drivetrain.spec.load import load
    from drivetrain.spec.show import as_yaml

    resolved = load(recipe, overrides or [])
    if not as_json:
        typer.echo(as_yaml(resolved.tree, resolved.origins if origin else None))
        return
    if not origin:
        typer.echo(json.dumps(resolved.tree, indent=2))
        return
    origins = {path: str(where) for path, where in resolved.origins.items()}
    typer.echo(json.dumps({"recipe": resolved.tree, "origins": origins}))


@app.command()
def check(recipe: Source, overrides: Overrides = None, as_json: AsJson = False) -> int:
    """Find every mistake, each with its place; 78 where there is one. Classes of your own are imported."""
    import json

    from drivetrain.spec.affects import customs
    from drivetrain.spec.code.scan import run_digest, scan
    from drivetrain.spec.custom import check_custom
    from drivetrain.spec.exits import Exit, Failure
    from drivetrain.spec.load import load
    from drivetrain.spec.tree import Mistake, Origin, RecipeMistakes, dotted

    try:
        resolved = load(recipe, overrides or [])
        for custom, _ in customs(resolved.recipe):
            check_custom(custom)
        promises = _promises(resolved)
        code = scan(resolved.recipe)
    except Failure as wrong:
        if not as_json or wrong.outcome.code not in (Exit.BAD_RECIPE, Exit.SECURITY):
            raise
        mistakes: Sequence[Mistake] = (Mistake((), wrong.outcome.cause, Origin("")),)
        if isinstance(wrong, RecipeMistakes):
            mistakes = wrong.mistakes
        found = [{"place": str(m.origin), "path": dotted(m.path), "message": m.message} for m in mistakes]
        typer.echo(json.dumps({"mistakes": found}))
        return int(wrong.outcome.code)
    digest, notes = run_digest(resolved.recipe, code), [*resolved.notes, *promises]
    if as_json:
        typer.echo(json.dumps({"mistakes": [], "digest": digest, "notes": notes}))
    else:
        typer.echo("\n".join([*notes, f"{recipe}: no mistakes; digest {digest}"]))
    return 0


def _promises(resolved: Resolved) -> list[str]:
    """What a resume can hold of each source that is a stream. Raises RecipeMistakes where the recipe asks for more."""
    from drivetrain.spec.check import all_sources, stream_contradictions
    from drivetrain.spec.custom import Custom, found_custom
    from drivetrain.spec.streams import PROMISES, is_stream, promise
    from drivetrain.spec.tree import Mistake, Origin, RecipeMistakes, dotted

    found = {}
    for path, source in all_sources(resolved.recipe).items():
        if not isinstance(source, Custom):
            if source.streamed:
                found[path] = PROMISES["state"]
        elif is_stream(factory := found_custom(source)):
            found[path] = promise(factory)
    wrong = []
    for path, message, _ in stream_contradictions(resolved.recipe, list(found)):
        wrong.append(Mistake(path, message, resolved.origins.get(dotted(path), Origin(""))))
    if wrong:
        raise RecipeMistakes(wrong)
    # A validation or test set has its first samples in memory: nothing of it goes on.
    return [f"{dotted(path)} is {text}" for path, text in found.items() if path[:2] == ("data", "train")]


@app.command()
def kinds(
    section: Annotated[str | None, typer.Argument(metavar="[SECTION]", help="Such as optimizer; else all.")] = None,
    as_json: AsJson = False,
) -> None:
    """The kinds of each section, with where they come from; those of installed packages, too."""
    import json

    from drivetrain.spec.exits import Exit, Failure
    from drivetrain.spec.kinds import all_kinds
    from drivetrain.spec.registry import nearest

    found = all_kinds()
    if section is not None and section not in found:
        cause = f"no section {section!r} has kinds{nearest(section, list(found))}"
        raise Failure(Exit.BAD_COMMAND, cause, f"there are {', '.join(found)}")
    chosen = found if section is None else {section: found[section]}
    if as_json:
        typer.echo(json.dumps(chosen, default=vars))
        return
    for name, kinds in chosen.items():
        for kind in kinds:
            typer.echo(f"{name:10} {kind.name:24} {kind.source:12} {kind.about}")


@app.command()
def schema(
    section: Annotated[str | None, typer.Argument(metavar="[SECTION]", help="Such as optimizer; else all.")] = None,
) -> None:
    """The JSON schema of recipes: for editors, and to read what each field affects."""
    import json

    from drivetrain.spec.exits import Exit, Failure
    from drivetrain.spec.registry import nearest
    from drivetrain.spec.schema import recipe_schema

    found = recipe_schema()
    sections = found["properties"]
    if section is not None and section not in sections:
        cause = f"a recipe has no section {section!r}{nearest(section, list(sections))}"
        raise Failure(Exit.BAD_COMMAND, cause, f"there are {', '.join(sections)}")
    typer.echo(json.dumps(found if section is None else sections[section], indent=2))


@app.command()
def new(
    path: Annotated[Path, typer.Argument(help="The file to write.")],
    from_: Annotated[
        str | None, typer.Option("--from", metavar="FILE", help="CSV or Parquet: ranking by what its columns hold.")
    ] = None,
    label: Annotated[
        str | None, typer.Option("--label", metavar="COLUMN", help="With --from: the column that is to be foreseen.")
    ] = None,
    delimiter: Annotated[str | None, typer.Option(help=f"With --from: {DELIMITER}")] = None,
) -> None:
    """Write a small, commented recipe to start from."""
    from drivetrain.spec.exits import Exit, Failure
    from drivetrain.spec.show import STARTER

    text = STARTER
    if from_ is not None:
        # Imported here: it looks at torch's names.
        from drivetrain.tasks.ranking.starter import starter_recipe

        _require_new(path)
        text = starter_recipe(from_, path.stem, label, delimiter)
    elif label is not None or delimiter is not None:
        given = "--delimiter is" if label is None else f"--label {label} is a column"
        raise Failure(Exit.BAD_COMMAND, f"{given} of the file that --from names", "give --from FILE")
    _write_new(path, text)
    typer.echo(f"{path}: now run `drivetrain recipe check {path}`, then `drivetrain train {path}`")


@app.command("import")
def import_recipe(
    file: Annotated[Path, typer.Argument(help="DeepSpeed's JSON, or TorchEasyRec's pipeline.config.")],
    to: Annotated[Path, typer.Option("--to", help="The recipe to write; it must not be there.")],
    from_: Annotated[str | None, typer.Option("--from", help="What the file is; guessed where absent.")] = None,
    onto: Annotated[str | None, typer.Option("--onto", help="A recipe that the settings are laid over.")] = None,
    processes: Annotated[int | None, typer.Option("--processes", min=1, help="How many the run is for.")] = None,
    edits: Annotated[str | None, typer.Option("--edits", help="TorchEasyRec's edit JSON, or a file with it.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Write nothing where a key has no counterpart.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a recipe of another system's configuration, and tell what becomes of each of its keys."""
    import json
    from dataclasses import replace

    from drivetrain.spec.importing.compose import base_of, compose
    from drivetrain.spec.importing.importers import (
        importer_of,
        read_edits,
        read_source,
        require_counterparts,
        require_edited,
        require_sound,
    )
    from drivetrain.spec.importing.report import as_data, as_text
    from drivetrain.spec.text import printable

    _require_new(to)
    source = read_source(file, processes)
    kind, importer, marks = importer_of(source, from_)
    require_edited(kind, edits)
    if edits is not None:
        source = replace(source, edits=read_edits(edits))
    findings = importer.read(source)
    require_sound(findings)
    base = base_of(onto, to) if onto is not None else None
    composed = compose(findings, to, base)
    if strict:
        require_counterparts(findings)
    _write_new(to, composed.text)
    if as_json:
        typer.echo(json.dumps(as_data(findings, composed, kind, str(to))))
        return
    if marks:
        typer.echo(printable(f"{file}: --from {kind}, since it has {', '.join(marks)}"))
    typer.echo(as_text(findings, composed, str(to)))


def _require_new(path: Path) -> None:
    """Raises Failure: 64 where the name is not one of a YAML file, 73 where it is there."""
    from drivetrain.spec.exits import Exit, Failure

    if path.suffix not in (".yaml", ".yml"):
        raise Failure(Exit.BAD_COMMAND, f"{path} is no name of a recipe", "it ends in .yaml")
    if path.exists():
        raise Failure(Exit.CANNOT_CREATE, f"{path} is there already", "choose another name")


def _write_new(path: Path, text: str) -> None:
    """Raises Failure(73) where the file is there already, or cannot be written."""
    from drivetrain.spec.exits import Exit, Failure

    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise Failure(Exit.CANNOT_CREATE, f"{path} is there already", "choose another name") from None
    except OSError as error:
        raise Failure(Exit.CANNOT_CREATE, f"{path}: {error}", "choose another place") from error
