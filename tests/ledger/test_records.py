"""Records as types: what the hand-written writer of steps writes, what other versions wrote, the schema, the page."""

import json
import math
import re
import tempfile
from dataclasses import fields
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import records as told
from conftest import TEXT, run_under_supervisor, tiny_recipe
from drivetrain.ledger.fields import reader
from drivetrain.ledger.ledger import LedgerFile, read
from drivetrain.ledger.records import (
    KINDS,
    AttemptRecord,
    EvaluationRecord,
    NoteRecord,
    RepairRecord,
    StepRecord,
    UnknownRecord,
    parse,
)
from drivetrain.ledger.schema import ledger_schema
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.keys import key_of

DOCS = Path(__file__).parents[2] / "docs"
TIMES = st.floats(0, 1e6).map(lambda seconds: round(seconds, 7))  # as fine as they are written
NUMBERS = st.floats().map(lambda value: math.nan if math.isnan(value) else value)
STEPS = st.builds(
    StepRecord,
    time=st.floats(0, 1e10),
    attempt=st.integers(1, 9),
    step=st.integers(1),
    start=st.integers(0),
    stop=st.integers(0),
    samples=st.integers(0, 2**64 - 1).map("{:016x}".format),
    losses=st.dictionaries(st.text(), NUMBERS, max_size=3),
    counts=st.dictionaries(st.text(), st.integers(0), max_size=3),
    norm=st.dictionaries(st.text(), NUMBERS, max_size=3),
    lr=st.dictionaries(st.text(), st.floats(0, 1), max_size=3),
    seconds=TIMES,
    wait=TIMES,
    skipped=st.none() | st.dictionaries(st.text(), st.text(), min_size=1, max_size=3),
    scale=st.none() | st.floats(1e-9, 1e9),
)


def written(path: Path, records) -> bytes:
    """A ledger with these records, steps by the writer of steps."""
    ledger = LedgerFile.open(path)
    for record in records:
        if isinstance(record, StepRecord):
            made = {part.name: getattr(record, part.name) for part in fields(record)}
            del made["chain"], made["attempt"]
            ledger.append_steps(record.attempt, [made | {"samples": int(record.samples, 16)}])
        else:
            ledger.append({name: value for name, value in record.to_json().items() if name != "chain"})
    ledger.close()
    return path.read_bytes()


@given(STEPS)
def test_the_writer_of_steps_writes_the_type(step):
    with tempfile.TemporaryDirectory() as folder:
        written(Path(folder) / "l", [step])
        (found,) = read(Path(folder) / "l")
    whole = found.to_json()
    assert whole.pop("chain") == found.chain
    assert whole == step.to_json()
    assert list(whole) == list(step.to_json())
    assert json.dumps(whole) == json.dumps(reader(StepRecord)(whole).to_json())  # the slow way, which checks types


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    """The ledger of a run that was stopped once, with numbers of every kind that this makes."""
    folder = tmp_path_factory.mktemp("typed")
    corpus = folder / "corpus"
    corpus.mkdir()
    for number in range(4):
        (corpus / f"{number}.txt").write_text(TEXT[number * 999 :])
    more = {"guard": {"skip": [4]}, "statistics": {"every": {"steps": 6}}, "telemetry": {"every": {"steps": 5}}}
    recipe = tiny_recipe(corpus) | more
    recipe["data"]["test"] = {"cats": {"kind": "text", "path": str(corpus / "2.txt")}}
    assert run_under_supervisor(recipe, folder / "run", most_steps=7).code == Exit.STOPPED
    assert run_under_supervisor(recipe, folder / "run").code == Exit.DONE
    return folder / "run" / "ledger.jsonl"


def test_a_ledger_that_is_read_and_written_again_has_the_same_bytes(ledger, tmp_path):
    records = list(read(ledger))
    kinds = {"attempt", "step", "evaluation", "final", "telemetry", "statistics", "commit", "exit"}
    assert kinds <= {record.kind for record in records}
    assert written(tmp_path / "again", records) == ledger.read_bytes()


def test_every_record_of_a_ledger_fits_the_schema(ledger):
    validator = jsonschema.Draft202012Validator(ledger_schema())
    for line in ledger.read_bytes().splitlines():
        validator.validate(json.loads(line))
    step = json.loads(next(line for line in ledger.read_bytes().splitlines() if b'"kind":"step"' in line))
    assert not validator.is_valid(step | {"step": "7"})
    assert validator.is_valid(step | {"losses": {"loss": "nan"}})
    assert not validator.is_valid({name: value for name, value in step.items() if name != "samples"})


def test_what_is_not_finite_is_a_string_in_the_file_and_a_number_in_the_type():
    line = told.step(1, loss="nan") | {"norm": {"model": "-inf"}}
    step = parse(line)
    assert isinstance(step, StepRecord)
    assert math.isnan(step.losses["loss"])
    assert step.norm["model"] == -math.inf
    assert step.to_json() == line
    scored = parse(told.evaluation(1, "inf"))
    assert isinstance(scored, EvaluationRecord)
    assert scored.metrics["dogs"]["bits"] == math.inf


def test_kinds_and_fields_of_other_versions_are_read():
    newer = {"kind": "hologram", "time": 3.0, "attempt": 1, "depth": [1, 2], "chain": "f" * 32}
    record = parse(newer)
    assert record == UnknownRecord(kind="hologram", time=3.0, fields=newer)
    assert (record.chain, record.to_json()) == ("f" * 32, newer)
    assert parse({"kind": "note", "time": 3.0, "attempt": 1, "text": "x", "colour": "red"}) == NoteRecord(
        time=3.0, attempt=1, text="x"
    )
    older = told.attempt()
    del older["settings"], older["replay"]
    record = parse(older)
    assert isinstance(record, AttemptRecord)
    assert (record.settings, record.replay, record.flops) == ("", None, None)
    assert parse({"kind": "repair", "time": 1.0, "bytes": 9}) == RepairRecord(time=1.0, bytes=9)


@pytest.mark.parametrize("kind", ["attempt", "step", "exit"])
def test_a_record_of_another_form_is_65_and_named(tmp_path, kind):
    whole = {"attempt": told.attempt(), "step": told.step(1), "exit": told.ended(0, "done")}[kind]
    for name in whole.keys() - {"kind", "time", "attempt", "settings", "after", "replay", "tokens_per_sample"}:
        path = tmp_path / name
        ledger = LedgerFile.open(path)
        ledger.append({"kind": "note", "time": 1.0, "text": "x"})
        ledger.append({key: value for key, value in whole.items() if key != name})
        ledger.close()
        with pytest.raises(Failure) as caught:
            list(read(path))
        assert (caught.value.outcome.code, caught.value.outcome.where["line"]) == (Exit.BAD_DATA, 2)


def test_the_schema_in_the_docs_is_that_of_the_code():
    assert json.loads((DOCS / "ledger-schema.json").read_text()) == ledger_schema()


def test_the_page_has_every_field_of_every_kind():
    sections = re.split(r"^##+ ", (DOCS / "ledger.md").read_text(), flags=re.MULTILINE)
    rows = {text.partition("\n")[0].strip("`"): set(re.findall(r"^\| `(\w+)` \|", text, re.M)) for text in sections}
    found = {kind: rows.get(kind) for kind in KINDS}
    shared = {"time", "attempt", "chain"}
    assert found == {kind: {key_of(part.name) for part in fields(cls)} - shared for kind, cls in KINDS.items()}


def test_the_reader_on_the_page_reads_a_ledger_and_finds_what_was_changed(ledger, tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "ledger.md").read_text(), re.DOTALL)
    place: dict = {}
    exec(code, place)
    records = list(place["read"](ledger))
    assert records == [json.loads(line) for line in ledger.read_bytes().splitlines()]
    changed = ledger.read_bytes().replace(b'"step":3', b'"step":4', 1)
    (tmp_path / "changed").write_bytes(changed)
    with pytest.raises(ValueError, match="record"):
        list(place["read"](tmp_path / "changed"))
    (tmp_path / "torn").write_bytes(ledger.read_bytes()[:-9])
    assert list(place["read"](tmp_path / "torn")) == records[:-1]
