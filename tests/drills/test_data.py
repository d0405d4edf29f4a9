"""Data that is missing, damaged, changed or slow, in whole runs: one test for each fault of the catalogue."""

import json
import os
import threading
import time

import numpy as np
import psutil
import pyarrow as pa
import pytest
from pyarrow import parquet

from drills.fault import Fault
from drills.runs import drill, reference
from drills.test_process import small as recipe_of_numbers
from drivetrain.data.blend import training_order
from drivetrain.data.inputs import find_inputs
from drivetrain.data.opening import open_source
from drivetrain.data.order import digest
from drivetrain.data.prepare import Preparation, encoding, prepare
from drivetrain.ledger.derive import lineage, samples_used
from drivetrain.ledger.ledger import read
from drivetrain.spec.amount import Scale
from drivetrain.spec.batches import Batches
from drivetrain.spec.exits import Exit
from drivetrain.spec.load import load

pytestmark = [pytest.mark.xdist_group("drills"), pytest.mark.timeout(300), pytest.mark.usefixtures("forked")]


def small(source, **other):
    """A run of a few steps on rows."""
    return {
        "name": "rows",
        "task": {"kind": "drills.data_tasks:Line"},
        "data": {"train": {"sources": [source]}},
        "lanes": 4,
        "batch": {"size": 8},
        "budget": {"steps": 12},
        "optimizer": {"lr": 0.01},
        "checkpoint": {"every": {"steps": 5}},
        "launch": {"threads": 1},
    } | other


def lines(folder, *counts, first=0):
    """Files of JSON lines with that many rows each."""
    folder.mkdir(exist_ok=True)
    for number, count in enumerate(counts):
        text = "".join(json.dumps({"x": round((first + n) / 97, 3)}) + "\n" for n in range(count))
        (folder / f"{number}.jsonl").write_text(text)
        first += count
    return {"kind": "jsonl", "path": str(folder)}


def columns(folder, *counts):
    """Files of CSV with that many rows each."""
    folder.mkdir()
    for number, count in enumerate(counts):
        (folder / f"{number}.csv").write_text("x\n" + "".join(f"{n / 97:.3f}\n" for n in range(count)))
    return folder


def prepared(folder, name, count=60):
    """A prepared token file of documents that differ in length."""
    text = folder / f"{name}.jsonl"
    text.write_text("".join(json.dumps({"text": f"{name} {n} " * (n % 9 + 1)}) + "\n" for n in range(count)))
    prepare(Preparation(folder / name, tuple(find_inputs([str(text)])), encoding(None, eod="0")))
    return {"kind": "documents", "path": str(folder / name)}


def refused(recipe, run, code, *overrides):
    """How a run ends that must end with this code before its first step."""
    outcome = drill(recipe, run, None, *overrides, again=False).outcome
    assert outcome.code == code, outcome
    assert json.loads((run / "exit.json").read_text())["code"] == code
    ledger = run / "ledger.jsonl"
    assert not ledger.is_file() or not [r for r in read(ledger) if r["kind"] == "step"]
    return outcome


def test_d01_a_shard_that_is_missing_at_the_start_is_66_with_its_path(tmp_path):
    folder = tmp_path / "saved"
    folder.mkdir()
    names = ["data-0.arrow", "data-1.arrow"]
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    table = pa.table({"x": [0.5] * 9})
    with pa.OSFile(str(folder / names[0]), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    outcome = refused(small({"kind": "datasets", "path": str(folder)}), tmp_path / "run", Exit.INPUT_MISSING)
    assert str(folder / names[1]) in outcome.cause


def test_d02_a_truncated_parquet_file_is_65_before_the_first_step(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"x": [0.5] * 999}), path)
    os.truncate(path, path.stat().st_size // 2)
    assert str(path) in refused(small({"kind": "parquet", "path": str(path)}), tmp_path / "run", Exit.BAD_DATA).cause


@pytest.mark.parametrize("what", ["tokens", "parquet"])
def test_d03_a_flipped_bit_is_65_before_the_first_step(tiny, tmp_path, what):
    if what == "tokens":
        source, path = prepared(tmp_path, "out"), tmp_path / "out.bin"
        tiny["data"] = {"train": {"sources": [source]}}
    else:
        path = tmp_path / "a.parquet"
        table = pa.table({"x": np.random.default_rng(0).random(999)})
        parquet.write_table(table, path, write_page_checksum=True, use_dictionary=False, compression="none")
        tiny = small({"kind": "parquet", "path": str(path)})
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 4
    path.write_bytes(data)
    assert str(path) in refused(tiny, tmp_path / "run", Exit.BAD_DATA).cause


def test_d04_a_malformed_line_is_65_with_file_and_line(tmp_path):
    source = lines(tmp_path / "rows", 30, 30)
    with (tmp_path / "rows" / "1.jsonl").open("a") as file:
        file.write('{"x": 0.1\n')
    outcome = refused(small(source), tmp_path / "run", Exit.BAD_DATA)
    assert f"{tmp_path / 'rows' / '1.jsonl'}:31" in outcome.cause


@pytest.mark.parametrize("what", ["odd length", "token beyond the vocabulary", "index of another file"])
def test_d05_a_damaged_token_file_is_65_before_the_first_step(tiny, tmp_path, what):
    if what == "index of another file":
        prepared(tmp_path, "other", 9)
        source = prepared(tmp_path, "out")
        (tmp_path / "other.documents").replace(tmp_path / "out.documents")
    else:
        tokens = np.arange(999, dtype="<u2") % (256 if what == "odd length" else 257)
        (tmp_path / "t.bin").write_bytes(tokens.tobytes() + (b"x" if what == "odd length" else b""))
        source = {"kind": "tokens", "path": str(tmp_path / "t.bin")}
    tiny["data"] = {"train": {"sources": [source]}}
    assert str(tmp_path) in refused(tiny, tmp_path / "run", Exit.BAD_DATA).cause


def test_d06_no_row_is_65_before_the_first_step(tmp_path):
    assert "has no row" in refused(small(lines(tmp_path / "rows", 0)), tmp_path / "run", Exit.BAD_DATA).cause


@pytest.mark.parametrize("processes", [1, 4])
def test_d07_fewer_samples_than_lanes_is_78_and_no_sample_is_repeated_in_silence(tmp_path, processes):
    recipe = small(lines(tmp_path / "rows", 3))
    outcome = refused(recipe, tmp_path / "run", Exit.BAD_RECIPE, f"launch.processes={processes}")
    assert "3 samples, fewer than 4 lanes" in outcome.cause


@pytest.mark.parametrize("kind", ["jsonl", "columns"])
def test_d08_uneven_files_give_every_rank_the_same_steps_and_each_sample_once(tmp_path, kind):
    source = lines(tmp_path / "rows", 10, 3, 1)
    if kind == "columns":
        source = {"kind": "columns", "path": str(columns(tmp_path / "columns", 10, 3, 0, 1)), "window": 4}
    recipe = small(source, batch={"size": 4}, budget={"epochs": 1})
    found = drill(recipe, tmp_path / "run", None, "launch.processes=4")
    assert found.outcome.code == Exit.DONE
    assert used(tmp_path / "run") == expected(recipe, tmp_path, 4, 14)
    made = [r for r in read(tmp_path / "run" / "ledger.jsonl") if r["kind"] == "step"]
    assert [record["counts"]["samples"] for record in made] == [4, 4, 4, 2]


def used(run):
    return samples_used(lineage(read(run / "ledger.jsonl")))


def expected(recipe, folder, batch, total):
    """What a run must use: (step, start, stop, digest of which sample stands at which position)."""
    made = load(recipe).recipe
    train, scale = (
        made.data.train,
        Scale(Batches(made.batch.size), getattr(made.task, "tokens_per_sample", None), total),
    )
    sources = [open_source(settings, made.seed, folder / "cache.json") for settings in train.sources]
    names = [settings.name or f"source{place}" for place, settings in enumerate(train.sources)]
    _, order = training_order(train, dict(zip(names, sources, strict=True)), made.seed, scale, 4)
    steps = []
    for step, start in enumerate(range(0, total, batch), 1):
        stop = min(start + batch, total)
        ids = order.ids(start, stop)
        steps.append((step, start, stop, f"{digest(ids, np.arange(start, stop)):016x}"))
    return steps


@pytest.mark.parametrize("how", ["content of the same size", "a file more", "other order"])
def test_d09_data_that_changed_between_attempts_is_76(tmp_path, how):
    source = lines(tmp_path / "rows", 30, 30)
    recipe, run, folder = small(source), tmp_path / "run", tmp_path / "rows"
    assert drill(recipe, run, None, "budget.steps=5").outcome.code == Exit.DONE
    if how == "content of the same size":
        text = (folder / "1.jsonl").read_text()
        (folder / "1.jsonl").write_text(text.replace("0.5", "0.6", 1))
        assert (folder / "1.jsonl").stat().st_size == len(text)
    elif how == "a file more":
        (folder / "2.jsonl").write_text('{"x": 1}\n')
    else:
        (folder / "0.jsonl").rename(folder / "2.jsonl")
    outcome = drill(recipe, run, None, "budget.steps=5").outcome
    assert outcome.code == Exit.INCOMPATIBLE
    assert "data.train.sources[0]" in outcome.cause


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["jsonl", "tokens"])
def test_d10_a_file_that_is_replaced_during_the_run_is_65_with_its_name(tiny, tmp_path, kind, workers):
    if kind == "jsonl":
        path, recipe = tmp_path / "rows" / "0.jsonl", small(lines(tmp_path / "rows", 40))
    else:
        path, recipe = tmp_path / "t.bin", tiny
        (np.arange(5000, dtype="<u2") % 256).tofile(path)
        recipe["data"] = {"train": {"sources": [{"kind": "tokens", "path": str(path)}]}}
    run = tmp_path / "run"

    def replace():
        while not (run / "struck-at").is_file():
            time.sleep(0.01)
        (tmp_path / "new").write_bytes(path.read_bytes())
        (tmp_path / "new").replace(path)

    thread = threading.Thread(target=replace)
    thread.start()
    asked = ("budget.steps=40", "data.train.prefetch=2", f"data.train.workers={workers}")
    outcome = drill(recipe, run, Fault("slow", 0, "forward", 7), *asked, again=False).outcome
    thread.join()
    assert outcome.code == Exit.BAD_DATA, outcome
    assert outcome.where["file"] == str(path)
    assert [r["code"] for r in read(run / "ledger.jsonl") if r["kind"] == "exit"] == [Exit.BAD_DATA]


def test_d11_ranks_that_see_different_data_are_78(tmp_path):
    recipe = small({"kind": "drills.data_tasks:Local"})
    outcome = refused(recipe, tmp_path / "run", Exit.BAD_RECIPE, "launch.processes=2")
    assert "data differs between ranks" in outcome.cause


@pytest.mark.parametrize("workers", [0, 1])
def test_d12_an_exception_while_a_sample_is_read_is_65_with_the_sample(tmp_path, workers):
    recipe = small({"kind": "drills.data_tasks:Bad", "row": 17})
    outcome = drill(recipe, tmp_path / "run", None, f"data.train.workers={workers}").outcome
    assert outcome.code == Exit.BAD_DATA
    assert outcome.where["sample_id"] == 17
    assert "bad sector" in outcome.cause


def test_d12_a_data_worker_that_hangs_is_84_and_the_run_goes_on_with_the_samples_of_its_step_kept(tmp_path):
    recipe = small({"kind": "drills.data_tasks:Bad", "row": 17, "hang": str(tmp_path / "hung")})
    asked = ("data.train.workers=1", "data.train.shuffle=false", "launch.hang_after=1")
    found = drill(recipe, tmp_path / "run", None, *asked)
    assert found.outcome.code == Exit.DONE
    attempt = [r for r in read(tmp_path / "run" / "ledger.jsonl") if r["kind"] == "attempt"][-1]
    assert attempt["after"]["code"] == Exit.HANG
    assert "(data)" in attempt["after"]["cause"]
    assert 17 in json.loads((tmp_path / "run" / "logs" / "suspects.json").read_text())["sample_ids"]


def test_d13_a_slow_reader_on_one_rank_changes_no_bit_and_its_time_is_in_the_ledger(tmp_path):
    quick = small({"kind": "drills.data_tasks:Rows"})
    slow = small({"kind": "drills.data_tasks:Rows", "slow": 0.01})
    slow["data"]["train"]["prefetch"] = quick["data"]["train"]["prefetch"] = 1
    traces, seconds = [], []
    for name, recipe in (("quick", quick), ("slow", slow)):
        found = drill(recipe, tmp_path / name, None, "launch.processes=2")
        assert found.outcome.code == Exit.DONE
        made = [r for r in read(tmp_path / name / "ledger.jsonl") if r["kind"] == "step"]
        seconds.append(sum(record["seconds"] + record["wait"] for record in made))
        traces.append((used(tmp_path / name), [record["losses"] for record in made]))
    assert traces[0] == traces[1]
    assert seconds[1] > 12 * 4 * 0.01  # four samples of each step are the slow rank's


@pytest.mark.parametrize(
    "change", ["seed=1", "data.train.shuffle=false", "batch.size=16", "data.train.sources[0].by=range"]
)
def test_d14_another_order_or_batch_or_part_on_resume_is_76(tmp_path, change):
    source = lines(tmp_path / "rows", 60) | {"part": "train"}
    recipe, run = small(source), tmp_path / "run"
    assert drill(recipe, run, None, "budget.steps=5").outcome.code == Exit.DONE
    before = used(run)
    outcome = drill(recipe, run, None, "budget.steps=5", change).outcome
    assert outcome.code == Exit.INCOMPATIBLE
    assert change.partition("=")[0] in outcome.cause
    assert used(run) == before


def test_d15_two_then_one_then_two_processes_are_sample_exact_with_a_blend_of_packed_documents(tiny, tmp_path):
    sources = [
        prepared(tmp_path, "books") | {"name": "books", "weight": 3, "part": "train"},
        prepared(tmp_path, "news") | {"name": "news", "weight": 2, "part": "train", "by": "range"},
    ]
    tiny["data"] = {
        "train": {"sources": sources, "stages": [{"from": {"steps": 6}, "weights": {"books": 1, "news": 4}}]}
    }
    run, budget = tmp_path / "run", "budget.steps=14"
    first = drill(tiny, run, Fault("term", 0, "forward", 4), budget, "launch.processes=2", again=False)
    assert first.outcome.code == Exit.STOPPED
    (run / "struck-0").unlink()
    second = drill(tiny, run, Fault("kill", 0, "backward", 8), budget, "launch.restarts=0", again=False)
    assert second.outcome.code == Exit.INTERNAL
    third = drill(tiny, run, Fault("kill", 1, "data", 11), budget, "launch.processes=2")
    assert third.outcome.code == Exit.DONE
    whole = reference(tiny, tmp_path / "whole", budget)
    assert used(run) == used(tmp_path / "whole") == expected(tiny, tmp_path, 8, 14 * 8)
    assert third.trace.samples == whole.samples


def test_data_workers_end_with_a_trainer_that_is_killed(tmp_path):
    recipe = recipe_of_numbers("Teacher")
    recipe["data"]["train"]["workers"] = 2
    before = {process.pid for process in psutil.process_iter() if "multiprocessing" in " ".join(cmdline(process))}
    found = drill(recipe, tmp_path / "run", Fault("kill", 0, "forward", 7))
    assert found.outcome.code == Exit.DONE
    end = time.time() + 10
    while time.time() < end:
        left = [p for p in psutil.process_iter() if "multiprocessing" in " ".join(cmdline(p)) and p.pid not in before]
        if not left:
            return
        time.sleep(0.1)
    pytest.fail(f"{left} are left")


def cmdline(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []
