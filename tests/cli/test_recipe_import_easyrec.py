"""`drivetrain recipe import` of TorchEasyRec's configurations: what is told, edits, and what is trained of it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import drivetrain
import pipelines
from drivetrain.cli.main import run
from drivetrain.spec.load import load


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Ratings of 40 users and 30 items: odd users like every fourth item."""
    made, draw = tmp_path_factory.mktemp("easyrec"), np.random.default_rng(0)
    for name, rows in (("train", 1200), ("test", 300)):
        lines = ["user,item,age,like,love"]
        for user, item in zip(draw.integers(1, 41, rows), draw.integers(1, 31, rows), strict=True):
            like = int(user % 2 and item % 4 == 0) or int(draw.random() < 0.2)
            lines.append(f"{user},{item},{20 + user % 30},{like},{int(like and user % 3 == 0)}")
        (made / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return made


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.config").write_text(pipelines.SMALL)
    return tmp_path


def imported(*arguments):
    return run(["recipe", "import", "p.config", "--to", "new.yaml", *arguments])


@pytest.mark.parametrize("kind", ["SMALL", "MMOE", "DSSM"])
def test_what_is_imported_passes_the_check_and_learns(kind, place, folder, monkeypatch):
    (folder / "p.config").write_text(getattr(pipelines, kind))
    monkeypatch.chdir(folder)
    to = f"{kind.lower()}.yaml"
    assert run(["recipe", "import", "p.config", "--to", to]) == 0
    assert run(["recipe", "check", to]) == 0
    result = drivetrain.train(to, ["budget.epochs=3", "launch.threads=1"], run=place / "run", progress=False)
    assert result.step == (3 * 1200 + 63) // 64
    assert (place / "run" / "checkpoints").is_dir()


def test_tables_that_grow_weights_that_are_found_costs_and_training_scores_are_trained(place, folder, monkeypatch):
    text = pipelines.MMOE.replace("hash_bucket_size: 99", "zch { zch_size: 100 eviction_interval: 4 lru {} }")
    text = text.replace("num_buckets: 41", "dynamicemb { max_capacity: 100 }")
    text = text.replace("with_header: true", 'with_header: true sample_cost_field: "age" batch_cost_size: 900')
    text = text.replace("metrics { auc {} }", "metrics { auc {} } train_metrics { auc {} decay_step: 5 }")
    text = text.replace("mmoe {", "use_pareto_loss_weight: true mmoe {")
    warm = "exponential_decay_learning_rate { decay_size: 1 by_epoch: true warmup_size: 1 warmup_learning_rate: 1e-4 }"
    text = text.replace("constant_learning_rate {}", warm)
    (folder / "p.config").write_text(text)
    monkeypatch.chdir(folder)
    assert run(["recipe", "import", "p.config", "--to", "grown.yaml", "--strict"]) == 0
    assert run(["recipe", "check", "grown.yaml"]) == 0
    result = drivetrain.train("grown.yaml", ["launch.threads=1"], run=place / "run", progress=False)
    ledger = [json.loads(line) for line in (place / "run" / "ledger.jsonl").read_text().splitlines()]
    steps = [record for record in ledger if record["kind"] == "step"]
    assert len(steps) == result.step > (2 * 1200 + 63) // 64  # a batch of 900 has fewer than 64
    assert {round(sum(record["weights"].values()), 5) for record in steps} == {1.0}
    assert [record["step"] for record in ledger if record["kind"] == "training"][:2] == [5, 10]
    assert steps[0]["lr"]["model"] == 1e-4 < steps[-1]["lr"]["model"] == 1e-3  # by epochs


def test_the_example_of_the_page_is_what_comes_of_it(place):
    page = (Path(__file__).parents[2] / "docs" / "torcheasyrec.md").read_text()
    config, expected = re.search(r"```text\n(.*?)```.*?```yaml\n(.*?)```", page, re.DOTALL).groups()
    (place / "p.config").write_text(config)
    assert imported() == 0
    (place / "page.yaml").write_text(f"name: new\n{expected}")
    assert load("page.yaml").tree == load("new.yaml").tree


def test_it_tells_what_becomes_of_each_field_with_its_line(place, capsys):
    (place / "p.config").write_text(pipelines.SMALL + "train_config { cuda_matmul_allow_tf32: true }\n")
    assert imported() == 0
    told = capsys.readouterr().out
    assert "p.config: --from easyrec, since it has train_input_path, " in told
    assert "p.config:3: model_dir: `drivetrain train RECIPE --run DIR` names the run directory" in told
    assert "without a counterpart (1):\n  p.config:23: train_config.cuda_matmul_allow_tf32: `matmul: high`" in told
    written = (place / "new.yaml").read_text()
    assert "# feature_configs[1].id_feature.hash_bucket_size, line 17: by another hash than there" in written
    assert "#   23 train_config.cuda_matmul_allow_tf32: " in written


def test_strictly_nothing_is_written_where_a_field_has_no_counterpart(place):
    (place / "p.config").write_text(pipelines.SMALL + "train_config { cuda_matmul_allow_tf32: true }\n")
    assert imported("--strict") == 78
    assert not (place / "new.yaml").exists()
    (place / "p.config").write_text(pipelines.SMALL)
    assert imported("--strict") == 0


def test_edits_are_applied_first_from_text_or_from_a_file(place):
    edits = {"train_config.num_epochs": 7, "feature_configs[id_feature.feature_name=item].id_feature.embedding_dim": 8}
    assert imported("--edits", json.dumps(edits)) == 0
    assert load("new.yaml").recipe.budget.epochs == 7
    assert "# train_config.num_epochs" in Path("new.yaml").read_text()
    Path("new.yaml").unlink()
    Path("edits.json").write_text(json.dumps({"train_config.num_epochs": 0, "train_config.num_steps": 5}))
    assert imported("--edits", "edits.json") == 0
    assert load("new.yaml").recipe.budget.steps == 5


@pytest.mark.parametrize(
    ("edits", "code", "words"),
    [
        ('{"train_config.num_epoch": 1}', 64, "has no field 'num_epoch'; did you mean 'num_epochs'"),
        ('{"train_config.num_steps": 5}', 78, "num_steps 5 and num_epochs 2 are both given"),
        ('{"data_config.batch_size": 0}', 65, "command line: data_config.batch_size: batch.size"),
        (
            '{"train_config.mixed_precision": "BF32"}',
            65,
            "command line: --edits: train_config.mixed_precision: is BF16",
        ),
        ("none.json", 66, "neither a JSON object {...} nor a file"),
    ],
)
def test_an_edit_that_cannot_be_is_one_error_and_nothing_is_written(place, capsys, edits, code, words):
    assert imported("--edits", edits) == code
    assert words in capsys.readouterr().err
    assert not (place / "new.yaml").exists()


def test_edits_are_for_files_that_have_them(place, capsys):
    (place / "ds.json").write_text('{"train_batch_size": 64}')
    assert run(["recipe", "import", "ds.json", "--to", "new.yaml", "--edits", "{}"]) == 64
    assert "--edits: a deepspeed file has no language of edits" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02c",
        b"train_config {" * 200,
        b'train_input_path: "\xff"',
        b"train_config { num_epochs: " + b"9" * 10**5 + b" }",
    ],
    ids=["pickle", "deep", "bytes", "long"],
)
def test_a_hostile_file_is_refused(place, content, capsys):
    (place / "p.config").write_bytes(content)
    assert imported("--from", "easyrec") == 65
    assert "drivetrain: 65 bad data: " in capsys.readouterr().err
    assert not (place / "new.yaml").exists()


def test_what_names_say_leaves_no_comment_and_reaches_no_terminal(place, capsys):
    evil = "x\\ntask: {kind: evil}\\033[2J"
    text = pipelines.SMALL.replace('feature_name: "age"', f'feature_name: "{evil}"')
    (place / "p.config").write_text(text.replace('feature_names: "age"', f'feature_names: "{evil}"'))
    assert imported() == 0
    written = (place / "new.yaml").read_text()
    assert "\x1b" not in written + "".join(capsys.readouterr())
    assert load("new.yaml").recipe.task.features.keys() == {"user", "item", "x_task___kind__evil___2J"}
