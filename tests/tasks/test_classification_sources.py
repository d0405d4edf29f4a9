import json
import math
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import glues
from drivetrain.data.opening import open_source
from drivetrain.data.recipe import JsonLines, Parquet, Table
from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.classification.glue import BENCHMARKS
from drivetrain.tasks.classification.recipe import GLUE, Classification, Glue
from drivetrain.tasks.classification.task import ClassificationTask
from drivetrain.tasks.classification.texts import UNLABELLED

HEADERS = {
    "mnli": "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse "
    "sentence1 sentence2 label1 gold_label",
    "mrpc": "Quality,#1 ID,#2 ID,#1 String,#2 String",
    "qnli": "index question sentence label",
    "qqp": "id qid1 qid2 question1 question2 is_duplicate",
    "rte": "index sentence1 sentence2 label",
    "sst2": "sentence label",
    "stsb": "index genre filename year old_index source1 source2 sentence1 sentence2 score",
    "wnli": "index sentence1 sentence2 label",
}
TEXTS = {"#1 String", "#2 String", "sentence", "sentence1", "sentence2", "question", "question1", "question2"}
LABELS = {"label", "gold_label", "Quality", "is_duplicate", "score"}
TEST_HEADERS = {"mrpc": "index,#1 ID,#2 ID,#1 String,#2 String", "qqp": "id question1 question2"}


@pytest.fixture(scope="module")
def tokenizer():
    return glues.tokenizer(pairs=True)


def task_of(name, tokenizer, **settings):
    own = {"glue": name} if name else {}
    made = ClassificationTask(Classification(model="none", length=32, **own, **settings))
    made.__dict__["_tokenizer"] = tokenizer  # what the model's folder would give
    return made


def write(folder, name, part):
    """Three rows of a set as GLUE's files have them; values say where they stand."""
    benchmark = BENCHMARKS[name]
    label = {0: "3.25"} if not benchmark.labels else dict(enumerate(benchmark.labels))
    labels = [str(n % max(1, len(label))) if benchmark.numbered else label[n % len(label)] for n in range(3)]
    labels = ["3.25"] * 3 if not benchmark.labels else labels
    test = part == "test"
    stem = {"dev": benchmark.dev, "test": benchmark.test}.get(part, part)
    names = HEADERS.get(name, "source label star sentence").replace(",", " ,").split(" ,") if name == "mrpc" else None
    names = names or HEADERS.get(name, "source label star sentence").split(" ")
    if test:
        given = TEST_HEADERS.get(name)
        names = given.split("," if "," in given else " ") if given else ["index", *(n for n in names if n in TEXTS)]
    lines = [] if name == "cola" and not test else ["\t".join(names)]
    for number in range(3):
        values = [
            f'"w{number} w9 {column.replace("#", "")}'
            if column in TEXTS
            else labels[number]
            if column in LABELS
            else "7"
            for column in names
        ]
        lines.append("\t".join(values))
    (folder / f"{stem}.tsv").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("name", GLUE)
@pytest.mark.parametrize("part", ["train", "dev", "test"])
def test_each_tasks_files_are_read_as_they_are_distributed(name, part, tmp_path, tokenizer):
    benchmark = BENCHMARKS[name]
    folder = tmp_path / benchmark.folder
    folder.mkdir()
    write(folder, name, part)
    source = open_source(Glue(path=str(tmp_path), task=name, set=part), 0, tmp_path / "digests.json")
    rows = source.read(np.arange(3), np.arange(3))
    assert set(rows[0]) == {*benchmark.texts, *([] if part == "test" else ["label"])}
    assert all(row[text].startswith(f'"w{number} w9') for number, row in enumerate(rows) for text in benchmark.texts)
    samples = task_of(name, tokenizer).prepare(source, part).read(np.arange(3), np.arange(3))
    labels = [sample["label"] for sample in samples]
    if part == "test":
        assert all(np.isnan(labels)) if not benchmark.labels else labels == [UNLABELLED] * 3
    else:
        assert labels == ([3.25] * 3 if not benchmark.labels else [n % len(benchmark.labels) for n in range(3)])


@pytest.mark.parametrize("name", ["rte", "stsb"])
def test_rows_to_predict_are_tokenized_when_they_are_read_to_the_samples_of_a_test_set(name, tmp_path, tokenizer):
    benchmark = BENCHMARKS[name]

    class Once:
        fingerprint, thread_safe, notes = "once", True, ()
        asked = 0

        def __len__(self):
            return 5

        def read(self, ids, positions):
            Once.asked += len(ids)
            return [dict.fromkeys(benchmark.texts, f"w{number} w9") for number in ids]

    task = task_of(name, tokenizer)
    whole = task.prepare(Once(), "test").read(np.arange(5), np.arange(5))
    Once.asked = 0
    source = task.prepare(Once(), "predict")
    assert (len(source), Once.asked) == (5, 0)
    for ids in ([3, 1], [4]):
        for number, sample in zip(ids, source.read(np.array(ids), np.array(ids)), strict=True):
            np.testing.assert_equal(sample, whole[number])
    assert Once.asked == 3


def test_mrpc_before_glue_is_read_too(tmp_path, tokenizer):
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    (tmp_path / "msr_paraphrase_test.txt").write_text(f"{header}\n1\t2\t3\tw1 w2\tw3\n")
    source = open_source(Glue(path=str(tmp_path), task="mrpc", set="test"), 0, tmp_path / "d.json")
    (sample,) = task_of("mrpc", tokenizer).prepare(source, "test").read(np.arange(1), np.arange(1))
    assert sample["label"] == 1


def test_a_saved_dataset_dict_is_read_with_its_numbers_as_labels(tmp_path, tokenizer):
    for subset in ("validation_matched", "test_mismatched"):
        folder = tmp_path / subset
        folder.mkdir()
        rows = [{"premise": "w1", "hypothesis": "w2", "label": -1 if "test" in subset else 2, "idx": 0}]
        table = pa.Table.from_pylist(rows)
        with pa.OSFile(str(folder / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["validation_matched", "test_mismatched"]}))
    for name, label in (("dev", 2), ("test_mismatched", UNLABELLED)):
        source = open_source(Glue(path=str(tmp_path), task="mnli", set=name), 0, tmp_path / "d.json")
        part = "test" if "test" in name else "validation"
        (sample,) = task_of("mnli", tokenizer).prepare(source, part).read(np.arange(1), np.arange(1))
        assert sample["label"] == label


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"task": "rte"}, Exit.BAD_RECIPE),
        ({"path": "{}"}, Exit.BAD_RECIPE),
        ({"path": "{}", "task": "rte"}, Exit.INPUT_MISSING),
        ({"path": "{}", "task": "rte", "set": "dev_mismatched"}, Exit.BAD_RECIPE),
    ],
)
def test_a_source_that_is_nowhere_is_told(settings, code, tmp_path):
    given = {name: value.format(tmp_path) for name, value in settings.items()}
    with pytest.raises(Failure) as refused:
        open_source(Glue(**given), 0, tmp_path / "d.json")
    assert refused.value.outcome.code is code


def rows_source(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return open_source(JsonLines(path=str(path)), 0, path.parent / "d.json")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"text": "w1", "label": "maybe"}, "label 'maybe' is none of bad, good"),
        ({"text": "w1", "label": None}, "has no label"),
        ({"text": "w1"}, "no column 'label'"),
        ({"text": 3, "label": "bad"}, "text is no text"),
        ({"txt": "w1", "label": "bad"}, "did you mean 'txt'"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(row, why, tmp_path, tokenizer):
    path = tmp_path / "rows.jsonl"
    source = rows_source(path, [{"text": "w1", "label": "bad"}, row])
    task = task_of(None, tokenizer, texts=("text",), labels=("bad", "good"))
    with pytest.raises(Failure) as refused:
        task.prepare(source, "train")
    assert refused.value.outcome.code is Exit.BAD_DATA
    assert f"{path}:2" in refused.value.outcome.cause
    assert why in refused.value.outcome.cause


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_label_that_is_nan_is_none_and_told_by_file_and_row(kind, tmp_path, tokenizer):
    path = tmp_path / f"rows.{kind}"
    labels = [0.0, 1.0, math.nan]
    if kind == "parquet":
        pq.write_table(pa.table({"text": ["w1"] * 3, "label": labels}), path)
        settings = Parquet(path=str(path))
    else:
        path.write_text("text,label\n" + "".join(f"w1,{label}\n" for label in labels))
        settings = Table(path=str(path))
    task = task_of(None, tokenizer, texts=("text",))
    with pytest.raises(Failure, match="it has no label") as refused:
        task.prepare(open_source(settings, 0, tmp_path / "d.json"), "train")
    assert refused.value.outcome.code is Exit.BAD_DATA
    assert str(path) in refused.value.outcome.cause
    assert task.learned == {"labels": ["0.0", "1.0"]}


def test_a_class_may_be_called_nan_where_the_recipe_says_so(tmp_path, tokenizer):
    source = rows_source(tmp_path / "r.jsonl", [{"text": "w1", "label": label} for label in ("nan", "roti")])
    task = task_of(None, tokenizer, texts=("text",), labels=("nan", "roti"))
    made = task.prepare(source, "train").read(np.arange(2), np.arange(2))
    assert [sample["label"] for sample in made] == [0, 1]


def test_labels_of_the_data_are_in_order_and_kept_for_later_starts(tmp_path, tokenizer):
    source = rows_source(tmp_path / "rows.jsonl", [{"text": "w1", "label": n} for n in (10, 9, 1)])
    task = task_of(None, tokenizer, texts=("text",))
    task.prepare(source, "train")
    assert task.learned == {"labels": ["1", "9", "10"]}
    later = task_of(None, tokenizer, texts=("text",))
    later.recall(task.learned)
    assert later.learned == task.learned
    with pytest.raises(Failure, match="has 1 labels"):
        task_of(None, tokenizer, texts=("text",)).prepare(
            rows_source(tmp_path / "o.jsonl", [{"text": "w1", "label": 1}]), "train"
        )


@pytest.mark.parametrize("score", [3.25, "3.25"])
def test_scores_are_no_classes_unless_the_recipe_says_so(score, tmp_path, tokenizer):
    # run_glue trained a regression where a column had decimals; here each score would be a class
    source = rows_source(tmp_path / "r.jsonl", [{"text": "w1", "label": value} for value in (1, score, 5)])
    with pytest.raises(Failure, match=r"column 'label' .* 3 numbers such as 3\.25") as refused:
        task_of(None, tokenizer, texts=("text",)).prepare(source, "train")
    assert refused.value.outcome.code is Exit.BAD_RECIPE
    for settings, labels in (({"regression": True}, [1, 3.25, 5]), ({"labels": ("1", "3.25", "5")}, [0, 1, 2])):
        made = task_of(None, tokenizer, texts=("text",), **settings).prepare(source, "train")
        assert [sample["label"] for sample in made.read(np.arange(3), np.arange(3))] == labels


def test_labels_that_are_numbers_are_meant_by_their_value_and_never_by_their_place(tmp_path, tokenizer):
    task = task_of(None, tokenizer, texts=("text",), labels=("1", "2", "3"))
    rows = [{"text": "w1", "label": label} for label in ("1", 2, 1.0, "3.0")]
    made = task.prepare(rows_source(tmp_path / "r.jsonl", rows), "train").read(np.arange(4), np.arange(4))
    assert [sample["label"] for sample in made] == [0, 1, 0, 2]
    with pytest.raises(Failure, match="label 0 is none of 1, 2, 3"):
        task.prepare(rows_source(tmp_path / "o.jsonl", [{"text": "w1", "label": 0}]), "train")


def test_samples_by_length_are_the_same_samples_and_ascend(tmp_path, tokenizer):
    source = rows_source(tmp_path / "r.jsonl", [{"text": t, "label": y} for t, y in glues.rows(40)])
    task = task_of(None, tokenizer, texts=("text",))
    ids = np.arange(40)
    plain, sorted_ = (task.prepare(source, "train", by_length=by).read(ids, ids) for by in (False, True))
    lengths = [len(sample["tokens"]) for sample in sorted_]
    assert lengths == sorted(lengths)
    for sample in sorted_:
        assert sample["tokens"].tolist() == plain[sample["row"]]["tokens"].tolist()
        assert sample["label"] == plain[sample["row"]]["label"]


def test_batches_are_padded_to_their_longest_and_what_is_cut_is_told(tmp_path, tokenizer):
    source = rows_source(tmp_path / "r.jsonl", [{"text": "w1 " * n, "label": n % 2} for n in (1, 4, 90)])
    task = task_of(None, tokenizer, texts=("text",), multiple=4)
    made = task.prepare(source, "train")
    assert made.notes == ("1 of 3 samples are cut to 32 tokens",)
    batch = task.collate(made.read(np.arange(2), np.arange(2)))
    assert batch["input_ids"].tolist() == [[2, 5, 3, 0, 0, 0, 0, 0], [2, 5, 5, 5, 5, 3, 0, 0]]
    assert batch["attention_mask"].sum(1).tolist() == [3, 6]
    assert batch["labels"].tolist() == [1, 0]


def test_a_pairs_second_text_is_told_apart(tmp_path, tokenizer):
    source = rows_source(tmp_path / "r.jsonl", [{"a": "w1", "b": "w2 w3", "label": n} for n in (0, 1)])
    made = task_of(None, tokenizer, texts=("a", "b")).prepare(source, "train")
    (sample,) = made.read(np.arange(1), np.arange(1))
    assert sample["segments"].tolist() == [0, 0, 0, 1, 1, 1]


def test_predictions_are_in_the_format_of_glues_server(tokenizer):
    import torch

    logits = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    batch = {"input_ids": torch.zeros(2, 1), "rows": torch.tensor([4, 5])}
    said = {}
    for name in ("cola", "rte", "stsb"):
        out = logits[:, 1:] if name == "stsb" else logits
        nets = {"model": lambda out=out, **inputs: SimpleNamespace(logits=out)}
        said[name] = [row["prediction"] for row in task_of(name, tokenizer).predict(nets, batch)]
    assert said == {"cola": [1, 0], "rte": ["not_entailment", "entailment"], "stsb": [1.0, 0.0]}
