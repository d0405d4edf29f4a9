"""Pythons that tests start are forks of one that has torch loaded, whatever the tests before have left behind."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")
LOOK = "import sys; print('torch' in sys.modules, *sys.argv)"


def said(*words, **options):
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=True, **options
    ).stdout.split()


def test_what_is_read_later_keeps_no_python_from_being_a_fork(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert said("-c", LOOK, "a") == ["True", "-c", "a"]


def test_what_is_read_at_the_start_has_an_interpreter_of_its_own(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    assert said("-c", LOOK) == ["False", "-c"]


def test_a_script_is_a_fork_with_its_own_folder_file_and_words(tmp_path):
    (tmp_path / "beside.py").write_text("WORD = 'found'")
    script = tmp_path / "script.py"
    script.write_text(f"import beside\n{LOOK}\nprint(beside.WORD, __name__, __file__)")
    expected = ["True", "script.py", "a", "found", "__main__", str(script)]
    assert said("script.py", "a", cwd=tmp_path) == expected
