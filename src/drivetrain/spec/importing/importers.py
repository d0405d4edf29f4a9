"""Who reads which kind of file, and which kind a file is of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.importing.findings import Findings, Importer, Source
from drivetrain.spec.registry import imported, nearest
from drivetrain.spec.text import printable, shortened

IMPORTERS: Mapping[str, str] = {
    "deepspeed": "drivetrain.spec.importing.deepspeed.importer:DeepSpeed",
    "easyrec": "drivetrain.spec.importing.easyrec.importer:EasyRec",
    "megatron": "drivetrain.spec.importing.megatron.importer:Megatron",
}
"""Importers by kind."""
EDITED = ("easyrec",)
"""Kinds of files that have a language of edits."""
_MOST = 2**20  # bytes; the largest configuration that was met has a tenth of that


def read_source(path: Path, processes: int | None) -> Source:
    """A file's text. Raises Failure: 66 where there is no such file, 65 where it is too large, or no UTF-8 text."""
    if not path.is_file():
        why = "is no file" if path.exists() else "is not there"
        raise Failure(Exit.INPUT_MISSING, f"{path} {why}", "give the configuration file of the other system")
    try:
        with path.open("rb") as file:
            content = file.read(_MOST + 1)
    except OSError as error:
        raise Failure(Exit.INPUT_MISSING, f"{path} cannot be read: {error}", "see that it can") from error
    if len(content) > _MOST:
        raise Failure(Exit.BAD_DATA, f"{path} is larger than {_MOST:,} bytes", "no configuration is")
    try:
        return Source(str(path), content.decode("utf-8-sig"), processes)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise Failure(Exit.BAD_DATA, f"{path}:{line}: no UTF-8 text", "save it as UTF-8") from None


def importer_of(source: Source, kind: str | None) -> tuple[str, Importer, list[str]]:
    """The kind of a file, what reads it, and the words that gave it away (none where the kind is given).

    Raises Failure(64) where there is no such kind, or the file is of none that is known.
    """
    listed = f"--from is {' or '.join(IMPORTERS)}"
    if kind is not None:
        if kind not in IMPORTERS:
            near = nearest(kind, list(IMPORTERS))
            raise Failure(Exit.BAD_COMMAND, f"--from {kind}: nothing reads that{near}", listed)
        return kind, imported(IMPORTERS[kind])(), []
    found: dict[str, tuple[Importer, list[str]]] = {}
    for name, path in IMPORTERS.items():
        importer: Importer = imported(path)()
        if marks := importer.marks(source.text):
            found[name] = importer, marks
    if not found:
        raise Failure(Exit.BAD_COMMAND, f"{source.name}: nobody knows what this is", listed)
    # The kind of which it has the most words: files of different systems have few in common.
    best = max(found, key=lambda name: len(found[name][1]))
    return best, *found[best]


def read_edits(given: str) -> str:
    """The text of edits: JSON itself, or that of a file. Raises Failure(66) where there is no such file, 65 where it
    cannot be read."""
    if given.lstrip().startswith("{"):
        return given
    path = Path(given)
    if not path.is_file():
        cause = f"--edits {shortened(given, 200)}: neither a JSON object {{...}} nor a file"
        raise Failure(Exit.INPUT_MISSING, printable(cause), "give one of both")
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(Exit.BAD_DATA, f"--edits {path} cannot be read: {error}", "save it as UTF-8") from error


def require_edited(kind: str, edits: str | None) -> None:
    """Raises Failure(64) where edits are given to a kind of file that has none."""
    if edits is not None and kind not in EDITED:
        hint = f"they are for {' and '.join(EDITED)}; elsewhere edit the recipe"
        raise Failure(Exit.BAD_COMMAND, f"--edits: a {kind} file has no language of edits", hint)


def require_sound(findings: Findings) -> None:
    """Raises Failure(65) with every mistake in the file, each with its line."""
    if not findings.mistakes:
        return
    wrong = sorted(dict.fromkeys(findings.mistakes), key=lambda mistake: mistake.origin.line)
    first, count = str(wrong[0]), "1 mistake"
    if len(wrong) > 1:
        first, count = f"{first} ...", f"{len(wrong)} mistakes"
    cause = printable(f"{count} in {findings.source.name}: {first}")
    failure = Failure(Exit.BAD_DATA, cause, "nothing was written")
    failure.details = "\n".join(map(str, wrong))
    raise failure


def require_counterparts(findings: Findings) -> None:
    """Raises Failure(78) with every key that has no counterpart, by line."""
    if not findings.lost:
        return
    lost = sorted(findings.lost, key=lambda told: told.line)
    lines = [printable(f"{findings.source.name}:{told.line}: {told.key}: {told.why}") for told in lost]
    count = f"{len(lines)} of its keys have" if len(lines) > 1 else "1 of its keys has"
    failure = Failure(
        Exit.BAD_RECIPE,
        printable(f"{findings.source.name}: {count} no counterpart: {', '.join(told.key for told in lost)}"),
        "nothing was written; without --strict they are listed only",
    )
    failure.details = "\n".join(lines)
    raise failure
