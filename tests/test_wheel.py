"""The built wheel trains in an environment that has what its metadata asks for, and nothing else.

The environment is what `pip install -c constraints.txt WHEEL` makes of an empty one. But torch and the others are not
unpacked once more, which takes minutes on a busy machine: an empty virtual environment is given links to those
distributions of the tests' own that the wheel's metadata requires, directly or through others; no test tool and no
extra. That very command then installs the wheel. It has no index: what is missing, or outside the constraints, fails.
"""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable
from email import message_from_bytes
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
SHORT = [
    *("budget.steps=3", "schedule.warmup.steps=1", "lanes=1", "batch.size=2", "batch.micro=2"),
    *("task.model.width=16", "task.model.heads=1", "task.sample.tokens=1"),
    *("evaluate.budget.samples=2", "evaluate.full_at_end=false"),
]

pytestmark = [pytest.mark.cold, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("wheel")]


def pip(*words: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout


def required(texts: Iterable[str]) -> set[str]:
    """The distributions that these requirements come to here, without extras."""
    found: set[str] = set()
    ahead = list(texts)
    while ahead:
        requirement = Requirement(ahead.pop())
        asked = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if asked and requirement.name not in found:
            found.add(requirement.name)
            ahead += distribution(requirement.name).requires or []
    return found


def link(name: str, to: Path) -> None:
    """Give an environment's packages one distribution of this environment's."""
    whole = distribution(name)
    for entry in {file.parts[0] for file in whole.files or []} - {"..", "__pycache__"}:
        (to / entry).symlink_to(Path(str(whole.locate_file(entry))))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy: an earlier build's leftovers beside the sources do not get into it."""
    copy, built = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("built")
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, copy)
    pip("wheel", "--no-deps", "--wheel-dir", built, copy)
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """The `bin` of an environment with the wheel and what it requires."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        texts = message_from_bytes(archive.read(metadata)).get_all("Requires-Dist", [])
    for name in required(texts):
        link(name, packages)
    python = folder / "bin" / "python"
    pip("--python", python, "install", "--no-index", "--constraint", ROOT / "constraints.txt", wheel)
    return folder / "bin"


def test_the_wheel_trains_the_quickstart_with_what_it_requires(bare, tmp_path):
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | {"PYTHONNOUSERSITE": "1"}
    for words in (["train", "quickstart", *SHORT, "--run", "run"], ["verify", "run"]):
        command = [bare / "drivetrain", *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_environment_has_no_test_tools(bare):
    for name in ("pytest", "hypothesis", "transformers", "tensorboard"):
        done = subprocess.run([bare / "python", "-c", f"import {name}"], capture_output=True, text=True)
        assert "ModuleNotFoundError" in done.stderr


def test_every_shipped_recipe_is_in_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    shipped = {f"drivetrain/recipes/{path.name}" for path in (ROOT / "src/drivetrain/recipes").iterdir()}
    assert shipped <= packed
    assert "drivetrain/py.typed" in packed


def test_every_file_of_the_boards_page_is_in_the_wheel_with_the_licences_of_others(wheel):
    page = ROOT / "src/drivetrain/board/static"
    files = [path for path in page.rglob("*") if path.is_file()]
    with zipfile.ZipFile(wheel) as archive:
        for path in files:
            assert archive.read(f"drivetrain/board/static/{path.relative_to(page).as_posix()}") == path.read_bytes()
    assert {"index.html", "board.js", "uPlot.js", "uPlot.LICENSE"} <= {path.name for path in files}
