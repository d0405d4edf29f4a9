"""`drivetrain targets`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from drivetrain.cli.options import AsJson
from drivetrain.cli.submit import Targets


def targets(
    recipe: Annotated[str | None, typer.Argument(help="Also those that this recipe brings.")] = None,
    targets: Targets = None,
    as_json: AsJson = False,
) -> int:
    """Where jobs can be sent: what is configured, whether it can be reached, and why not."""
    import json

    from drivetrain.launch.targets import config
    from drivetrain.spec.exits import Exit, Failure
    from drivetrain.spec.load import load
    from drivetrain.spec.text import printable

    own: Mapping[str, Mapping[str, Any]] = {}
    if recipe:
        own = load(recipe).recipe.launch.targets
    rows = []
    for name, written in config.targets(own, targets).items():
        row = {"target": name, "kind": str(written.get("kind")), "reachable": True, "says": ""}
        try:
            row["says"] = config.build(config.settings_from(name, written)).reachable()
        except Failure as failure:
            row |= {"reachable": False, "says": failure.details or failure.outcome.cause}
        rows.append(row)
    if as_json:
        typer.echo(json.dumps(rows))
        return Exit.DONE
    for row in rows:
        reached = "reachable" if row["reachable"] else "not reachable"
        typer.echo(printable(f"{row['target']} ({row['kind']}): {reached}: {row['says']}"))
    return Exit.DONE
