"""What `drivetrain verify` has found to hold, on one screen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table


def show(console: Console, certificate: Mapping[str, Any]) -> None:
    """Print a certificate."""
    table = Table(title=f"{certificate['run']}: everything holds", box=None, show_header=False, title_justify="left")
    for what, found in _rows(certificate):
        table.add_row(what, found)
    console.print(table)


def _rows(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "ledger", f"{found['records']} records, each chained to the one before"
    yield "", f"from {found['root']} to {found['tail']}"
    worlds = " -> ".join(map(str, found["worlds"]))
    yield "attempts", f"{found['attempts']}, on {worlds} processes"
    yield "samples", f"{found['steps']} steps used the positions 0 to {found['samples']}, each once, as the recipe says"
    if found["left_out"]:
        yield "", f"{found['left_out']} of the steps were left out: their samples moved nothing"
    if found["rollbacks"]:
        yield "rollbacks", f"{found['rollbacks']}, and the samples that were left out were read by nobody since"
    if found["commands"]:
        yield "commands", f"{found['commands']}, each done once, and again where steps were made again"
    if found["replayed"]:
        yield "", f"{found['replayed']} of them are the other run's, after the same steps"
    again = found["again"]
    yield "made again", f"{again['equal']} steps, to the same bits; {again['not comparable']} under another claim"
    yield "commits", f"{found['commits']} whole, each at its place in the chain"
    if found["sources"]:
        yield "sources", f"{found['sources']} have the content that was read"
    else:
        yield "sources", "not looked at"
    for number, stretch in enumerate(found["code"]):
        yield ("" if number else "code"), stretch["told"]
    if found["code"]:
        files = found["code_files"]
        yield "", f"{files['kept']} of its files kept, of {files['digests']} the digest only"
    yield "claim", "\n".join(found["claims"])
    for number, what in enumerate(found["unknown"]):
        yield ("" if number else "not known"), what
