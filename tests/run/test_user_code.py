"""The code that a recipe names is part of its run: an edit makes another one, and is never mixed in without a word."""

import importlib
import json
import shutil
import subprocess
import sys
import warnings

import pytest

import drivetrain
from drivetrain.ledger.code_history import code_stretches
from drivetrain.ledger.ledger import read
from drivetrain.ledger.records import AttemptRecord, CodeRecord, NoteRecord
from drivetrain.spec.code.kept import MOST, kept
from drivetrain.spec.exits import Exit, Failure, Outcome
from golden.warm import warm

pytestmark = [pytest.mark.xdist_group("golden"), pytest.mark.timeout(300)]

TASK = '''"""A task in a file of its own."""
import importlib
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

from drivetrain import Task
from helper import build


class Rows:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((4,), index / 64)


class Fit(Task):
    def __init__(self, late: str = "", dies: int = 0, folder: str = "", edits: bool = False):
        self.late, self.dies, self.edits, self.folder = late, dies, edits, Path(folder)

    def networks(self):
        return {"model": build()}

    def update(self, step):
        if self.late and step.index == 3:
            importlib.import_module(self.late)
        if step.index < self.dies:
            time.sleep(0.11)  # so that the record of each step is written before it dies
        died, helper = self.folder / "died", self.folder / "helper.py"
        if self.dies == step.index and not died.exists():
            died.touch()
            if self.edits:
                helper.write_text(helper.read_text().replace("ReLU", "Tanh"))
            os.kill(os.getpid(), signal.SIGKILL)
        super().update(step)

    def loss(self, nets, batch):
        return (nets["model"](batch).squeeze(1) - batch.sum(1)).square().mean()
'''
HELPER = '''from torch import nn


def build():
    """A small network."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
'''


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with warm(tmp_path_factory.mktemp("user-code")) as command:
        yield command


class Place:
    """A folder with a recipe and its code, and commands given there."""

    def __init__(self, folder, command, capfd):
        self.folder, self._command, self._capfd = folder, command, capfd
        self.write("mine.py", TASK)
        self.write("helper.py", HELPER)
        tree = {
            "name": "mine",
            "task": {"kind": "mine:Fit"},
            "data": {"train": {"sources": [{"name": "rows", "kind": "mine:Rows"}]}},
            "batch": {"size": 8},
            "budget": {"steps": 24},
            "checkpoint": {"every": {"steps": 10}},
            "launch": {"threads": 1},
        }
        self.write("mine.json", json.dumps(tree))

    def write(self, name, text):
        (self.folder / name).write_text(text)

    def edit(self, old="ReLU", new="Tanh", name="helper.py"):
        text = (self.folder / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))

    def __call__(self, *arguments):
        """The exit code; what was said is in `out` and `err`."""
        self._capfd.readouterr()
        code = self._command(list(map(str, arguments)), self.folder)
        self.out, self.err = self._capfd.readouterr()
        return code

    def train(self, *arguments):
        return self("train", "mine.json", *arguments)

    def runs(self):
        return sorted(path.name for path in (self.folder / "runs").glob("*"))

    def run(self):
        (name,) = self.runs()
        return self.folder / "runs" / name

    def records(self, kind, run=None):
        return [record for record in read((run or self.run()) / "ledger.jsonl") if isinstance(record, kind)]

    def notes(self, run=None):
        return " | ".join(record.text for record in self.records(NoteRecord, run))


@pytest.fixture
def place(tmp_path, server, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield Place(tmp_path, server, capfd)
    # Commands that read a run build its task in this process.
    for name in ("mine", "helper", "in_memory", "in_memory_helper"):
        sys.modules.pop(name, None)


def test_an_edit_makes_another_run_that_names_the_one_before(place):
    assert place.train("--steps", 12) == Exit.STOPPED
    first = place.run()
    place.edit("A small network.", "Three layers.")
    place.edit("import os\n", "import os  # a comment\n\n\n", "mine.py")
    assert place.train("--steps", 1) == Exit.STOPPED
    assert place.runs() == [first.name], "what does the same is the same run"
    place.edit()
    assert place.train() == Exit.DONE
    assert len(place.runs()) == 2
    assert f"made by other code; to go on with it: drivetrain train runs/{first.name} --override code" in place.out
    assert place("train", first, "--override", "code") == Exit.DONE


def test_changed_code_is_76_with_names_and_a_diff_and_leaves_the_run_as_it_was(place):
    assert place.train("--steps", 12, "--run", "run") == Exit.STOPPED
    before = {name: (place.folder / "run" / name).read_bytes() for name in ("ledger.jsonl", "resolved.json")}
    place.edit()
    for arguments in (("mine.json", "--run", "run"), ("run",)):
        assert place("train", *arguments) == Exit.INCOMPATIBLE
        assert "was made by other code: helper.py" in place.err
        assert "--override code" in place.err
        assert {name: (place.folder / "run" / name).read_bytes() for name in before} == before
    place.edit("Tanh", "ReLU")
    assert place("train", "run") == Exit.DONE


def test_code_that_cannot_restore_the_commit_is_told_as_other_code(place):
    """And not as a commit that does not fit: the code is looked at before its networks are made."""
    assert place.train("--steps", 12, "--run", "run") == Exit.STOPPED
    place.edit("def build():", "def build():\n    raise ValueError('no network today')")
    assert place("train", "run") == Exit.INCOMPATIBLE
    assert "was made by other code: helper.py" in place.err


def test_an_accepted_change_is_another_claim_that_everything_tells(place):
    assert place.train("--steps", 12, "--run", "run") == Exit.STOPPED
    place.edit()
    assert place("train", "run", "--override", "code", "--steps", 4) == Exit.STOPPED
    assert place("train", "run") == Exit.DONE, "the new commits are by this code"
    run = place.folder / "run"
    first, second, third = place.records(AttemptRecord, run)
    assert first.claim.code != second.claim.code == third.claim.code == second.user_code.digest
    assert first.claim.key == second.claim.key
    stretches = code_stretches(read(run / "ledger.jsonl"))
    assert [(stretch.from_step, stretch.digest) for stretch in stretches] == [
        (0, first.claim.code),
        (12, second.claim.code),
    ]
    assert "accepted by --override code: helper.py changed since step-00000012" in place.notes(run)
    told = f"{second.claim.code} from step 13 on: helper.py changed"
    assert place("verify", "run", "--no-data") == Exit.DONE
    assert told in place.out
    assert "files that code reads and does not declare" in place.out
    assert place("report", "run") == Exit.DONE
    assert told in place.out
    assert place.train("--run", "other", "--steps", 4) == Exit.STOPPED
    assert place("compare", "run", "other") == Exit.DONE
    assert " ".join(place.out.split()).count(f"{second.claim.code} from step") == 2
    certificate = drivetrain.verify(run, data=False)
    assert len(certificate["claims"]) == 2
    assert certificate["code_files"] == {"kept": 3, "digests": 0}
    manifest = json.loads((run / "checkpoints/step-00000016/MANIFEST.json").read_text().splitlines()[0])
    assert manifest["user_code"] == second.claim.code, "what the commit was made by"
    place.edit("Tanh", "ReLU")
    assert place("train", "run", "budget.steps=30", "--override", "budget") == Exit.INCOMPATIBLE, "a way back, too"


def test_a_run_that_is_done_tells_of_no_code_that_made_no_step(place):
    assert place.train("--run", "run") == Exit.DONE
    place.edit()
    assert place("train", "run", "--override", "code") == Exit.DONE
    assert len(drivetrain.verify(place.folder / "run", data=False)["code"]) == 1


def test_a_commit_knows_its_code_where_the_ledger_is_lost(place):
    assert place.train("--run", "run", "--steps", 12) == Exit.STOPPED
    (place.folder / "run" / "ledger.jsonl").unlink()
    place.edit()
    assert place("train", "run", "--override", "ledger") == Exit.INCOMPATIBLE
    assert "was made by other code" in place.err


def test_what_stands_in_the_place_of_kept_sources_is_refused(place):
    assert place.train("--run", "run", "--steps", 1) == Exit.STOPPED
    shutil.move(place.folder / "run" / "code", place.folder / "elsewhere")
    (place.folder / "run" / "code").symlink_to(place.folder / "elsewhere")
    assert place("train", "run") == Exit.SECURITY
    assert "code is a link or a file" in place.err


def test_steps_of_another_code_are_compared_with_none(place):
    """Killed before the first commit, edited, started again: that was 83, and accused the hardware."""
    told = ["task.dies=5", f"task.folder={place.folder}", "launch.restarts=0", "--run", "run"]
    assert place.train(*told) == Exit.INTERNAL
    assert not list((place.folder / "run" / "checkpoints").glob("step-*"))
    place.edit()
    assert place.train(*told) == Exit.DONE
    certificate = drivetrain.verify(place.folder / "run", data=False)
    # The record of the last step may not have been written when it was killed.
    assert certificate["again"]["equal"] == 0
    assert certificate["again"]["not comparable"] in (3, 4)
    assert len(certificate["code"]) == 1, "nothing of the other code counts"


def test_an_edit_between_two_starts_of_one_command_is_refused(place):
    """The supervisor starts the processes again: they would train other code in the same run."""
    told = ["task.dies=5", f"task.folder={place.folder}", "task.edits=true"]
    assert place.train(*told) == Exit.INCOMPATIBLE
    assert "the code has changed since the command was given" in place.err
    assert place.train(*told) == Exit.DONE
    assert len(place.runs()) == 2


def test_code_that_comes_late_is_told_kept_and_compared(place):
    place.write("found_late.py", "VALUE = 1\n")
    assert place.train("task.late=found_late", "--steps", 12, "--run", "run") == Exit.STOPPED
    run = place.folder / "run"
    (record,) = place.records(CodeRecord, run)
    assert list(record.files) == ["found_late.py"]
    assert "code that was not found at the start was loaded: found_late.py" in place.notes(run)
    assert kept(run, record.files["found_late.py"].sha256) == b"VALUE = 1\n"
    place.write("found_late.py", "VALUE = 1  # as it was\n")
    assert place("train", "run", "--steps", 2) == Exit.STOPPED
    place.write("found_late.py", "VALUE = 2\n")
    assert place("train", "run") == Exit.INCOMPATIBLE
    assert "was made by other code: found_late.py" in place.err
    assert place("train", "run", "--override", "code", "--steps", 2) == Exit.STOPPED
    place.write("found_late.py", "VALUE = 1\n")
    assert place("train", "run") == Exit.INCOMPATIBLE, "it was accepted as it was then"
    assert "was made by other code: found_late.py" in place.err
    place.write("found_late.py", "VALUE = 2\n")
    assert place("train", "run") == Exit.DONE
    claims = [record.claim.code for record in place.records(AttemptRecord, run)]
    assert claims[0] == claims[1] != claims[2] == claims[3]
    assert place("verify", "run", "--no-data") == Exit.DONE
    assert "from step 15 on: found_late.py changed" in place.out


def test_code_that_comes_late_is_compared_by_all_that_compare(place):
    place.write("found_late.py", "VALUE = 1\n")
    assert place.train("task.late=found_late", "--steps", 12, "--run", "run") == Exit.STOPPED
    assert place("diff", "run", "--no-data") == Exit.DONE
    assert "found_late.py" not in place.out
    place.write("found_late.py", "VALUE = 2\n")
    assert place("diff", "run", "--no-data") == Exit.DONE
    assert "found_late.py changed" in place.out
    assert "+VALUE = 2" in place.out
    assert place("train", "run", "--replay", "--steps", 4, "--run", "same") == Exit.STOPPED
    assert "is made again with other code than it had: found_late.py" in place.notes(place.folder / "same")
    assert place("train", "run") == Exit.INCOMPATIBLE
    assert "was made by other code: found_late.py" in place.err
    assert place("train", "run", "--override", "code", "--steps", 2) == Exit.STOPPED
    assert place("diff", "run", "--no-data") == Exit.DONE
    assert "found_late.py" not in place.out
    assert place("diff", "run", "same") == Exit.DONE
    assert "found_late.py" not in place.out
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drivetrain.export(place.folder / "run", place.folder / "exported")
    (place.folder / "found_late.py").unlink()
    with pytest.warns(UserWarning, match="made by other code"):
        drivetrain.export(place.folder / "run", place.folder / "again")
    assert place("train", "run") == Exit.INCOMPATIBLE
    assert "was made by other code: found_late.py (gone)" in place.err


def test_code_that_decides_no_bits_is_recorded_and_makes_no_other_run(place):
    tree = json.loads((place.folder / "mine.json").read_text())
    place.write("scored.py", "from mine import Rows as Base\n\n\nclass Rows(Base):\n    pass\n")
    place.write("other.py", "from scored import Rows\n")
    tree["data"]["test"] = {"held": {"kind": "other:Rows"}}
    place.write("mine.json", json.dumps(tree))
    assert place.train("--steps", 4) == Exit.STOPPED
    place.edit("    pass", "    word = 1", "scored.py")
    assert place.train() == Exit.DONE
    assert len(place.runs()) == 1
    first, second = (attempt.user_code for attempt in place.records(AttemptRecord))
    assert first.digest == second.digest
    assert first.files["scored.py"].digest != second.files["scored.py"].digest


def test_sources_are_kept_by_content_for_their_owner_alone(place, monkeypatch):
    place.write("words.txt", "a" * 2000)
    place.edit("    def __init__", '    code_files = ("words.txt",)\n\n    def __init__', "mine.py")
    assert place.train("--steps", 1, "--run", "run") == Exit.STOPPED
    run = place.folder / "run"
    (attempt,) = place.records(AttemptRecord, run)
    assert set(attempt.user_code.files) == {"mine.py", "helper.py", "./words.txt"}
    for name, file in attempt.user_code.files.items():
        assert kept(run, file.sha256) == (place.folder / name).read_bytes()
        assert (run / "code" / file.sha256).stat().st_mode & 0o777 == 0o600
    assert (run / "code").stat().st_mode & 0o777 == 0o700
    assert kept(run, "../ledger.jsonl") is None
    (run / "code" / attempt.user_code.files["helper.py"].sha256).write_text("torn")
    assert drivetrain.verify(run, data=False)["code_files"] == {"kept": 2, "digests": 1}
    assert place("train", "run", "--steps", 1) == Exit.STOPPED
    assert drivetrain.verify(run, data=False)["code_files"] == {"kept": 3, "digests": 0}


def test_what_is_too_large_to_keep_has_its_digest_and_a_note(place):
    place.write("words.txt", "a" * (MOST + 1))
    place.edit("    def __init__", '    code_files = ("words.txt",)\n\n    def __init__', "mine.py")
    assert place.train("--steps", 1, "--run", "run") == Exit.STOPPED
    run = place.folder / "run"
    assert "kept by its digest only, since an attempt keeps 8 MB of sources: ./words.txt" in place.notes(run)
    place.write("words.txt", "a" * MOST + "b")
    assert place("train", "run") == Exit.INCOMPATIBLE
    assert "was made by other code: ./words.txt" in place.err


def test_git_is_that_of_the_recipe_s_folder(place, tmp_path):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    git("init", "-q")
    git("add", "mine.py", "helper.py", "mine.json")
    git("commit", "-qm", "first")
    assert place.train("--steps", 1, "--run", "run") == Exit.STOPPED
    place.edit("A small", "A tiny")
    assert place("train", "run", "--steps", 1) == Exit.STOPPED
    clean, dirty = (attempt.user_code.git for attempt in place.records(AttemptRecord, place.folder / "run"))
    assert dirty == f"{clean}+"
    assert len(clean) == 40


def test_a_replay_says_where_today_s_code_differs(place):
    assert place.train("--run", "run", "--steps", 12) == Exit.STOPPED
    assert place("train", "run", "--replay", "--run", "same", "--steps", 1) == Exit.STOPPED
    assert "other code" not in place.notes(place.folder / "same")
    place.edit()
    assert place("train", "run", "--replay", "--steps", 1) == Exit.STOPPED
    assert "is made again with other code than it had: helper.py" in place.notes(place.folder / "run-replay")


def test_diff_tells_recipe_code_and_environment_apart(place):
    assert place.train("--run", "run", "--steps", 1, "batch.size=4") == Exit.STOPPED
    assert place("diff", "run", "--no-data") == Exit.DONE
    assert "the same in all that decides bits" in place.out
    shutil.copytree(place.folder / "run", place.folder / "other")
    place.edit()
    place.write("mine.json", (place.folder / "mine.json").read_text().replace('"steps": 24', '"steps": 48'))
    assert place("diff", "run", "--no-data") == Exit.DONE
    parts = ["2 differences decide bits", "budget.steps: 24 -> 48", "helper.py changed", "+    return nn.Sequential"]
    for part in [*parts, "data: not looked at"]:
        assert part in place.out
    found = drivetrain.diff("run", data=False)
    assert {(each["part"], each["name"], each["bits"]) for each in found["differences"]} == {
        ("recipe", "budget.steps", True),
        ("code", "helper.py", True),
    }
    assert place.train("--run", "other", "batch.size=4", "--override", "budget", "--override", "code") == Exit.DONE
    assert place("diff", "run", "other") == Exit.DONE
    for part in ["run and other:", *parts]:
        assert part in place.out
    assert place("diff", "mine.json") == Exit.INPUT_MISSING


def test_a_commit_that_is_scored_by_other_code_is_told(place):
    assert place.train("--run", "run", "--steps", 12) == Exit.STOPPED
    assert place("export", "run", "--to", "one") == Exit.DONE
    assert "other code" not in place.err
    place.edit("return nn", "width = 8\n    return nn")
    with pytest.warns(UserWarning, match="made by other code than there is now: `drivetrain diff run`"):
        drivetrain.export("run", "two")


def test_what_this_process_has_imported_must_be_what_the_file_says(place, monkeypatch):
    """In a notebook: the file is edited, and the module that is in memory is the old one."""
    place.write("in_memory.py", TASK.replace("helper", "in_memory_helper"))
    place.write("in_memory_helper.py", HELPER)
    tree = json.loads((place.folder / "mine.json").read_text())
    tree["task"]["kind"], tree["data"]["train"]["sources"][0]["kind"] = "in_memory:Fit", "in_memory:Rows"
    place.write("mine.json", json.dumps(tree))

    def train(**options):
        return drivetrain.train("mine.json", ["budget.steps=2"], progress=False, **options)

    assert train(run="run").step == 2
    place.edit(name="in_memory_helper.py")
    with pytest.raises(Failure, match=r"in_memory_helper.py has changed since this process imported it"):
        train(run="other")
    importlib.reload(sys.modules["in_memory_helper"])
    importlib.reload(sys.modules["in_memory"])
    assert train(run="other").step == 2


def test_the_class_of_a_script_counts_with_its_file(place):
    """A task in `__main__`, as the Python API trains it."""
    script = f"""{TASK}
import drivetrain, json
tree = json.load(open("mine.json"))
tree["task"]["kind"] = "__main__:Fit"
tree["data"]["train"]["sources"][0]["kind"] = "__main__:Rows"
drivetrain.train(tree, ["budget.steps=2"], progress=False)
"""
    place.write("script.py", script)

    def runs():
        subprocess.run([sys.executable, "script.py"], cwd=place.folder, check=True, capture_output=True)
        return place.runs()

    (first,) = runs()
    (attempt,) = place.records(AttemptRecord)
    assert set(attempt.user_code.files) == {"./script.py", "helper.py"}
    assert runs() == [first]
    place.edit()
    assert len(runs()) == 2


def test_the_class_of_a_notebook_counts_with_what_it_refers_to(place):
    """Cells, run as a notebook runs them: each has a file name of its own that nobody can open."""
    cells = [
        TASK.replace("from helper import build", "WIDTH = 8"),
        "import drivetrain\nfrom torch import nn",
        "def build():\n    return nn.Sequential(nn.Linear(4, WIDTH), nn.Linear(WIDTH, 1))",
        'import json\ntree = json.load(open("mine.json"))\ntree["task"]["kind"] = "__main__:Fit"',
        'tree["data"]["train"]["sources"][0]["kind"] = "__main__:Rows"',
        "def train():\n    return str(drivetrain.train(tree, ['budget.steps=2'], progress=False).run)",
        "runs = [train()]",
        "def build():\n    # the same\n    return nn.Sequential(nn.Linear(4, WIDTH), nn.Linear(WIDTH, 1))",
        "runs += [train()]",
        "WIDTH = 9",
        "runs += [train()]\nprint(len(runs), runs[0] == runs[1], runs[1] == runs[2])",
    ]
    notebook = f"""
import linecache, sys
main = sys.modules["__main__"]
del main.__file__
for number, cell in enumerate({cells!r}):
    name = f"<cell-{{number}}>"
    linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)
    exec(compile(cell, name, "exec"), vars(main))
"""
    place.write("notebook.py", notebook)
    done = subprocess.run([sys.executable, "notebook.py"], cwd=place.folder, capture_output=True, text=True)
    assert done.stdout.strip() == "3 True False", done.stderr
    first, second = (place.folder / "runs" / name for name in place.runs())
    assert set(place.records(AttemptRecord, first)[0].user_code.files) == {"__main__.py"}
    assert set(place.records(AttemptRecord, second)[0].user_code.files) == {"__main__.py"}


def test_the_outcome_of_changed_code_names_files_for_programs(place):
    assert place.train("--run", "run", "--steps", 12) == Exit.STOPPED
    place.edit()
    assert place("train", "run") == Exit.INCOMPATIBLE
    outcome = Outcome.read(place.folder / "run" / "exit.json")
    assert outcome.code is Exit.INCOMPATIBLE
    assert "helper.py" in outcome.cause
