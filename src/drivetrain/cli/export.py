"""`drivetrain export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drivetrain.cli.options import AsJson
from drivetrain.cli.weights import WEIGHTS, weights_of


def export(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    to: Annotated[Path, typer.Option(help="A new or empty folder.")],
    commit: Annotated[str | None, typer.Option(help="A commit's name or step; by default the newest.")] = None,
    weights: Annotated[str | None, typer.Option(help=WEIGHTS)] = None,
    as_json: AsJson = False,
) -> None:
    """Write a commit's weights: safetensors, for language models and classifiers in Hugging Face's layout."""
    import json

    from drivetrain.api import export as export_run

    files = export_run(run, to, commit, weights=weights_of(weights))
    if as_json:
        typer.echo(json.dumps({"files": list(map(str, files))}))
        return
    typer.echo("\n".join(map(str, files)))
    for file in files:
        if file.suffix == ".json":
            told = json.loads(file.read_text()).get("drivetrain", {}).get("tied", {})
            for name, other in told.items():
                typer.echo(f"{name} is tied to {other}, and written once: safetensors.torch.load_model ties it again")
