import json
import os
import subprocess
from dataclasses import replace

import pytest

from drivetrain.launch.code import ARCHIVE, leave, pack, unpack
from drivetrain.launch.job import StartOptions
from drivetrain.launch.node import prepare_node
from drivetrain.launch.preparation import plan
from drivetrain.launch.targets.config import settings_from
from drivetrain.spec.exits import Exit, Failure


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with a committed file, a changed one, a new one, a removed one and an ignored one."""
    root = tmp_path / "repository"
    root.mkdir()
    for name in ("kept.py", "changed.py", "gone.py"):
        (root / name).write_text("first\n")
    (root / ".gitignore").write_text("ignored.py\n")
    names = ["-c", "user.name=x", "-c", "user.email=x"]
    for command in (["init", "-q"], ["add", "."], [*names, "commit", "-qm", "first"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    (root / "changed.py").write_text("second\n")
    (root / "new name.py").write_text("second\n")
    (root / "ignored.py").write_text("second\n")
    (root / "gone.py").unlink()
    (root / "below").mkdir()
    monkeypatch.chdir(root)
    return root


def content(folder):
    return {path.name: path.read_text() for path in folder.iterdir() if path.suffix == ".py"}


def test_a_commit_or_the_working_tree_is_packed(repository, tmp_path):
    commit, tree = tmp_path / "commit.tar", tmp_path / "tree.tar"
    commit.write_bytes(pack(repository, "HEAD"))
    tree.write_bytes(pack(repository, None))
    assert content(unpack(commit)) == {"kept.py": "first\n", "changed.py": "first\n", "gone.py": "first\n"}
    assert content(unpack(tree)) == {"kept.py": "first\n", "changed.py": "second\n", "new name.py": "second\n"}
    assert unpack(tree) == unpack(tree)
    with pytest.raises(Failure, match="git archive"):
        pack(repository, "no-such-commit")


def test_packed_code_is_where_the_recipes_paths_begin(repository, tmp_path):
    settings = settings_from("x", {"kind": "local", "code": {"kind": "commit"}})
    work = plan("quickstart", [], "x", settings, options=StartOptions(started=0.0), run=str(tmp_path / "run")).work
    (tmp_path / "run" / "launch" / work.token).mkdir(parents=True)
    folder = tmp_path / "run" / "launch" / work.token
    leave(repository, "HEAD", folder)
    job = prepare_node(work, replace(work.job, modules=str(repository)))
    assert os.getcwd() == job.modules == str((folder / ARCHIVE).with_suffix(""))


def test_a_job_of_a_commit_is_named_after_the_code_of_that_commit(repository, tmp_path):
    """And not after the working tree, which the nodes never see."""

    def name(kind):
        settings = settings_from("x", {"kind": "local", "code": {"kind": kind}})
        work = plan("mine.json", [], "x", settings, options=StartOptions(started=0.0)).work
        return work.job.folder, work.job.code

    tree = {
        "name": "mine",
        "task": {"kind": "changed:Fit"},
        "data": {"train": {"sources": [{"kind": "changed:Rows"}]}},
        "batch": {"size": 8},
        "budget": {"steps": 3},
    }
    (repository / "mine.json").write_text(json.dumps(tree))
    committed = name("commit")
    assert committed != name("archive") == name("as_it_stands")
    (repository / "changed.py").write_text("first\n")
    assert committed == name("archive") == name("commit")


def test_a_secret_is_read_on_the_node_and_is_nowhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOKEN_OF_TEST", raising=False)
    (tmp_path / "key").write_text("s3cret\n")
    settings = settings_from("x", {"kind": "local", "secrets": {"TOKEN_OF_TEST": f"file:{tmp_path}/key"}})
    work = plan("quickstart", [], "x", settings, options=StartOptions(started=0.0)).work
    assert "s3cret" not in work.text()
    monkeypatch.setattr(os, "environ", dict(os.environ))
    prepare_node(work, work.job)
    assert os.environ["TOKEN_OF_TEST"] == "s3cret"
    (tmp_path / "key").unlink()
    with pytest.raises(Failure, match="TOKEN_OF_TEST") as failure:
        prepare_node(work, work.job)
    assert failure.value.outcome.code == Exit.INPUT_MISSING
