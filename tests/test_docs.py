"""The site of docs/ builds strictly and needs no network; what pages name is there; the picture is up to date."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain.spec.importing.deepspeed.table import TOP
from drivetrain.spec.importing.easyrec.schema import schema
from drivetrain.spec.registry import KINDS

ROOT = Path(__file__).parents[1]
BESIDE = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")]
PAGES = [*BESIDE, *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]*)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
QUOTED = re.compile(r"`([\w./]+)`")
FOLDERS = ("", "src/drivetrain/", "src/drivetrain/launch/", "tests/", "docs/")
"""Where pages begin to name files."""
FETCHED = re.compile(r"""<(?:link|script|img|iframe)\b[^>]*(?:href|src)=["'](?:https?:)?//[^"']*""")


@pytest.mark.cold
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_site_builds_strictly_and_needs_no_network(tmp_path):
    pytest.importorskip("sphinx")
    command = [sys.executable, "-m", "sphinx", "--builder", "html", "--fail-on-warning", "--keep-going", "--quiet"]
    done = subprocess.run([*command, ROOT / "docs", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    fetched = [found for page in tmp_path.rglob("*.html") for found in FETCHED.findall(page.read_text())]
    fetched += [str(style) for style in tmp_path.rglob("*.css") if re.search(r"url\(.?(https?:)?//", style.read_text())]
    assert fetched == []
    fields = (tmp_path / "reference" / "recipe.html").read_text()
    assert "weight_decay" in fields
    assert "checkpoint" in fields


def prose(page):
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page):
    """As GitHub and the site make them of headings."""
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in HEADING.findall(prose(page)))
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_to_headings(page):
    for link in LINK.findall(prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_and_tests_that_a_page_names_are_there(page):
    for name in QUOTED.findall(prose(page)):
        if "/" in name and name.endswith(".py"):
            assert any((ROOT / folder / name).exists() for folder in FOLDERS), f"{page.name}: {name}"


def test_the_drawing_of_the_loop_names_files_that_are_there():
    drawing = (ROOT / "docs" / "the-loop.md").read_text().split("```")[1]
    names = re.findall(r"[\w/]+\.py", drawing)
    assert len(names) > 40
    folders = [path.parent for path in (ROOT / "src" / "drivetrain").glob("*/__init__.py")]
    for name in names:
        places = [ROOT / "src" / "drivetrain"] if "/" in name else folders  # a name alone goes on with a row's folder
        assert any((place / name).exists() for place in places), name


def test_the_classes_of_the_glossary_are_where_it_says():
    rows = re.findall(
        r"^\| (`[A-Z_].*?) \| .* \| (`.*`) \|$", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE
    )
    assert len(rows) > 20
    for names, files in rows:
        source = "".join((ROOT / "src" / "drivetrain" / file).read_text() for file in re.findall(r"`(.*?)`", files))
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"^class {name}\b", source, re.MULTILINE), f"{name} in {files}"


def test_the_picture_of_the_rooms_is_up_to_date(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    monkeypatch.delitem(sys.modules, "picture", raising=False)
    from picture import PICTURE, picture

    sys.modules.pop("picture")  # later tests look at what can be imported
    assert picture() == PICTURE.read_text(), "make picture"


@pytest.mark.parametrize("section", ["task", "source", "optimizer", "schedule"])
def test_every_kind_is_in_the_page_of_recipes(section):
    page = (ROOT / "docs" / "recipes.md").read_text()
    assert [kind for kind in KINDS[section] if f"`{kind}`" not in page] == []


def test_every_key_of_deepspeed_is_in_its_page():
    page = (ROOT / "docs" / "deepspeed.md").read_text()
    assert [key for key in TOP if f"`{key}`" not in page] == []


@pytest.mark.parametrize("message", ["TrainConfig", "DataConfig", "FeatureConfig", "ModelConfig"])
def test_what_torcheasyrec_configures_is_in_its_page(message):
    page = (ROOT / "docs" / "torcheasyrec.md").read_text()
    names = [name for name in schema().fields(message) if not name.startswith("sequence_")]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_the_page_of_the_stack_lists_every_place_that_names_a_device():
    page = (ROOT / "docs" / "stack.md").read_text()
    named = []
    for path in sorted((ROOT / "src" / "drivetrain").rglob("*.py")):
        if re.search(r"""["'](cuda|mps|xpu|nccl)["']|torch\.(cuda|mps|xpu)\b|is_cuda""", path.read_text()):
            named.append(str(path.relative_to(ROOT / "src" / "drivetrain")))
    assert named
    assert [name for name in named if f"`{name}`" not in page] == []
