"""The rooms that need no torch work on every Python that the package says it runs on, where it is on this machine.
`make test` tries the oldest, beside the one that it runs on; `make drill` all, and all parameters of each test.

Each Python has a small environment of its own, with what the package requires but torch. It is kept beside the tests'
environment. Property tests try fewer examples there: it is the language that is tried, not the properties.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
TOOLS = ["pytest", "pytest-timeout", "hypothesis"]
WITH_TORCH = [
    "--ignore=tests/spec/test_affects.py",
    "--ignore=tests/ledger/test_records.py",
    "--deselect=tests/spec/test_mistakes.py::test_what_could_never_act_is_a_mistake",
]
TESTS = ["spec", "ledger", *(f"watch/test_{name}.py" for name in ("chart", "console", "report", "sink"))]

IMPORT = """
import importlib, pkgutil, sys
import drivetrain.plan.flops
for room in ("spec", "ledger", "watch", "launch"):
    package = importlib.import_module("drivetrain." + room)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
assert "torch" not in sys.modules
"""
TEST = """
import os, sys, hypothesis, pytest
hypothesis.settings.register_profile("few", max_examples=10)
hypothesis.settings.load_profile("few")  # the tests' own profile builds on this one

class FirstAndLast:  # of each test's parameters: those between ask nothing else of the language
    def pytest_collection_modifyitems(self, items):
        alike = {}
        for item in items:
            alike.setdefault(item.nodeid.partition("[")[0], []).append(item)
        items[:] = [item for each in alike.values() for item in dict.fromkeys((each[0], each[-1]))]

sys.exit(pytest.main(sys.argv[1:], [] if "DRILL" in os.environ else [FirstAndLast()]))
"""


def interpreter(version: str) -> Path | None:
    """One that runs: pyenv's names are there for versions that are not chosen, too."""
    named = [shutil.which(f"python{version}")]
    for path in [*named, *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]:
        if path and subprocess.run([path, "--version"], capture_output=True).returncode == 0:
            return Path(path)
    return None


def environment(python: Path, version: str) -> Path:
    """The Python of an environment for these tests, which is made where it is not there yet."""
    texts = [text for text in requires("drivetrain") or [] if "extra ==" not in text]
    wanted = [text for text in texts if Requirement(text).name != "torch"] + TOOLS
    constraints = ROOT / "constraints.txt"
    digest = hashlib.sha256(" ".join(wanted).encode() + constraints.read_bytes()).hexdigest()[:12]
    kept = Path(sys.prefix) / "pythons" / f"{version}-{digest}"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=kept.parent))
        subprocess.run([python, "-m", "venv", "--without-pip", made], check=True)
        pip = [sys.executable, "-m", "pip", "--quiet", "--python", made / "bin" / "python"]
        subprocess.run([*pip, "install", "--no-compile", "--constraint", constraints, *wanted], check=True)
        with suppress(OSError):  # another test process was first
            made.rename(kept)
    return kept / "bin" / "python"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13"] if "DRILL" in os.environ else ["3.10"])
def test_rooms_without_torch_work_on_python(version):
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    surroundings = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    surroundings.pop("PYTEST_ADDOPTS", None)
    tests = [f"tests/{name}" for name in TESTS]
    for code, words in ((IMPORT, []), (TEST, ["-p", "no:cacheprovider", *WITH_TORCH, *tests])):
        command = [environment(python, version), "-c", code, *words]
        done = subprocess.run(command, cwd=ROOT, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout.decode()
