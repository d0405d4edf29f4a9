"""What the board answers is what its schema says, which stands in the docs. `boards.py` holds each answer of each test
against it."""

import inspect
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from jsonschema import ValidationError
from openapi_spec_validator import validate

from boards import KEYS, Answer, decoded, made_run, require_described, serving
from drivetrain.board.app import _routes
from drivetrain.board.schema import CALLS, board_schema
from records import attempt, commit, step

DOCS = Path(__file__).parents[2] / "docs"


def test_the_schema_in_the_docs_is_that_of_the_code_and_is_openapi():
    told = board_schema()
    assert json.loads((DOCS / "board-schema.json").read_text()) == told
    validate(told)


def served():
    """By their calls, the functions that answer."""
    found = {}
    for route in _routes():
        if route.path.startswith("/api/"):
            (method,) = route.methods - {"HEAD"}
            found[f"{method} {route.path}".replace(":path}", "}")] = route.endpoint
    return found


def test_each_route_has_a_call_and_each_call_a_route():
    assert served().keys() == CALLS.keys()
    for call, endpoint in served().items():
        assert inspect.getdoc(endpoint) == call


def test_each_name_that_a_query_may_have_is_looked_at_by_its_route():
    for call, endpoint in served().items():
        code = inspect.getsource(endpoint)
        asked = set(re.findall(r'request, "(\w+)"', code))
        asked |= {"by"} if "axis(request)" in code else set()
        assert asked == CALLS[call].query.keys()


def keys_told(told):
    require_described("GET", "/api/keys", Answer(200, {}, json.dumps(told).encode()))


def test_an_answer_of_its_form_passes():
    keys_told({"keys": [], "metrics": []})


@pytest.mark.parametrize("told", [{"keys": []}, {"keys": [], "metrics": [1]}, {"keys": [], "metrics": [], "more": 1}])
def test_an_answer_of_another_form_is_found(told):
    with pytest.raises(ValidationError):
        keys_told(told)


@pytest.fixture
def runs(tmp_path):
    told = [attempt(steps=100), *(step(at) for at in range(1, 41)), commit(40, at=60.0)]
    for name in ("one", "two"):
        run = made_run(tmp_path / name, told)
        (run / "logs").mkdir()
        (run / "logs" / "rank-0.txt").write_text("said")
    return tmp_path


def test_every_address_answers_what_its_schema_says(runs):
    """Those that only read, once each: also of a run that has no ledger yet."""
    made_run(runs / "new", [])
    (runs / "new" / "ledger.jsonl").unlink()
    with serving(runs) as board:
        board.run("two")
        for name in ("one", "new"):
            id = board.run(name)["id"]
            for call in CALLS:
                method, path = call.split()
                if method == "GET" and "{job}" not in path and path != "/api/events":
                    path = path.replace("{id}", id)
                    answer = board.ask(path=path, headers=board.own)
                    # A record or a file has to be named.
                    assert answer.status == (404 if path.endswith(("/record", "/file")) else 200), path


def test_the_head_of_curves_is_described(runs):
    with serving(runs) as board:
        id = board.run("one")["id"]
        head, _ = decoded(board.ask(path=f"/api/runs/{id}/curves?n=train/loss", headers=board.own).body)
    assert set(head) == set(board_schema()["components"]["schemas"]["CurvesHead"]["required"])
    (curve,) = head["curves"]
    assert set(curve) == set(board_schema()["components"]["schemas"]["Curve"]["required"])


def test_the_commands_on_the_page_read_the_board(runs, tmp_path):
    if not shutil.which("curl"):
        pytest.skip("no curl here")
    (text,) = re.findall(r"```\n(umask .*?)```", (DOCS / "board.md").read_text(), re.DOTALL)
    with serving(runs) as board:
        board.run("one")
        text = text.replace("8642", str(board.port)).replace("TOKEN", KEYS.token).replace("trains", "cut off")
        done = subprocess.run(["sh", "-ec", text], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [row["values"] for row in json.loads(done.stdout)["runs"]] == [{"optimizer.lr": 1e-3}] * 2
