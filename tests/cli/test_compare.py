import json

import pytest

from drivetrain.cli.main import run as command
from drivetrain.ledger.ledger import LedgerFile
from drivetrain.spec.load import load
from records import attempt, ended, evaluation, step


@pytest.fixture
def runs(tmp_path):
    for name, rate in (("one", "1e-3"), ("two", "1e-2")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "resolved.json").write_text(json.dumps({"recipe": load("quickstart", [f"optimizer.lr={rate}"]).tree}))
        ledger = LedgerFile.open(folder / "ledger.jsonl")
        for record in (attempt(), step(1), step(2, loss="nan"), evaluation(2), ended(0, "done")):
            ledger.append(record)
        ledger.close()
    return [str(tmp_path / "one"), str(tmp_path / "two")]


def test_the_comparison_for_people_is_in_eighty_columns(runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert command(["compare", *runs]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines()[:-1])) <= 80
    assert any(line.split() == ["optimizer.lr", "0.001", "0.01"] for line in text.splitlines())


def test_the_comparison_for_programs_is_json(runs, capsys):
    assert command(["compare", *runs, "--json", "--by", "tokens"]) == 0
    told = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(word))
    assert told["by"] == "tokens"
    assert told["runs"]["one"]["losses"] == {"loss": "nan"}


@pytest.mark.parametrize("verb", ["report", "compare"])
def test_both_draw_a_picture_and_refuse_other_formats(runs, tmp_path, capsys, verb):
    given = runs if verb == "compare" else runs[:1]
    assert command([verb, *given, "--plot", str(tmp_path / "x.png")]) == 0
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "x.png").stat().st_mode & 0o777 == 0o600
    capsys.readouterr()
    assert command([verb, *given, "--plot", "x.gif"]) == 64
    said = capsys.readouterr()
    assert (said.out, "draws .png or .svg" in said.err) == ("", True)


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [([], 64, "two different runs"), (["/nowhere"], 66, "no ledger"), (["--by", "epochs"], 64, "epochs")],
)
def test_what_cannot_be_compared_is_told(runs, capsys, more, code, says):
    assert command(["compare", runs[0], *more]) == code
    assert says in capsys.readouterr().err
