"""The page's own code is checked by TypeScript, where npm can bring it."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "front"
TYPESCRIPT = "typescript@5.9.3"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("npx") is None, reason="npx, which brings TypeScript, is not here")
def test_its_types_hold():
    command = ["npx", "--yes", f"--package={TYPESCRIPT}", "tsc", "-p", str(HERE / "jsconfig.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    if "npm error" in done.stderr:
        pytest.skip(f"npm cannot bring {TYPESCRIPT} here")
    assert done.returncode == 0, done.stdout + done.stderr
