"""A folder with a recipe beside a module of the user's own, and the commands in it."""

import json
import sys
from pathlib import Path

import pytest

from conftest import tiny_recipe
from drivetrain.ledger.derive import lineage, steps
from drivetrain.ledger.ledger import read
from golden.warm import warm


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with warm(tmp_path_factory.mktemp("own-kinds")) as command:
        yield command


class Place:
    """A folder with a recipe beside the module of own kinds."""

    def __init__(self, folder, recipe, command, capfd):
        self.folder, self._recipe, self._command, self._capfd = folder, recipe, command, capfd
        (folder / "mine_kinds.py").write_text((Path(__file__).parent.parent / "own_kinds.py").read_text())

    def __call__(self, *arguments):
        self._capfd.readouterr()
        code = self._command(list(map(str, arguments)), self.folder)
        self.out, self.err = self._capfd.readouterr()
        return code

    def write(self, **sections):
        (self.folder / "own.json").write_text(json.dumps(self._recipe | {"name": "own", **sections}))

    def train(self, run, *arguments):
        return self("train", "own.json", "--run", run, *arguments)

    def rates(self, run):
        made = steps(lineage(read(self.folder / run / "ledger.jsonl")))
        return {record.step: record.lr["model"] for record in made}


@pytest.fixture
def place(tmp_path, corpus, server, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    yield Place(tmp_path, tiny_recipe(corpus), server, capfd)
    for name in ("mine_kinds", "mine_metrics"):
        sys.modules.pop(name, None)  # what checks a recipe, or follows a run, has imported it here
