"""Every configuration of another system's repository as a recipe: `python benchmarks/imports.py easyrec CLONE`, or
`megatron CLONE`.

Each file of the clone's newest commit is imported as `drivetrain recipe import` does it, and the recipe that is written
is read and checked again, with something in each place that its user fills in. The table says of each: what is to be
filled in and how much has no counterpart, or the one error that it ends with. Of TorchEasyRec the fields of the clone's
`.proto` files are compared with those that the importer knows. Exit 1 where a file ends in a traceback, or an error
names no line, or a recipe does not pass the check.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from drivetrain.spec.exits import Failure
from drivetrain.spec.importing.compose import Composed, compose
from drivetrain.spec.importing.easyrec.schema import schema
from drivetrain.spec.importing.findings import Findings, Source
from drivetrain.spec.importing.importers import importer_of, require_sound
from drivetrain.spec.load import load
from drivetrain.spec.tree import dotted

FILES = {"easyrec": (".config",), "megatron": (".sh", "model_config.yaml")}
"""How the names of their files end, by kind."""
MARKS = {"easyrec": "", "megatron": "--num-layers"}
"""What is in the text of those that are a training's."""
_FIELD = re.compile(r"(?:optional|required|repeated)?\s*(?:map<[^>]*>|[\w.]+)\s+(\w+)\s*=\s*\d+\s*(?:\[[^\]]*\])?;")


def files(clone: Path, endings: tuple[str, ...]) -> dict[str, str]:
    """Names and texts of the newest commit's files whose names end so."""
    listed = subprocess.check_output(["git", "-C", clone, "ls-tree", "-r", "HEAD", "--name-only"], text=True)
    found = {}
    for name in listed.splitlines():
        if name.endswith(endings):
            found[name] = subprocess.check_output(["git", "-C", clone, "show", f"HEAD:{name}"], text=True)
    return found


def imported(kind: str, name: str, text: str, to: Path) -> tuple[Findings, Composed]:
    """What `recipe import` finds and writes. Raises Failure as it does."""
    source = Source(name, text)
    _, importer, _ = importer_of(source, kind)
    findings = importer.read(source)
    require_sound(findings)
    return findings, compose(findings, to, None)


def unknown_fields(clone: Path) -> set[str]:
    """Fields of the clone's messages of which the importer knows no name."""
    known = {name for fields in schema().messages.values() for name in fields}
    found: set[str] = set()
    for text in files(clone, (".proto",)).values():
        found |= set(_FIELD.findall(re.sub(r"//[^\n]*", "", text)))
    return found - known


def main() -> int:
    """Import all, and tell of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=list(FILES))
    parser.add_argument("clone", type=Path)
    given = parser.parse_args()
    kind, clone = given.kind, given.clone
    counts, wrong, seconds = Counter(), 0, time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files(clone, FILES[kind]).items():
            if MARKS[kind] not in text:
                continue
            try:
                findings, composed = imported(kind, name, text, Path(folder) / "new.yaml")
                load(composed.filled)
            except Failure as failure:
                told = str(failure.details or failure.outcome.cause).splitlines()[0]
                placed = re.search(rf"{re.escape(name)}:\d+: ", told) is not None
                wrong += not placed
                counts["one error with its line" if placed else "an error without a line"] += 1
                print(f"{name}: {failure.outcome.code}: {told.removeprefix(name)}")
                continue
            gaps = ", ".join(dotted(gap.path) for gap in composed.gaps)
            counts["a recipe that passes the check" + (", once filled in" if gaps else "")] += 1
            print(f"{name}: {len(findings.lost)} without a counterpart; to fill in: {gaps or 'nothing'}")
    seconds = time.perf_counter() - seconds
    print(
        f"{counts.total()} configurations in {seconds:.1f} s: {', '.join(f'{n} {what}' for what, n in counts.items())}"
    )
    if kind == "easyrec":
        new = unknown_fields(clone)
        print(f"fields that the importer does not know: {', '.join(sorted(new)) or 'none'}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
