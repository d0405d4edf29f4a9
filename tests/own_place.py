"""A folder with a recipe beside modules of the user's own, and the commands in it."""

import json
from pathlib import Path

from drivetrain.ledger.derive import lineage, steps
from drivetrain.ledger.ledger import read


class Place:
    """A folder with a recipe beside the module of own kinds."""

    def __init__(self, folder, recipe, command, capfd):
        self.folder, self._recipe, self._command, self._capfd = folder, recipe, command, capfd
        self.add("kinds")

    def __call__(self, *arguments):
        self._capfd.readouterr()
        code = self._command(list(map(str, arguments)), self.folder)
        self.out, self.err = self._capfd.readouterr()
        return code

    def add(self, *modules):
        """Put modules of the user's own into the folder: own_X.py as mine_X.py."""
        for name in modules:
            (self.folder / f"mine_{name}.py").write_text((Path(__file__).parent / f"own_{name}.py").read_text())

    def write(self, **sections):
        (self.folder / "own.json").write_text(json.dumps(self._recipe | {"name": "own", **sections}))

    def train(self, run, *arguments):
        return self("train", "own.json", "--run", run, *arguments)

    def rates(self, run):
        made = steps(lineage(read(self.folder / run / "ledger.jsonl")))
        return {record.step: record.lr["model"] for record in made}
