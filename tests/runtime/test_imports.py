"""What is done once a module is imported."""

import importlib
import importlib.util
import sys

import pytest

from drivetrain.runtime.imports import after_import


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "one_that_is_late.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "one_that_is_late"
    sys.modules.pop("one_that_is_late", None)


def test_it_is_done_at_the_end_of_the_import_and_once(module):
    found = []
    with after_import(module, lambda: found.append(sys.modules[module].value)):
        assert found == []
        importlib.import_module(module)
        importlib.import_module(module)
        assert found == [1]


def test_it_is_done_at_once_where_the_module_is_there(module):
    importlib.import_module(module)
    found = []
    with after_import(module, lambda: found.append(1)):
        assert found == [1]


def test_afterwards_nothing_is_done_and_nobody_looks(module):
    found, before = [], list(sys.meta_path)
    with after_import(module, lambda: found.append(1)):
        pass
    assert sys.meta_path == before
    assert importlib.import_module(module).value == 1
    assert found == []


def test_who_only_looks_for_the_module_does_not_take_the_act_away(module):
    found = []
    with after_import(module, lambda: found.append(1)):
        assert importlib.util.find_spec(module) is not None
        assert found == []
        importlib.import_module(module)
        assert found == [1]
