"""Options and arguments that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
DELIMITER = "What stands between a CSV file's fields; else a comma, in .tsv files a tab."
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Such as optimizer.lr=1e-3.")]
