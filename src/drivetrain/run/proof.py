"""The proof that a run did what its ledger says: chain, samples, commits, data, and what was made twice."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from drivetrain.checkpoint.commit import load as load_commit
from drivetrain.checkpoint.commit import verify
from drivetrain.checkpoint.commits import names
from drivetrain.checkpoint.manifest import FOLDER, Damaged, step_of
from drivetrain.data.blend import coverage
from drivetrain.data.buckets import order_of
from drivetrain.data.deal import Deal
from drivetrain.data.orders import Orders, batches_of
from drivetrain.data.source import ENDLESS
from drivetrain.ledger.code_history import code_stretches, told
from drivetrain.ledger.comparison import comparable, still_promised, unequal
from drivetrain.ledger.derive import lineage, steps
from drivetrain.ledger.ledger import read
from drivetrain.ledger.records import (
    AttemptRecord,
    CodeFileRecord,
    CodeRecord,
    CommandRecord,
    CommitRecord,
    Record,
    RollbackRecord,
    StepRecord,
)
from drivetrain.loop.control import REPLAYED
from drivetrain.loop.state import StateValues
from drivetrain.loop.streams import marks_by_lane
from drivetrain.run.build import Inputs, build_task, digests_beside, open_inputs, run_scale
from drivetrain.run.replay import Replay, kept_in
from drivetrain.run.streams import streams_of
from drivetrain.runtime.lease import fenced, takeovers
from drivetrain.spec.affects import bits_digest
from drivetrain.spec.batches import Batches
from drivetrain.spec.code.kept import kept
from drivetrain.spec.code.scan import digest_of
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load
from drivetrain.spec.recipe import Recipe

NEVER_KNOWN = "files that code reads and does not declare, libraries it loads by itself, and what it asks elsewhere"
"""What no record of code can tell."""


@dataclass
class Certificate:
    """What was found to hold. `again` counts steps that were made more than once, and what could not be compared."""

    run: str
    records: int = 0
    root: str = ""
    tail: str = ""
    attempts: int = 0
    worlds: list[int] = field(default_factory=list)
    claims: list[str] = field(default_factory=list)
    steps: int = 0
    samples: int = 0
    left_out: int = 0
    rollbacks: int = 0
    commands: int = 0
    replayed: int = 0
    again: dict[str, int] = field(default_factory=lambda: {"equal": 0, "not comparable": 0})
    commits: int = 0
    sources: int = 0
    code: list[dict[str, Any]] = field(default_factory=list)
    """Which code made which steps: digest, from_step (the steps after it), attempt, git; and a line for people."""
    code_files: dict[str, int] = field(default_factory=dict)
    """Files of the user's code in all attempts: `kept` with their content, and `digests` only."""
    unknown: list[str] = field(default_factory=list)
    """What this certificate cannot know."""

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


def prove(
    run: Path, *, data: bool = True, told: Callable[[str, Certificate], None] = lambda part, so_far: None
) -> Certificate:
    """Check all that a run directory tells against each other, and return what holds.

    Without `data` the sources are not opened. `told` is given each part once it holds, and the certificate so far; it
    is filled further. Raises Failure with the first thing that does not hold: 74 for the
    ledger's chain, 83 where a step that was made again came to other numbers, 86 for commits, 65 for everything else;
    66 where there is no run.
    """
    records = list(read(run / "ledger.jsonl"))
    try:
        return _proved(run, records, data, told)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        # Its chain holds, its fields do not.
        what = f"a record or a manifest has another form than a run writes: {type(error).__name__}: {error}"
        raise _broken(what) from error


def _proved(run: Path, records: Sequence[Record], data: bool, told: Callable[[str, Certificate], None]) -> Certificate:
    tries = {record.attempt: record for record in records if isinstance(record, AttemptRecord)}
    if not tries:
        raise Failure(Exit.BAD_DATA, f"{run}: the ledger has no attempt", "train it first")
    claims, worlds = set(), []
    for attempt in tries.values():
        code = f", code {attempt.claim.code}" if attempt.claim.code else ""
        claims.add(f"{attempt.claim.class_} {attempt.claim.key}{code}")
        worlds.append(attempt.world)
    certificate = Certificate(
        run=str(run),
        records=len(records),
        root=records[0].chain or "",
        tail=records[-1].chain or "",
        attempts=len(tries),
        rollbacks=sum(isinstance(record, RollbackRecord) for record in records),
        worlds=worlds,
        claims=sorted(claims),
    )
    told("chain", certificate)
    # In this order: what comes later believes what came before, such as that every step has an attempt.
    _prove_attempts(records)
    told("attempts", certificate)
    _prove_samples(records, tries)
    history = lineage(records)
    _prove_history(history, certificate)
    told("samples", certificate)
    _prove_commands(records, history, certificate)
    newest = list(tries.values())[-1]
    if replay := kept_in(run):
        _prove_replay(replay, records, newest.settings, certificate)
    told("commands", certificate)
    _prove_repeats(records, tries, certificate)
    told("made again", certificate)
    _prove_commits(run, records, tries, certificate)
    told("commits", certificate)
    _prove_code(run, records, certificate)
    recipe = load(run).recipe
    _prove_recipe(recipe, newest)
    told("code and recipe", certificate)
    if data:
        inputs = _prove_data(run, recipe, newest, certificate)
        if recipe.batch.cost is not None:
            batches = run_scale(recipe, inputs.train, newest.lanes).batches
            for record in steps(history):
                _require_span(record, batches, tries[record.attempt])
        told("sources", certificate)
    return certificate


def _broken(what: str, record: Record | None = None, code: Exit = Exit.BAD_DATA) -> Failure:
    where = {}
    if (step := getattr(record, "step", None)) is not None:
        where["step"] = step
    hint = "the run directory was changed by hand, or is not one run's; restore it from a copy"
    return Failure(code, what, hint, **where)


def _prove_attempts(records: Iterable[Record]) -> None:
    """Attempts are numbered, and each begins at a step that was reached; its steps follow each other."""
    number = reached = 0
    for record in records:
        if isinstance(record, AttemptRecord):
            number += 1
            if record.attempt != number:
                raise _broken(f"attempt {record.attempt} stands where attempt {number} should")
            if record.from_step > reached:
                raise _broken(f"attempt {number} begins after step {record.from_step}, but {reached} was reached")
            reached = record.from_step
        elif isinstance(record, RollbackRecord):
            if record.step != reached or not 0 <= record.to < reached:
                raise _broken(f"it goes back from {record.step} to {record.to}; {reached} was reached", record)
            reached = record.to
        elif isinstance(record, StepRecord):
            if record.attempt != number:
                raise _broken(f"a step of attempt {record.attempt} stands in attempt {number}", record)
            if record.step != reached + 1:
                raise _broken(f"step {record.step} comes after step {reached}", record)
            reached += 1


def _prove_samples(records: Iterable[Record], tries: Mapping[int, AttemptRecord]) -> None:
    """Every step has read the positions that its batch has, and the samples that stand there. Where a step ends that
    takes as many samples as a cost allows, only the data tell."""
    orders = Orders()
    spans = {number: batches_of(attempt) for number, attempt in tries.items() if attempt.batch.cost is None}
    for record in records:
        orders.add(record)
        if not isinstance(record, StepRecord):
            continue
        start, stop = record.start, record.stop
        if record.attempt in spans:
            start, stop = _require_span(record, spans[record.attempt], tries[record.attempt])
        if f"{orders.read(record.step, start, stop).digest:016x}" != record.samples:
            raise _broken(f"step {record.step} has read other samples than stand at its positions", record)


def _require_span(record: StepRecord, batches: Batches, attempt: AttemptRecord) -> tuple[int, int]:
    """The positions [start, stop) of a step, which are those that it tells of. A budget's last one may be short."""
    start, stop = batches.span(record.step)
    stop = min(stop, attempt.budget.samples)
    if (record.start, record.stop) != (start, stop):
        given = f"[{record.start}, {record.stop})"
        raise _broken(f"step {record.step} tells of the positions {given}, but has [{start}, {stop})", record)
    return start, stop


def _prove_history(history: Sequence[Record], certificate: Certificate) -> None:
    """In the history that counts every sample was used once, up to where it is."""
    position = 0
    for record in steps(history):
        if record.start != position:
            raise _broken(f"step {record.step} begins at position {record.start}, not {position}", record)
        position = record.stop
        certificate.steps = record.step
        certificate.left_out += record.skipped is not None
    certificate.samples = position


def _prove_commands(records: Iterable[Record], history: Sequence[Record], certificate: Certificate) -> None:
    """What the run was told was done once in the history that counts, after the same step each time it was made."""
    counted = Counter(record.id for record in history if isinstance(record, CommandRecord))
    settings = next(record.settings for record in reversed(history) if isinstance(record, AttemptRecord))
    first: dict[str, CommandRecord] = {}
    for record in records:
        if not isinstance(record, CommandRecord) or record.refused is not None:
            continue
        told = first.setdefault(record.id, record)
        if record.step != told.step:
            raise _broken(f"{record.verb} was done after step {told.step}, and after {record.step}", record)
    for id, record in first.items():
        due = record.verb in REPLAYED and record.settings == settings and record.step < certificate.steps
        if counted[id] > 1 or (due and not counted[id]):
            raise _broken(f"{record.verb} {record.argument} was done {counted[id]} times", record)
    certificate.commands = len(counted)


def _prove_replay(replay: Replay, records: Iterable[Record], settings: str, certificate: Certificate) -> None:
    """What the other run was told up to here, and decides bits or scores, this one was told after the same steps."""
    own = {record.id: record for record in records if isinstance(record, CommandRecord)}
    # Commands to other settings are passed over, as a replay itself drops them.
    for id, record in replay.commands.items():
        if record.verb not in REPLAYED or record.settings != settings or record.step >= certificate.steps:
            continue
        if id not in own or _done(own[id]) != _done(record):
            said = f"`{record.verb} {record.argument}` after step {record.step}"
            raise _broken(f"{replay.run} was told {said}, this replay was not", record)
        certificate.replayed += 1


def _done(command: CommandRecord) -> tuple[object, ...]:
    """What a command was, when it was done, and what it came to."""
    return command.step, command.verb, command.argument, command.effect


def _prove_repeats(records: Iterable[Record], tries: Mapping[int, AttemptRecord], certificate: Certificate) -> None:
    """What was made again under an equal claim came to the same numbers."""
    before: dict[int, StepRecord] = {}
    for record in records:
        before = still_promised(before, record)
        if not isinstance(record, StepRecord):
            continue
        earlier, before[record.step] = before.get(record.step), record
        if earlier is None:
            continue
        if not comparable(tries[earlier.attempt], tries[record.attempt]):
            certificate.again["not comparable"] += 1
            continue
        certificate.again["equal"] += 1
        if other := unequal(earlier, record):
            cause = f"step {record.step} was made again, by attempt {record.attempt}, with other {other}"
            hint = "the hardware, or code that is not deterministic; look at docs/exactness.md"
            raise Failure(Exit.CORRUPTION_SUSPECTED, cause, hint, step=record.step)


def _prove_commits(
    run: Path, records: Sequence[Record], tries: Mapping[int, AttemptRecord], certificate: Certificate
) -> None:
    """Each commit is whole, is the one that the ledger tells of, and stands at a place of its chain."""
    # The newest of each name: a step that is made again is committed under the name that it had.
    told = {record.name: record for record in records if isinstance(record, CommitRecord)}
    places = {record.chain: place for place, record in enumerate(records)}
    reached = _reached(records)
    epochs, damaged = takeovers(run), []
    for name in names(run):
        try:
            manifest = verify(run / FOLDER / name)
        except Damaged as damage:
            damaged.append(f"of {name} ({damage})")
            continue
        # Of a run that had lost the directory: nobody goes on from it.
        if name not in told and fenced(epochs, name, manifest.get("epoch", 0)):
            continue
        for wrong in _wrong_commit(name, manifest, told.get(name), places, reached, tries):
            raise _broken(f"{name}: {wrong}", code=Exit.NO_VALID_COMMIT)
        certificate.commits += 1
    if damaged:
        # After the code's own words: there is no valid commit left ...
        others = f"; {certificate.commits} of other steps are whole" if certificate.commits else ""
        cause = ", ".join(damaged) + others
        raise Failure(Exit.NO_VALID_COMMIT, cause, "restore it from a copy, or remove it")


def _prove_code(run: Path, records: Sequence[Record], certificate: Certificate) -> None:
    """Each attempt's digest of the user's code is that of its files; which of these are kept, and what nobody knows."""
    files: dict[str, CodeFileRecord] = {}
    unread: set[str] = set()
    for record in records:
        if isinstance(record, AttemptRecord) and record.user_code:
            if digest_of(record.user_code.files) != record.user_code.digest:
                raise _broken(f"the digest of attempt {record.attempt}'s code is not that of its files")
            files |= {file.sha256: file for file in record.user_code.files.values()}
            unread.update(record.user_code.unread)
        elif isinstance(record, CodeRecord):
            files |= {file.sha256: file for file in record.files.values()}
    stretches = code_stretches(records)
    for stretch, line in zip(stretches, told(stretches), strict=True):
        place = {"from_step": stretch.from_step, "attempt": stretch.attempt}
        certificate.code.append({"digest": stretch.digest, **place, "git": stretch.git, "told": line})
    if not stretches:
        return
    whole = sum(kept(run, sha256) is not None for sha256 in files)
    certificate.code_files = {"kept": whole, "digests": len(files) - whole}
    if any(stretch.digest is None for stretch in stretches):
        certificate.unknown.append("which code ran in attempts from before it was recorded")
    if unread:
        certificate.unknown.append(f"the code of {', '.join(sorted(unread))}")
    certificate.unknown.append(NEVER_KNOWN)


def _reached(records: Iterable[Record]) -> list[tuple[int, int]]:
    """The step and position that the history which counts had come to, after each record."""
    stops = {0: 0}
    step, found = 0, []
    for record in records:
        if isinstance(record, AttemptRecord):
            step = record.from_step
        elif isinstance(record, RollbackRecord):
            step = record.to
        elif isinstance(record, StepRecord):
            step = record.step
            stops[step] = record.stop
        found.append((step, stops[step]))
    return found


def _wrong_commit(
    name: str,
    manifest: Mapping[str, Any],
    told: CommitRecord | None,
    places: Mapping[str | None, int],
    reached: Sequence[tuple[int, int]],
    tries: Mapping[int, AttemptRecord],
) -> Iterator[str]:
    """What of a manifest does not fit the ledger. A run that is killed may leave a commit that no record tells of."""
    # A commit of a later attempt than its record's was cut off before the ledger had it.
    if told is not None and told.manifest != manifest["sha256"] and manifest["attempt"] <= told.attempt:
        yield "it is not the commit of this name that the ledger tells of"
    if manifest["step"] != step_of(name):
        yield f"it is of step {manifest['step']}"
    place = places.get(manifest["ledger"])
    if place is None:
        yield "the ledger has no record that it follows"
        return
    at = reached[place]
    if at != (manifest["step"], manifest["position"]):
        own = (manifest["step"], manifest["position"])
        yield f"it is of step {own[0]} and position {own[1]}; the ledger was at {at[0]} and {at[1]}"
    attempt = tries.get(manifest["attempt"])
    inputs = (manifest["recipe"], manifest["data"], manifest["lanes"], manifest.get("user_code"))
    if attempt is None or inputs != (attempt.recipe, attempt.data, attempt.lanes, attempt.claim.code):
        yield "it is of another recipe, other data, other lanes or other code than its attempt"


def _prove_recipe(recipe: Recipe, attempt: AttemptRecord) -> None:
    """The recipe that lies in the directory is the one that was trained, and the order is the one it asks for."""
    if bits_digest(recipe) != attempt.recipe:
        raise _broken("the recipe in resolved.json is not the one that the newest attempt has trained")
    order = attempt.order
    buckets = recipe.data.train.buckets
    turned = None if buckets is None else [recipe.batch.size, buckets]
    if (order["seed"], order["shuffle"], order.get("buckets")) != (recipe.seed, recipe.data.train.shuffle, turned):
        raise _broken("the order of the samples does not follow from the recipe")
    dealt = (attempt.lanes, attempt.batch.size, [list(change) for change in attempt.batch.ramp])
    if recipe.batch.cost is not None:  # one order, whatever the lanes are
        dealt = (1, ENDLESS, [])
    if "lanes" in order and (order["lanes"], order["batch"], order["ramp"]) != dealt:
        raise _broken("the order of the samples does not follow from lanes and batches")


def _prove_data(run: Path, recipe: Recipe, attempt: AttemptRecord, certificate: Certificate) -> Inputs:
    """Every source has the content that the newest attempt has read; returns them, opened. Nothing that was remembered
    is believed."""
    with tempfile.TemporaryDirectory() as nothing_known:
        task = build_task(recipe)
        inputs = open_inputs(recipe, Path(nothing_known), task)
        digests = digests_beside(attempt.data, inputs, recipe, Path(nothing_known), task)
    for place, digest in digests.items():
        if attempt.data.get(place, digest) != digest:
            raise _broken(f"{place} has another content than the run has read")
    if list(map(len, inputs.train.values())) != attempt.order["sizes"]:
        raise _broken("the sources have another number of samples than the run has read")
    _prove_streams(run, inputs, attempt, certificate)
    certificate.sources = len(digests)
    return inputs


def _prove_streams(run: Path, inputs: Inputs, attempt: AttemptRecord, certificate: Certificate) -> None:
    """Of each training stream the samples that the newest commit has marked are what they were. Others are not looked
    at: nobody knows what they were."""
    streams = streams_of(inputs.train)
    there = names(run)
    if not streams or not there:
        return
    _, state = load_commit(run / FOLDER / there[0])
    values = StateValues.from_json(state.values)
    positions = coverage(order_of(attempt.order), list(inputs.train), values.progress.position)
    deal = Deal(batches_of(attempt), attempt.lanes)
    for name, source in streams.items():
        known = values.streams[name]
        if known["lanes"] > 1:
            source.deal(deal)
        marks = marks_by_lane(known)
        source.resume(marks, positions[name], range(known["lanes"]), accepts_change=False)
        certificate.unknown += [f"{name}: {note}" for note in source.stream.notes]
        certificate.unknown.append(f"{name} is a stream: of its samples {len(marks)} were read again and compared")
