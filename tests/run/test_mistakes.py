"""An error in the user's own code is told as theirs: file, line and code line; too little memory as what it is."""

import json
import subprocess
import sys
import textwrap

import pytest

import drivetrain
from drivetrain.cli.main import run as command
from drivetrain.spec.exits import Exit, Failure

CODE = """
    import torch
    from torch import nn
    import drivetrain

    class Rows:
        def __init__(self, trap: str = ""):
            self.trap = trap
            if trap == "source":
                self.nothing.there
        def __len__(self):
            return 40
        def __getitem__(self, index):
            if self.trap == "sample" and index > 8:
                return [1, 2][index]
            if self.trap == "memory" and index > 8:
                raise MemoryError
            return torch.full((3,), index / 40)

    class Fit(drivetrain.Task):
        def __init__(self, trap: str = "", size: int = 0):
            self.trap, self.size = trap, size
            if trap == "init":
                raise KeyError("width")
        def networks(self):
            return {"model": nn.Linear(3, 1)}
        def collate(self, samples):
            if self.trap == "collate":
                return torch.stack(samples).reshape(7, 7)
            return torch.stack(samples)
        def loss(self, nets, batch):
            if self.trap == "loss":
                return self.helper(nets["model"](batch))
            if self.trap == "memory":
                torch.empty(self.size, dtype=torch.uint8)
            return nets["model"](batch).square().mean()
        def helper(self, out):
            return nn.functional.linear(out, torch.ones(4, 9))
"""
LINES = {
    "init": 'raise KeyError("width")',
    "source": "self.nothing.there",
    "sample": "return [1, 2][index]",
    "collate": "return torch.stack(samples).reshape(7, 7)",
    "loss": "return nn.functional.linear(out, torch.ones(4, 9))",
}


def place(folder, code=CODE, **changes):
    """A recipe over a module of its own, whose name no other test has imported; the recipe and the module's file."""
    name = f"mistakes_{abs(hash((str(folder), code))) % 10**9}"
    (folder / f"{name}.py").write_text(textwrap.dedent(code))
    recipe = {
        "name": "mistakes",
        "task": {"kind": f"{name}:Fit"},
        "data": {"train": {"sources": [{"name": "rows", "kind": f"{name}:Rows"}]}},
        "lanes": 4,
        "batch": {"size": 8},
        "budget": {"steps": 6},
        "launch": {"threads": 1, "restarts": 0},
    }
    (folder / "recipe.json").write_text(json.dumps(recipe | changes))
    return folder / "recipe.json", folder / f"{name}.py"


def line_of(file, text):
    (number,) = [number for number, line in enumerate(file.read_text().splitlines(), 1) if line.strip() == text]
    return number


def failed(recipe, run, *overrides):
    with pytest.raises(Failure) as caught:
        drivetrain.train(recipe, overrides, run=run, progress=False)
    return caught.value


@pytest.mark.parametrize("trap", ["init", "collate", "loss"])
def test_an_error_in_the_users_code_names_its_file_its_line_and_the_code(tmp_path, trap, capfd):
    recipe, file = place(tmp_path)
    error = failed(recipe, tmp_path / "run", f"task.trap={trap}")
    outcome, number = error.outcome, line_of(file, LINES[trap])
    assert outcome.code == Exit.INTERNAL
    assert outcome.line().startswith("drivetrain: 70 error in your own code: ")
    assert f"at {file}:{number}: {LINES[trap]}" in outcome.line()
    assert (outcome.where["file"], outcome.where["line"]) == (str(file), number)
    told = json.loads((tmp_path / "run" / "exit.json").read_text())
    assert told["class"] == "error in your own code"
    assert error.__cause__ is not None
    assert not isinstance(error.__cause__, Failure)
    shown = capfd.readouterr().err
    assert "Traceback" in shown
    assert LINES[trap] in shown
    assert "src/drivetrain" not in shown
    assert "of drivetrain\n" in shown


def test_an_error_has_the_phase_in_which_it_was_raised(tmp_path, capfd):
    recipe, _ = place(tmp_path)
    assert failed(recipe, tmp_path / "run", "task.trap=loss").outcome.where["phase"] == "forward"
    assert command(["train", str(recipe), "task.trap=loss", "--steps=0"]) == Exit.INTERNAL
    assert "phase forward" in capfd.readouterr().err


def test_the_whole_traceback_is_kept_in_the_run_directory_and_the_message_says_where(tmp_path):
    recipe, _ = place(tmp_path)
    error = failed(recipe, tmp_path / "run", "task.trap=loss")
    (kept,) = (tmp_path / "run" / "logs").glob("traceback-*.txt")
    assert str(kept) in error.outcome.hint
    assert "drivetrain/engine" in kept.read_text()
    assert kept.stat().st_mode & 0o777 == 0o600


def test_an_error_of_the_users_code_on_one_of_several_ranks_is_told_the_same(tmp_path, capfd):
    recipe, file = place(tmp_path)
    outcome = failed(recipe, tmp_path / "run", "task.trap=loss", "launch.processes=2").outcome
    assert f"at {file}:{line_of(file, LINES['loss'])}: {LINES['loss']}" in outcome.line()
    assert (outcome.where["step"], outcome.where["phase"]) == (1, "forward")
    assert f"traceback-{outcome.where['rank']}.txt" in outcome.hint
    assert "src/drivetrain" not in capfd.readouterr().err


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("trap", ["source", "sample"])
def test_an_error_in_a_source_names_its_line_in_a_data_worker_too(tmp_path, trap, workers, capfd):
    recipe, file = place(tmp_path)
    overrides = (f"data.train.sources[0].trap={trap}", f"data.train.workers={workers}")
    error = failed(recipe, tmp_path / "run", *overrides)
    assert f"at {file}:{line_of(file, LINES[trap])}: {LINES[trap]}" in error.outcome.line()
    assert error.outcome.code == {"source": Exit.INTERNAL, "sample": Exit.BAD_DATA}[trap]
    assert LINES[trap] in capfd.readouterr().err
    assert list((tmp_path / "run" / "logs").glob("traceback-0.txt"))


def test_an_error_that_only_a_data_worker_meets_has_its_line(tmp_path):
    code = CODE.replace(
        'if trap == "source":', "import multiprocessing\n            if multiprocessing.parent_process():"
    )
    recipe, file = place(tmp_path, code)
    error = failed(recipe, tmp_path / "run", "data.train.workers=1")
    assert error.outcome.title == "error in your own code"
    assert f"at {file}:{line_of(file, LINES['source'])}: {LINES['source']}" in error.outcome.line()


@pytest.mark.parametrize("text", ["import nowhere_to_be_found", "def broken(:", "drivetrain.nothing()"])
def test_a_module_that_cannot_be_imported_names_its_line(tmp_path, text, capfd):
    recipe, file = place(tmp_path, CODE.replace("class Rows", f"{text}\n\n    class Rows"))
    where = f"at {file}:{line_of(file, text)}: {text}"
    assert where in failed(recipe, tmp_path / "run").outcome.line()
    capfd.readouterr()
    assert command(["recipe", "check", str(recipe)]) == Exit.BAD_RECIPE
    assert where in capfd.readouterr().err.splitlines()[-1]


def test_an_error_of_ours_is_still_an_internal_one(tmp_path, monkeypatch):
    recipe, _ = place(tmp_path)

    def broken(*_):
        return {}["ours"]

    broken.__code__ = broken.__code__.replace(co_filename=drivetrain.__file__)
    monkeypatch.setattr("drivetrain.run.opened.require_metrics", broken)
    assert "internal error: KeyError: 'ours'" in failed(recipe, tmp_path / "run").outcome.line()


def test_a_verb_that_meets_an_error_in_the_users_code_says_so(tmp_path, capfd):
    recipe, file = place(tmp_path)
    run = drivetrain.train(recipe, run=tmp_path / "run", progress=False).run
    capfd.readouterr()
    (tmp_path / "other").mkdir()
    recipe, file = place(tmp_path / "other", CODE.replace("class Rows", "raise OSError(3)\n\n    class Rows"))
    resolved = json.loads((run / "resolved.json").read_text())
    resolved["folder"] = str(tmp_path / "other")
    resolved["recipe"]["task"]["kind"] = f"{file.stem}:Fit"
    (run / "resolved.json").write_text(json.dumps(resolved))
    assert command(["export", str(run), "--to", str(tmp_path / "out")]) == Exit.INTERNAL
    last = capfd.readouterr().err.splitlines()[-1]
    assert f"error in your own code: OSError: 3, at {file}:{line_of(file, 'raise OSError(3)')}" in last


HUGE = 1 << 60


def test_too_little_memory_on_the_host_says_how_much_was_asked_for_and_what_to_lower(tmp_path):
    recipe, _ = place(tmp_path)
    outcome = failed(recipe, tmp_path / "run", "task.trap=memory", f"task.size={HUGE}").outcome
    assert outcome.line().startswith("drivetrain: 70 out of memory: 1,048,576.0 TiB more memory were asked for")
    assert "lower batch.micro" in outcome.hint
    assert outcome.where["class"] == "oom"
    assert (outcome.where["rank"], outcome.where["step"], outcome.where["phase"]) == (0, 1, "forward")


@pytest.mark.parametrize("workers", [0, 1])
def test_too_little_memory_for_a_sample_is_no_unreadable_sample(tmp_path, workers):
    recipe, _ = place(tmp_path)
    outcome = failed(
        recipe, tmp_path / "run", "data.train.sources[0].trap=memory", f"data.train.workers={workers}"
    ).outcome
    assert outcome.title == "out of memory"


SCRIPT = """
import json, sys
{code}
tree = json.load(open("recipe.json"))
tree["task"]["kind"], tree["data"]["train"]["sources"][0]["kind"] = "__main__:Fit", "__main__:Rows"
if {notebook}:
    del sys.modules["__main__"].__file__
drivetrain.train(tree, ["{asked}"], progress=False)
"""


@pytest.mark.parametrize(
    ("notebook", "asked", "words"),
    [
        (True, "launch.processes=2", "the notebook, which 2 processes (launch.processes) cannot import"),
        (True, "data.train.workers=1", "the notebook, which processes that read samples (data.train.workers: 1)"),
        (False, "launch.processes=2", "the script given.py, which 2 processes (launch.processes) cannot import"),
    ],
)
def test_other_processes_and_a_class_of_a_notebook_are_told_where_to_put_it(tmp_path, notebook, asked, words):
    place(tmp_path)
    script = SCRIPT.format(code=textwrap.dedent(CODE), notebook=notebook, asked=asked)
    (tmp_path / "given.py").write_text(script)
    done = subprocess.run([sys.executable, "given.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert f"__main__:Fit is a class of {words}" in last or f"__main__:Rows is a class of {words}" in last
    assert "put it in a module beside the " in last
    assert not (tmp_path / "runs").exists()


def test_a_prediction_on_several_processes_of_a_class_of_a_script_is_told_so(tmp_path):
    place(tmp_path)
    predicting = textwrap.dedent(CODE) + "\nFit.predict = lambda self, nets, batch: []\n"
    script = SCRIPT.format(code=predicting, notebook=False, asked="budget.steps=1")
    script = script.replace("progress=False)", "run='run', progress=False)")
    (tmp_path / "given.py").write_text(f"{script}\ndrivetrain.predict('run', 'all', 'said.jsonl', processes=2)\n")
    done = subprocess.run([sys.executable, "given.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "2 processes (--processes) cannot import. put it in a module" in done.stderr.splitlines()[-1]


def test_a_class_of_a_notebook_is_not_there_on_the_command_line(tmp_path, capfd):
    recipe, _ = place(tmp_path, task={"kind": "__main__:NotHere"})
    assert command(["recipe", "check", str(recipe)]) == Exit.BAD_RECIPE
    assert "this process has no such class" in capfd.readouterr().err
