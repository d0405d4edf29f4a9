"""Every shipped recipe trains, and every example of the documentation works."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import drivetrain
import glues
import ratings
import sounds
from drivetrain.cli.main import run
from drivetrain.data.inputs import find_inputs
from drivetrain.data.prepare import Preparation, encoding, prepare
from drivetrain.plan.flops import parameters
from drivetrain.spec.load import load, shipped_names

DOCS = Path(__file__).parent.parent / "docs"


LLAMAS = {"9m": 9.0, "20m": 19.5, "35m": 35.2, "60m": 58.1, "130m": 134.1, "350m": 367.9, "1b": 1339.1, "7b": 6738.4}
"""Millions of parameters, as GaLore's configurations have them."""
TINY_GLUE = ["task.model=bert", "task.folder=.", "task.length=32", "checkpoint.keep_best=null"]
FEW_SOUNDS = ["batch={size: 8, micro: 2}", "task.model.seconds=0.2", "data.train.workers=0"]
TINY_VOCODER = ["task.model.width=8", "task.model.depth=1"]
SMALLER = {
    "criteo": ["batch.size=32", "task.model.hidden=[8]", "checkpoint.every={steps: 3}"],
    "glue": TINY_GLUE,
    "glue-mnli": TINY_GLUE,
    "llama-9m": [
        "task.model={vocabulary: 256, width: 16, hidden: 32, depth: 1, heads: 2, context: 16}",
        "batch={size: 32, micro: 32}",
        "optimizer.rank=4",
    ],
    "denoise": [*FEW_SOUNDS, "task.model.width=4"],
    "vocoder": [*FEW_SOUNDS, *TINY_VOCODER, "networks.discriminator.start=2", "task.discriminator.width=2"],
    "vocoder-demo": ["networks.discriminator.start=2"],
    "enhance": [*FEW_SOUNDS, *TINY_VOCODER, "task.denoiser.width=4", "task.flow.width=8"],
}
STAGE_ONE = {"enhance": "vocoder", "enhance-demo": "vocoder-demo"}
"""The recipes whose run another one begins with, as runs/NAME."""


@pytest.mark.parametrize("size", LLAMAS)
def test_each_llama_has_the_parameters_of_its_name(size):
    recipe = load(f"llama-{size}").recipe
    assert parameters(recipe.task.model.shape) / 1e6 == pytest.approx(LLAMAS[size], abs=0.1)
    assert recipe.optimizer.kind == "galore"
    assert recipe.schedule.warmup.steps * 10 == recipe.budget.steps


TRAINED = [
    name for name in shipped_names() if name == "llama-9m" or not name.startswith("llama-")
]  # the rest are alike


@pytest.mark.parametrize("name", TRAINED)
def test_every_shipped_recipe_trains_three_steps(name, tmp_path, monkeypatch):
    monkeypatch.chdir(sounds.folders(tmp_path))
    if name.startswith("glue"):
        glues.folders(Path())
    if name == "movielens":
        ratings.folder(Path())
    if name == "criteo":
        ratings.criteo(Path("train.txt"))
    if name.startswith("llama"):
        prepare(Preparation(Path("c4-train"), tuple(find_inputs([str(DOCS / "*.md")])), encoding(None, eod="0")))
    if name in STAGE_ONE:
        three_steps(STAGE_ONE[name])
    assert three_steps(name).step == 3


def three_steps(name):
    overrides = ["budget.steps=3", "data.validation={}", "schedule.warmup=null", "launch.threads=1"]
    overrides += SMALLER.get(name, [])
    return drivetrain.train(name, overrides, run=Path("runs") / name, progress=False)


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def test_your_own_model_in_thirty_lines_trains_as_written(tmp_path):
    (tmp_path / "spiral.py").write_text(blocks("your-own-model.md", "python")[0])
    (tmp_path / "spiral.yaml").write_text(blocks("your-own-model.md", "yaml")[0])
    assert sum(bool(line.strip()) for line in (tmp_path / "spiral.py").read_text().splitlines()) <= 30
    result = drivetrain.train(tmp_path / "spiral.yaml", ["launch.threads=1"], run=tmp_path / "run", progress=False)
    assert result.step == 400
    assert result.metrics["points"]["loss"] < 0.1


def test_the_classifier_of_rows_trains_as_written(tmp_path, monkeypatch):
    (tmp_path / "flowers.py").write_text(blocks("your-own-model.md", "python")[1])
    (tmp_path / "flowers.yaml").write_text(blocks("your-own-model.md", "yaml")[1])
    rows = [{"x": [n % 7 - 3.0, n % 5 - 2.0], "label": int(n % 7 > 3)} for n in range(400)]
    (tmp_path / "flowers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    result = drivetrain.train("flowers.yaml", ["launch.threads=1"], run=tmp_path / "run", progress=False)
    assert result.metrics["flowers"]["accuracy"] > 0.95


def test_the_yaml_of_the_fine_tuning_page_is_valid(tmp_path):
    for text in blocks("fine-tuning.md", "yaml"):
        (tmp_path / "r.yaml").write_text(f"name: own\n{text}batch: {{size: 8}}\nbudget: {{epochs: 1}}\n")
        load(tmp_path / "r.yaml")


def test_the_ten_minutes_of_the_ranking_page_go_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "ranking.md").read_text()
    (tmp_path / "log.yaml").write_text(blocks("ranking.md", "yaml")[0])
    exec(blocks("ranking.md", "python")[0].replace("20_000", "2_000"), {})
    train, predict, export = re.findall(r"^drivetrain (train log.yaml.*|predict.*|export.*)$", page, re.MULTILINE)[:3]
    assert run([*train.split(), "launch.threads=1"]) == 0
    assert run(predict.split()) == 0
    header, *scored = (tmp_path / "scores.csv").read_text().splitlines()
    assert (header, len(scored)) == ("user,item,row,clicked", 1000)
    assert run(export.split()) == 0
    service = re.findall(r"^cd served\n(?:.*\n)*?'\n", page, re.MULTILINE)[0].replace("python", sys.executable)
    told = subprocess.run(["bash", "-ec", service], capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(r"\{'clicked': array\(\[0\.\d+, 0\.\d+\].*\)\}\n", told)


def test_the_yaml_of_the_ranking_page_is_valid(tmp_path):
    looked_up = blocks("ranking.md", "yaml")[1]
    data = "data: {train: {sources: [{kind: clicks}]}}\nbatch: {size: 8}\nbudget: {epochs: 1}\n"
    (tmp_path / "r.yaml").write_text(f"name: own\n{looked_up}{data}optimizer: {{kind: adamw, lr: 0.1}}\n")
    load(tmp_path / "r.yaml")


def test_the_yaml_of_the_recipe_page_is_valid(tmp_path):
    for text in blocks("recipes.md", "yaml"):
        (tmp_path / "r.yaml").write_text(text if "base:" in text else "base: quickstart\n" + text)
        if "weight_decay: 0.0" not in text:
            load(tmp_path / "r.yaml")
