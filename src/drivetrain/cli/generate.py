"""`drivetrain generate`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from drivetrain.cli.options import AsJson
from drivetrain.cli.weights import WEIGHTS, weights_of


def generate(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    prompt: Annotated[list[str] | None, typer.Option(help="A text to go on from; again for more.")] = None,
    file: Annotated[Path | None, typer.Option(help="Prompts: lines of a .txt, or `prompt` of a .jsonl's.")] = None,
    tokens: Annotated[int, typer.Option(min=0, help="The most tokens of a text.")] = 100,
    temperature: Annotated[float, typer.Option(min=0, help="0: always the likeliest token.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw from so many of the likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the fewest tokens of this probability.")] = None,
    seed: Annotated[int, typer.Option(help="Another seed draws other texts.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="Texts for each prompt.")] = 1,
    tokenizer: Annotated[str | None, typer.Option(help="bytes or a tokenizer.json; by default the data's own.")] = None,
    commit: Annotated[str | None, typer.Option(help="A step or a commit's name; the newest where absent.")] = None,
    weights: Annotated[str | None, typer.Option(help=WEIGHTS)] = None,
    to: Annotated[Path | None, typer.Option(help="A new .jsonl file for the texts.")] = None,
    as_json: AsJson = False,
) -> None:
    """Let a language model go on from prompts: given ones, those of a file, or each line of what comes in."""
    import json

    from drivetrain.loop.sampling import Sampling
    from drivetrain.run.generation import Generation, generate_run
    from drivetrain.run.new_file import new_file, require_new
    from drivetrain.spec.text import printable

    if to is not None:
        require_new(to, (".jsonl",))
    sampling = Sampling(tokens=tokens, temperature=temperature, top_k=top_k, top_p=top_p)
    asked = Generation(
        sampling=sampling, seed=seed, count=count, tokenizer=tokenizer, commit=commit, weights=weights_of(weights)
    )
    made = generate_run(run, _prompts(prompt or [], file), asked)
    if to is not None:
        with new_file(to) as lines:
            written = sum(lines.write(f"{json.dumps(row)}\n") > 0 for row in made)
        named = printable(str(to))
        typer.echo(json.dumps({"file": str(to), "texts": written}) if as_json else f"{named}: {written} texts")
        return
    for row in made:
        shown = printable(f"{row['prompt']}{row['text']}\n", keep="\n\t")
        typer.echo(json.dumps(row) if as_json else shown)


def _prompts(given: list[str], file: Path | None) -> Iterable[str]:
    """The prompts, in their order. Raises Failure(64) where there are none."""
    import sys
    from itertools import chain

    from drivetrain.run.generation import prompts_in, prompts_of
    from drivetrain.spec.exits import Exit, Failure

    if file is not None:
        return chain(given, prompts_of(file))
    if given:
        return given
    if sys.stdin.isatty():
        raise Failure(Exit.BAD_COMMAND, "there is no prompt", "give --prompt TEXT, or --file, or pipe lines into it")
    return prompts_in(sys.stdin.buffer, "stdin")
