"""Which files count as a recipe's own code, wherever they lie, and which do not."""

import subprocess
import sys
import sysconfig
import zipfile

import pytest

from drivetrain.spec.affects import bits_digest
from drivetrain.spec.code.cache import SyntaxCache, cache_path
from drivetrain.spec.code.canonical import read_syntax
from drivetrain.spec.code.modules import ModuleFinder, is_own
from drivetrain.spec.code.scan import UserCode, files_today, late, run_digest, scan
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load

TASK = "class Fit:\n    pass\n\n\nclass Rows:\n    pass\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(autouse=True)
def path(monkeypatch):
    """Changes of the module path are this test's own."""
    monkeypatch.setattr(sys, "path", list(sys.path))


def write(folder, files):
    for name, text in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder


def recipe(folder, task="mine:Fit", source="mine:Rows", **settings):
    tree = {
        "name": "own",
        "task": {"kind": task, **settings},
        "data": {"train": {"sources": [{"name": "rows", "kind": source}]}},
        "batch": {"size": 8},
        "budget": {"steps": 3},
    }
    return load(tree, folder=folder).recipe


def found(folder, *arguments, **settings):
    return scan(recipe(folder, *arguments, **settings))


def test_all_that_is_imported_counts_but_for_what_is_installed(tmp_path):
    write(
        tmp_path,
        {
            "mine.py": f"import json, numpy as np\nfrom pack.net import build\nimport drivetrain\n{TASK}",
            "pack/__init__.py": "",
            "pack/net.py": "from . import near\nfrom .deep.er import *\nimport yaml\n",
            "pack/near.py": "def late():\n    import found_in_a_function\n",
            "pack/deep/er.py": "from ..near import late\nfrom ...beyond import x\n",
            "found_in_a_function.py": "import importlib\nimportlib.import_module('named')\n",
            "named.py": "try:\n    import not_there\nexcept ImportError:\n    pass\n",
            "not_imported.py": "",
        },
    )
    code = found(tmp_path)
    assert set(code.files) == {
        "mine.py",
        "pack/__init__.py",
        "pack/net.py",
        "pack/near.py",
        "pack/deep/er.py",
        "found_in_a_function.py",
        "named.py",
    }
    assert code.installed == {"numpy", "yaml"}
    assert code.unread == ()


def test_a_recipe_without_own_kinds_keeps_its_digest():
    plain = load("quickstart").recipe
    assert scan(plain).digest == ""
    assert run_digest(plain, scan(plain)) == bits_digest(plain)


def test_another_digest_makes_another_run_and_another_place_does_not(tmp_path):
    files = {"mine.py": f"import helper\n{TASK}", "helper.py": "WIDTH = 8\n"}
    one = found(write(tmp_path / "one", files))
    other = found(write(tmp_path / "other", files))
    assert one.digest == other.digest != ""
    write(tmp_path / "other", {"helper.py": "WIDTH = 9\n"})
    changed = found(tmp_path / "other")
    assert changed.digest != one.digest
    own = recipe(tmp_path / "one")
    assert len({bits_digest(own), run_digest(own, one), run_digest(own, changed)}) == 3


def test_code_counts_as_the_field_that_it_serves(tmp_path):
    write(tmp_path, {"mine.py": TASK, "scored.py": "import shared\nclass Rows: pass\n", "shared.py": ""})
    tree = {
        "name": "own",
        "task": {"kind": "mine:Fit"},
        "data": {"train": {"sources": [{"kind": "mine:Rows"}]}, "test": {"held": {"kind": "scored:Rows"}}},
        "batch": {"size": 8},
        "budget": {"steps": 3},
    }
    before = scan(load(tree, folder=tmp_path).recipe)
    assert {name: file.affects for name, file in before.files.items()} == {
        "mine.py": "bits",
        "scored.py": "cost",
        "shared.py": "cost",
    }
    write(tmp_path, {"shared.py": "x = 1\n"})
    after = scan(load(tree, folder=tmp_path).recipe)
    assert after.digest == before.digest
    assert after.files["shared.py"].digest != before.files["shared.py"].digest
    write(tmp_path, {"mine.py": f"import shared\n{TASK}"})
    assert scan(load(tree, folder=tmp_path).recipe).files["shared.py"].affects == "bits", "the stronger one counts"


def test_packages_under_src_zips_links_and_namespaces(tmp_path, monkeypatch):
    src = write(tmp_path / "project" / "src", {"pack/__init__.py": "", "pack/task.py": f"from pack import net\n{TASK}"})
    write(src, {"pack/net.py": "x = 1\n"})
    monkeypatch.syspath_prepend(str(src))
    plain = scan(recipe(tmp_path, "pack.task:Fit", "pack.task:Rows"))
    assert set(plain.files) == {"pack/__init__.py", "pack/task.py", "pack/net.py"}

    (tmp_path / "link").symlink_to(src)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "link"), *sys.path[1:]])
    assert scan(recipe(tmp_path, "pack.task:Fit", "pack.task:Rows")).digest == plain.digest

    with zipfile.ZipFile(tmp_path / "code.zip", "w") as file:
        for each in src.rglob("*.py"):
            file.write(each, each.relative_to(src))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "code.zip"), *sys.path[1:]])
    zipped = scan(recipe(tmp_path, "pack.task:Fit", "pack.task:Rows"))
    assert zipped.digest == plain.digest
    assert zipped.files["pack/net.py"].content == b"x = 1\n"

    write(tmp_path / "first", {"space/deep/one.py": f"import space.deep.two\n{TASK}"})
    write(tmp_path / "second", {"space/deep/two.py": "x = 1\n"})
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second"), *sys.path[1:]])
    spread = scan(recipe(tmp_path, "space.deep.one:Fit", "space.deep.one:Rows"))
    assert set(spread.files) == {"space/deep/one.py", "space/deep/two.py"}


def test_what_is_installed_in_place_counts_as_own(tmp_path, monkeypatch):
    """As by `pip install --editable`, where a finder knows the folder."""
    from importlib.util import spec_from_file_location

    place = write(tmp_path / "checkout", {"inplace.py": TASK}) / "inplace.py"

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            return spec_from_file_location(name, place) if name == "inplace" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert set(scan(recipe(tmp_path, "inplace:Fit", "inplace:Rows")).files) == {"inplace.py"}


def test_a_standard_or_installed_module_is_not_shadowed_by_a_file_beside_the_recipe_unless_imports_would_be(tmp_path):
    write(tmp_path, {"mine.py": f"import random, numpy\n{TASK}", "random.py": "", "numpy.py": "x = 1\n"})
    assert set(found(tmp_path).files) == {"mine.py", "numpy.py"}


def test_extensions_count_by_their_bytes(tmp_path):
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    write(tmp_path, {"mine.py": f"import fast\n{TASK}", f"fast{suffix}": "not really machine code"})
    before = found(tmp_path)
    assert set(before.files) == {"mine.py", f"fast{suffix}"}
    write(tmp_path, {f"fast{suffix}": "not really machine code!"})
    assert found(tmp_path).digest != before.digest


class TestDeclared:
    FILES = 'class Base:\n    code_files = ("net.json", "{tokenizer}", "words")\n'

    def code(self, folder, **settings):
        settings = {"tokenizer": str(folder / "tok.json"), **settings}
        return found(folder, **settings)

    @pytest.fixture
    def folder(self, tmp_path):
        write(tmp_path, {"mine.py": f"from base import Base\n{TASK}", "base.py": self.FILES, "net.json": "{}"})
        return write(tmp_path, {"tok.json": "[]", "words/a.txt": "a", "words/deep/b.txt": "b"})

    def test_their_content_counts(self, folder):
        before = self.code(folder)
        declared = {name for name in before.files if name.startswith("./")}
        assert declared == {"./net.json", f"./{folder}/tok.json", "./words/a.txt", "./words/deep/b.txt"}
        for name in ("net.json", "tok.json", "words/deep/b.txt"):
            kept = (folder / name).read_text()
            write(folder, {name: "changed"})
            assert self.code(folder).digest != before.digest
            write(folder, {name: kept})
        assert self.code(folder).digest == before.digest
        assert self.code(folder, tokenizer=None).digest != before.digest

    def test_one_that_is_not_there_is_66(self, folder):
        (folder / "net.json").unlink()
        with pytest.raises(Failure, match=r"Base.code_files: .*net.json") as caught:
            self.code(folder)
        assert caught.value.outcome.code is Exit.INPUT_MISSING

    def test_one_that_the_recipe_does_not_give_or_that_is_no_literal_is_78(self, folder):
        with pytest.raises(Failure, match="'tokenizer', which the recipe does not give") as caught:
            found(folder)
        assert caught.value.outcome.code is Exit.BAD_RECIPE
        write(folder, {"base.py": "class Base:\n    code_files = made()\n"})
        with pytest.raises(Failure, match=r"base.py: Base.code_files is no literal") as caught:
            self.code(folder)
        assert caught.value.outcome.code is Exit.BAD_RECIPE

    def test_two_modules_may_declare_files_of_one_name(self, tmp_path):
        for name in ("pa", "pb"):
            source = "class Any:\n    code_files = ['arch.json']\n"
            write(tmp_path, {f"{name}/__init__.py": "", f"{name}/x.py": source, f"{name}/arch.json": "1"})
        write(tmp_path, {"mine.py": f"import pa.x, pb.x\n{TASK}"})
        before = found(tmp_path)
        assert {"./pa/arch.json", "./pb/arch.json"} < set(before.files)
        for name in ("pa", "pb"):
            write(tmp_path, {f"{name}/arch.json": "2"})
            assert found(tmp_path).digest != before.digest
            write(tmp_path, {f"{name}/arch.json": "1"})

    def test_of_a_folder_links_count_and_compiled_files_do_not(self, folder):
        write(folder, {"real/k.json": "1", "words/__pycache__/a.pyc": "1"})
        (folder / "words" / "link").symlink_to(folder / "real")
        (folder / "real" / "loop").symlink_to(folder / "words")
        before = self.code(folder)
        assert "./words/link/k.json" in before.files
        write(folder, {"words/__pycache__/b.pyc": "1"})
        assert self.code(folder).digest == before.digest
        write(folder, {"real/k.json": "2"})
        assert self.code(folder).digest != before.digest

    @pytest.mark.parametrize(
        ("files", "tokenizer", "code"),
        [
            ("{[1]: 2}", "x", 78),
            ("('a\\0b',)", "x", 66),
            (f"('{'a' * 5000}',)", "x", 66),
            ("('pipe',)", "x", 66),
            ("('{tokenizer}',)", 3, 78),
            ("('{tokenizer}',)", {"a": 1}, 78),
        ],
    )
    def test_what_cannot_be_a_file_is_refused(self, folder, files, tokenizer, code):
        import os

        os.mkfifo(folder / "pipe")
        write(folder, {"base.py": f"class Base:\n    code_files = {files}\n"})
        with pytest.raises(Failure) as caught:
            self.code(folder, tokenizer=tokenizer)
        assert caught.value.outcome.code == code


def test_another_file_of_the_same_name_is_late_code(tmp_path, monkeypatch):
    """The code changes where its modules are looked up: what was found at the start is not what is loaded."""
    write(tmp_path, {"mine.py": f"import twofold\n{TASK}", "twofold.py": "x = 1\n", "vendor/twofold.py": "x = 2\n"})
    code = found(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "vendor"))
    __import__("twofold")
    assert set(late(code, {"twofold"})) == {f"{tmp_path}/vendor/twofold.py"}
    del sys.modules["twofold"]


def test_a_project_below_a_folder_of_installed_packages_is_own(tmp_path):
    folder = write(tmp_path / "site-packages" / "project", {"mine.py": f"import near\n{TASK}", "near.py": ""})
    assert set(found(folder).files) == {"mine.py", "near.py"}


def test_code_that_was_loaded_late_is_found(tmp_path, monkeypatch):
    write(tmp_path, {"mine.py": TASK, "by_a_made_name.py": "x = 1\n"})
    code = found(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("by_a_made_name")
    files = late(code, {"by_a_made_name", "json", "torch", "drivetrain.spec.load", "builtins"})
    assert set(files) == {"by_a_made_name.py"}
    del sys.modules["by_a_made_name"]


def test_a_late_file_is_found_again_at_its_place_or_by_its_name(tmp_path):
    write(tmp_path, {"one/pack/__init__.py": "x = 1\n", "one/pack/late.py": "y = 1\n"})
    places = {"pack/late.py": f"{tmp_path}/one/pack/late.py"}
    assert files_today(UserCode(), places)["pack/late.py"].digest == read_syntax(b"y = 1").digest
    code, gone = UserCode(folder=str(tmp_path / "one")), "/gone/pack/late.py"
    places = dict.fromkeys(["pack/late.py", "pack/__init__.py", "pack/later.py"], gone)
    found = {name: file.digest for name, file in files_today(code, places).items()}
    assert found == {
        "pack/late.py": read_syntax(b"y = 1").digest,
        "pack/__init__.py": read_syntax(b"x = 1").digest,
    }


def test_a_module_that_no_loader_can_read_is_told(tmp_path, monkeypatch):
    from importlib.machinery import ModuleSpec

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            return ModuleSpec(name, object(), origin="somewhere") if name == "remote" else None

    write(tmp_path, {"mine.py": f"import remote\n{TASK}"})
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    code = found(tmp_path)
    assert code.unread == ("remote",)
    assert set(code.files) == {"mine.py"}


def test_nothing_is_imported(tmp_path):
    write(tmp_path, {"mine.py": f"import helper\nraise SystemExit\n{TASK}", "helper.py": "raise SystemExit\n"})
    before = set(sys.modules)
    assert set(found(tmp_path).files) == {"mine.py", "helper.py"}
    assert not {"mine", "helper"} & (set(sys.modules) - before)


class TestCache:
    def test_what_it_remembers_is_what_would_be_read(self, tmp_path):
        sources = [b"import a\nfrom .b import c\n", b"class A:\n    code_files = ('x',)\n", b"def (", b""]
        first = SyntaxCache("here")
        read = [first.read(source) for source in sources]
        first.save()
        assert cache_path("here").stat().st_mode & 0o777 == 0o600
        again = SyntaxCache("here")
        assert [again.read(source) for source in sources] == read == list(map(read_syntax, sources))

    @pytest.mark.parametrize(
        "damage",
        [
            b"",
            b"[]",
            b"{}",
            b'{"version": 1, "sources": {"a": 1}}',
            b'{"version": 1, "sources": {"a": ["d", [["x", ["y"], "0"]], []]}}',
            b'{"version": 1, "sources": {"a": [1, [], []]}}',
            b"[" * 200_000,
            b"\xff",
        ],
    )
    def test_a_damaged_one_is_made_anew(self, damage):
        cache_path("here").parent.mkdir(parents=True)
        cache_path("here").write_bytes(damage)
        cache = SyntaxCache("here")
        assert cache.read(b"x = 1") == read_syntax(b"x = 1")
        cache.save()
        assert b"sources" in cache_path("here").read_bytes()

    def test_where_it_cannot_be_written_the_scan_is_the_same(self, tmp_path, monkeypatch):
        write(tmp_path, {"mine.py": TASK})
        before = found(tmp_path)
        monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")
        assert found(tmp_path).digest == before.digest

    def test_an_edit_that_keeps_size_and_time_is_seen(self, tmp_path):
        import os

        write(tmp_path, {"mine.py": f"x = 1\n{TASK}"})
        before = found(tmp_path)
        status = (tmp_path / "mine.py").stat()
        write(tmp_path, {"mine.py": f"x = 2\n{TASK}"})
        os.utime(tmp_path / "mine.py", ns=(status.st_atime_ns, status.st_mtime_ns))
        assert found(tmp_path).digest != before.digest


EVERYTHING_LOADED = """
import importlib, sys
from pathlib import Path

for name in sys.argv[1:]:
    importlib.import_module(name)
from drivetrain.spec.code.modules import ModuleFinder

finder = ModuleFinder(sys.path)
compared = 0
for name, module in list(sys.modules.items()):
    spec = getattr(module, "__spec__", None)
    if spec is None or not spec.has_location or spec.name != name:
        continue
    if name.partition(".")[0] not in {"drivetrain", *sys.stdlib_module_names}:
        continue  # a few others change their own paths when they are imported
    seen = finder.find(name)
    assert seen is not None and Path(seen.file or "") == Path(spec.origin), (name, spec.origin, seen)
    compared += 1
print(compared)
"""


def test_the_finder_agrees_with_imports_on_everything_that_is_loaded():
    """Of each module that a new process loads: it is found at its file. This process has other tests' modules."""
    names = ["drivetrain.cli.main", "drivetrain.spec.load", "pytest", "email.message", "concurrent.futures"]
    done = subprocess.run([sys.executable, "-c", EVERYTHING_LOADED, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


def test_own_is_what_is_neither_standard_nor_installed():
    finder = ModuleFinder(sys.path)
    own = {name: is_own(finder.find(name)) for name in ("json", "pytest", "drivetrain", "encodings")}
    assert own == {"json": False, "pytest": False, "drivetrain": False, "encodings": False}
    assert finder.find("sys") is None
