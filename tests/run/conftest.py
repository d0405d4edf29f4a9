"""A folder with a recipe beside a module of the user's own, and the commands in it."""

import sys

import pytest

from conftest import tiny_recipe
from golden.warm import warm
from own_place import Place


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with warm(tmp_path_factory.mktemp("own-kinds")) as command:
        yield command


@pytest.fixture
def place(tmp_path, corpus, server, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    yield Place(tmp_path, tiny_recipe(corpus), server, capfd)
    for name in ("mine_kinds", "mine_points", "mine_metrics"):
        sys.modules.pop(name, None)  # what checks a recipe, or follows a run, has imported it here
