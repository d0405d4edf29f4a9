"""`drivetrain verify`: what holds is certified, and every falsification is found."""

import json
import random
import re
import shutil
from pathlib import Path

import pytest

from conftest import TEXT, run_under_supervisor, tiny_recipe
from drivetrain.cli.main import run as command
from drivetrain.run.proof import prove
from drivetrain.spec.exits import Exit, Failure
from records import rechained

pytestmark = pytest.mark.xdist_group("proof")
SEEDS = range(200)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A run of 2 -> 1 processes that was stopped, lost a commit, and made two steps again; another beside it."""
    folder = tmp_path_factory.mktemp("proof")
    corpus = folder / "corpus"
    corpus.mkdir()
    for number in range(4):
        (corpus / f"{number}.txt").write_text(TEXT[number * 999 :])
    recipe = tiny_recipe(corpus) | {"guard": {"skip": [4]}, "checkpoint": {"every": {"steps": 5}, "keep": 9}}
    recipe["launch"]["processes"] = 2
    assert run_under_supervisor(recipe, folder / "run", most_steps=7).code == Exit.STOPPED
    shutil.rmtree(folder / "run" / "checkpoints" / "step-00000007")
    assert run_under_supervisor(recipe, folder / "run", most_steps=4).code == Exit.STOPPED
    assert run_under_supervisor(recipe, folder / "run", "launch.processes=1").code == Exit.DONE
    assert run_under_supervisor(recipe, folder / "other", "seed=1").code == Exit.DONE
    return folder


def test_a_run_that_was_stopped_resized_and_made_steps_again_is_certified(place, capsys):
    found = prove(place / "run")
    assert (found.steps, found.samples, found.worlds) == (12, 96, [2, 2, 1])
    assert found.again == {"equal": 2, "not comparable": 0}
    assert (found.commits, found.sources, found.left_out) == (4, 2, 1)
    assert command(["verify", str(place / "run")]) == Exit.DONE
    assert "everything holds" in capsys.readouterr().out
    assert command(["verify", str(place / "run"), "--json", "--no-data"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out)["sources"] == 0


def anchored(run: Path) -> int:
    """How many records stand before the newest commit."""
    tails = [json.loads(line)["chain"] for line in (run / "ledger.jsonl").read_bytes().splitlines()]
    newest = max((run / "checkpoints").iterdir())
    return tails.index(json.loads((newest / "MANIFEST.json").read_bytes().split(b"\n")[0])["ledger"]) + 1


def edited(line: bytes, draw: random.Random) -> bytes:
    record = json.loads(line)
    record.pop("chain")
    name = draw.choice(sorted(record.keys() - {"kind"}))
    record[name] = {"edited": record[name]} if not isinstance(record[name], int) else record[name] + 1
    return json.dumps(record, separators=(",", ":"))[:-1].encode() + line[line.rindex(b',"chain"') :]


def falsify_ledger(run: Path, draw: random.Random, place: Path) -> str:
    """Drop, double, reorder or edit a record; with or without mending the chain behind it."""
    path = run / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    mended = draw.random() < 0.5
    at = draw.randrange(anchored(run) - 1 if mended else len(lines) - 1)
    how = draw.choice(["drop", "double", "reorder", "edit"])
    if how == "drop":
        del lines[at]
    elif how == "double":
        lines.insert(at, lines[at])
    elif how == "reorder":
        lines[at], lines[at + 1] = lines[at + 1], lines[at]
    else:
        lines[at] = edited(lines[at], draw)
    path.write_bytes(rechained(lines) if mended else b"".join(lines))
    return f"{how} record {at}{', mended' if mended else ''}"


def falsify_commit(run: Path, draw: random.Random, place: Path) -> str:
    """Change a byte, give a commit another's name, or put another run's in its place."""
    commits = sorted((run / "checkpoints").iterdir())
    one, other = draw.sample(commits, 2)
    how = draw.choice(["byte", "swap", "foreign", "missing file"])
    if how == "byte":
        file = draw.choice(sorted(one.iterdir()))
        content = bytearray(file.read_bytes())
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        file.write_bytes(content)
    elif how == "swap":
        one.rename(run / "aside")
        other.rename(one)
        (run / "aside").rename(other)
    elif how == "foreign":
        theirs = draw.choice(sorted((place / "other" / "checkpoints").iterdir()))
        shutil.rmtree(one)
        shutil.copytree(theirs, one.parent / theirs.name, dirs_exist_ok=True)
    else:
        draw.choice(sorted(one.iterdir())).unlink()
    return f"{how} {one.name}"


def falsify_data(run: Path, draw: random.Random, place: Path) -> str:
    """Change samples: a letter, with the same size and time; two files exchanged; a file more."""
    files = sorted((place / "corpus").iterdir())
    how = draw.choice(["letter", "exchange", "more"])
    if how == "letter":
        file = draw.choice(files)
        text = file.read_bytes()
        at = draw.randrange(len(text))
        file.write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])
    elif how == "exchange":
        one, other = draw.sample(files, 2)
        text = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(text)
    else:
        (place / "corpus" / "9.txt").write_text("more\n" * 20)
    return how


KINDS = {
    falsify_ledger: "record|ledger|attempt|step|commit",
    falsify_commit: "^(of )?step-|another form",
    falsify_data: "another content",
}
"""What to falsify, and what the first thing found is called."""


@pytest.mark.parametrize("part", range(4))
def test_every_one_of_200_falsifications_is_found(place, tmp_path, part):
    missed = []
    corpus = place / "corpus"
    shutil.copytree(corpus, tmp_path / "corpus")
    for seed in SEEDS[part::4]:
        draw = random.Random(seed)
        run = tmp_path / str(seed)
        shutil.copytree(place / "run", run)
        falsify, words = draw.choices(list(KINDS), [6, 4, 2])[0], ""
        told = falsify(run, draw, place)
        try:
            prove(run)
        except Failure as failure:
            words = failure.outcome.cause
        if not re.search(KINDS[falsify], words):
            missed.append((seed, told, words))
        shutil.rmtree(run)
        shutil.rmtree(corpus)
        shutil.copytree(tmp_path / "corpus", corpus)
    assert missed == []


def test_a_torn_commit_is_told_as_the_one_that_is_not_valid_and_the_others_as_whole(place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "step-00000012" / "MANIFEST.json").write_text("[]")
    with pytest.raises(Failure) as caught:
        prove(tmp_path / "run", data=False)
    assert caught.value.outcome.code == Exit.NO_VALID_COMMIT
    said = "86 no valid commit left: of step-00000012 (the manifest is torn); 3 of other steps are whole."
    assert said in caught.value.outcome.line()


def test_a_torn_tail_is_no_falsification(place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run")
    with (tmp_path / "run" / "ledger.jsonl").open("ab") as file:
        file.write(b'{"kind":"step","ti')
    assert prove(tmp_path / "run").steps == 12


def test_n07_a_step_that_came_to_other_numbers_when_it_was_made_again_is_83(place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run")
    path = tmp_path / "run" / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    again = [n for n, line in enumerate(lines) if b'"kind":"step"' in line and json.loads(line)["step"] == 7]
    record = json.loads(lines[again[0]])
    record["losses"]["loss"] += 1e-9
    lines[again[0]] = (json.dumps(record, separators=(",", ":")) + "\n").encode()
    path.write_bytes(rechained(lines))
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(Failure) as caught:
        prove(tmp_path / "run")
    assert caught.value.outcome.code == Exit.CORRUPTION_SUSPECTED
    assert "losses" in caught.value.outcome.cause


def test_a_folder_that_is_no_run_is_66(tmp_path):
    with pytest.raises(Failure) as caught:
        prove(tmp_path)
    assert caught.value.outcome.code == Exit.INPUT_MISSING


@pytest.mark.parametrize("kind", ["attempt", "step", "commit"])
def test_records_with_a_sound_chain_and_fields_of_another_form_are_found(place, tmp_path, kind):
    """Every field of a record in turn: none of them ends in a traceback."""
    lines = (place / "run" / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if f'"kind":"{kind}"'.encode() in line)
    shutil.copytree(place / "run", tmp_path / "run")
    for name in json.loads(lines[at]).keys() - {"kind", "chain"}:
        record = json.loads(lines[at])
        record[name] = {"edited": []}
        changed = [*lines[:at], (json.dumps(record) + "\n").encode(), *lines[at + 1 :]]
        (tmp_path / "run" / "ledger.jsonl").write_bytes(rechained(changed))
        with pytest.raises(Failure):
            prove(tmp_path / "run", data=False)
