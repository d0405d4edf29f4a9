"""What tables on TorchRec refuse, with it or without, and what is kept from talking."""

import logging
import re
import warnings

import pytest
import torch

from drivetrain.engine.tables.build import build_tables
from drivetrain.engine.tables.keyed_recipe import Keyed
from drivetrain.engine.tables.module import Embeddings, Ids, Lookup, Table
from drivetrain.engine.tables.recipe import Embeddings as Settings
from drivetrain.engine.tables.torchrec import library
from drivetrain.engine.tables.torchrec.rows import _layouts
from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Exit, Failure


def build(tables, lookups, **settings):
    network = torch.nn.Module()
    network.embeddings = Embeddings(tables, lookups)
    return build_tables({"model": network}, Settings(backend="torchrec", **settings), Group(), 7)


@pytest.mark.parametrize(
    ("table", "pooling", "told"),
    [
        (Table("users", 200, 8, keyed=Keyed()), "sum", "table 'users', whose rows belong to keys"),
        (Table("users", 20, 6), "sum", "table 'users', whose dim 6 is no multiple of 4"),
        (Table("users", 20, 8), "none", "feature 'user', of which each row is given"),
        (Table("users", 20, 8), "", "table 'users', which no feature looks up"),
    ],
)
def test_what_our_own_rows_alone_can_do_is_refused_with_its_name(table, pooling, told):
    lookups = [Lookup("user", "users", pooling)] if pooling else []
    with pytest.raises(Failure, match=re.escape(told)) as caught:
        build([table], lookups)
    assert caught.value.outcome.code is Exit.BAD_RECIPE


@pytest.mark.parametrize(
    ("there", "told"),
    [
        ({}, "needs torchrec, which is not installed"),
        ({"torchrec": "1.8.0"}, "needs fbgemm, which is not installed"),
        ({"torchrec": "1.8.0", "fbgemm-gpu-cpu": "1.7.0"}, "was tried with fbgemm 1.8, and 1.7.0 is installed"),
        ({"torchrec": "2.0.0", "fbgemm-gpu": "1.8.1"}, "was tried with torchrec 1.8, and 2.0.0 is installed"),
    ],
)
def test_a_library_that_is_not_there_or_another_one_is_told_with_what_to_install(monkeypatch, there, told):
    monkeypatch.setattr(library, "_version", lambda package: there.get(package, ""))
    with pytest.raises(Failure, match=told) as caught:
        build([Table("users", 20, 8)], [Lookup("user", "users")])
    assert caught.value.outcome.code is Exit.BAD_RECIPE
    assert "pip install --no-deps torchrec==1.8.0" in caught.value.outcome.hint


def test_a_library_that_cannot_be_loaded_beside_this_torch_is_told(monkeypatch):
    def torn(module):
        raise OSError("undefined symbol: _ZN3c10\nmore")

    monkeypatch.setattr(library, "_version", lambda package: "1.8.0")
    monkeypatch.setattr(library, "import_module", torn)
    with pytest.raises(Failure, match=r"fbgemm_gpu cannot be loaded: undefined symbol: _ZN3c10\b"):
        build([Table("users", 20, 8)], [Lookup("user", "users")])


def test_warnings_and_log_lines_are_kept_off_and_nothing_of_it_stays(capfd):
    handlers, level = list(logging.root.handlers), logging.root.manager.disable
    with library.quiet():
        warnings.warn("of kernels", stacklevel=1)
        logging.warning("of plans")
        logging.getLogger("torchrec").warning("of tables")
    assert capfd.readouterr().err == ""
    assert (logging.root.handlers, logging.root.manager.disable) == (handlers, level)


def test_tables_that_are_cut_and_whole_ones_lie_apart_and_none_is_without_rows_of_a_cut_one():
    from drivetrain.engine.tables.alike import Alike

    tables = [Table("small", 5, 8), Table("large", 100, 8), Table("tiny", 9, 8), Table("middle", 20, 8)]
    alike = Alike("model", "", Embeddings(tables, []), dict.fromkeys(tables, "auto"), None, None)
    cut, whole = _layouts(alike, (0, 0, 0, 0))
    assert [table.name for table in cut.tables] == ["large"]
    assert cut.filled == (25, 25, 25, 25)
    for rank in range(4):
        held = whole.of(rank)
        assert [stretch.at for stretch in held] == [sum(each.rows for each in held[:n]) for n in range(len(held))]
    assert sum(whole.filled) == 34
    rows = Alike("model", "", alike.module, {tables[2]: "row"}, None, None)
    with pytest.raises(Failure, match="table 'tiny' has 9 rows, too few for 4 processes"):
        list(_layouts(rows, (0, 0, 0, 0)))


def test_an_id_that_is_no_row_is_told_with_its_feature():
    pytest.importorskip("fbgemm_gpu", reason="it is not installed: see docs/tables.md")
    tables = build([Table("users", 20, 8)], [Lookup("user", "users")])
    (work,) = tables.at_work
    with pytest.raises(Failure, match="'user': id 20 is no row") as caught:
        work.planner.plan([Ids({"user": torch.tensor([1, 20])})])
    assert caught.value.outcome.code is Exit.BAD_DATA
