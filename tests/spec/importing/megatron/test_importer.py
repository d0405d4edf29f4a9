"""What becomes of Megatron-LM's arguments: each is taken, listed or needs nothing."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.importing.compose import compose
from drivetrain.spec.importing.findings import Findings, Source
from drivetrain.spec.importing.importers import importer_of, require_sound
from drivetrain.spec.importing.megatron.arguments import arguments
from drivetrain.spec.importing.megatron.importer import Megatron
from drivetrain.spec.importing.megatron.table import PREFIXES, RULES
from drivetrain.spec.load import load
from drivetrain.spec.tree import to_data

SCRIPT = """#!/bin/bash
GPUS_PER_NODE=8
NUM_NODES=2   # change it
DATA=${3:-"/data/books_text_document"}
if [ "$SMALL" = 1 ]; then LAYERS=2; else LAYERS=12; fi
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
)
MODEL_ARGS=(
    --num-layers 12 --hidden-size 768
    --num-attention-heads 12  # heads
    # --num-experts 8
    --group-query-attention
    --num-query-groups 4
    --seq-length 1024
    --position-embedding-type rope
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --swiglu
    --normalization RMSNorm
    --disable-bias-linear
    "--vocab-size 32000"
)
TRAINING="--micro-batch-size 2 \\
    --global-batch-size=64 \\
    --train-iters 1000 --lr 3e-4 --min-lr 3e-5 --lr-decay-style cosine --lr-warmup-fraction .01 --bf16"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${MODEL_ARGS[@]} $TRAINING \\
    --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer \\
    --data-path 0.7 $DATA 0.3 /data/code_text_document --split 98,2,0 \\
    --eval-interval 100 --eval-iters 5 --save-interval 500 --save $CHECKPOINTS > log.txt
"""


def found_in(text, processes=None):
    return Megatron().read(Source("train.sh", text, processes))


def data_of(text):
    return to_data(arguments(text, Findings(Source("train.sh", text))))


def composed_of(text, processes=None):
    findings = found_in(text, processes)
    require_sound(findings)
    return findings, compose(findings, Path("new.yaml"), None)


def recipe_of(text, tmp_path, processes=None):
    findings, composed = composed_of(text, processes)
    assert not composed.gaps, composed.gaps
    path = tmp_path / "new.yaml"
    path.write_text(composed.text)
    return findings, load(str(path)).recipe


def mistakes_of(text):
    with pytest.raises(Failure) as failed:
        require_sound(found_in(text))
    assert failed.value.outcome.code == Exit.BAD_DATA
    return failed.value.details


def test_a_script_becomes_a_recipe_that_passes_its_check(tmp_path):
    findings, recipe = recipe_of(SCRIPT, tmp_path)
    model = recipe.task.model
    assert (model.depth, model.width, model.heads, model.kv_heads, model.context) == (12, 768, 12, 4, 1024)
    assert (model.hidden, model.vocabulary, model.tied) == (2048, 32000, True)
    assert (recipe.batch.size, recipe.batch.micro, recipe.budget.steps) == (64, 2, 1000)
    assert (recipe.optimizer.kind, recipe.optimizer.lr, recipe.optimizer.betas) == ("adamw", 3e-4, (0.9, 0.999))
    assert (recipe.schedule.kind, recipe.schedule.warmup.steps) == ("cosine", 10)
    assert recipe.schedule.floor == pytest.approx(0.1)
    assert (recipe.precision, recipe.seed, recipe.launch.processes) == ("bf16", 1234, 16)
    assert (recipe.parallel.tensor, recipe.parallel.shard, recipe.parallel.sequence) == (2, "auto", True)
    first, second = recipe.data.train.sources
    assert (first.path, first.weight, second.path, second.weight) == (
        *("/data/books_text_document", 0.7),
        *("/data/code_text_document", 0.3),
    )
    assert (first.part, first.split, first.by) == ("train", (0.98, 0.02, 0.0), "range")
    assert [each.part for each in recipe.data.validation.values()] == ["validation", "validation"]
    assert recipe.evaluate.budget.samples == 5 * 64
    assert not findings.lost


def test_lines_are_those_of_the_script():
    lines = SCRIPT.split("\n")
    for taken in found_in(SCRIPT).taken:
        if taken.given:
            assert taken.key in lines[taken.line - 1]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("--num-layers 12 --bf16", {"--num-layers": 12, "--bf16": True}),
        ("--num-layers 12\nls -l\n", {"--num-layers": 12}),
        ("--num-layers=12", {"--num-layers": 12}),
        ("A=(\n --data-path 1\n a_document\n)\n--bf16", {"--data-path": [1, "a_document"], "--bf16": True}),
        ('A="--lr 1e-3 --fp16"\nrun $A', {"--lr": 1e-3, "--fp16": True}),
        ("N=4\nrun --num-layers $N --lr ${RATE:-0.1}", {"--num-layers": 4, "--lr": 0.1}),
        ("N=4\nN=5\nrun --num-layers $N", {"--num-layers": "$N"}),
        ("run --save $(date +%s)/a --load `pwd`", {"--save": "$(date +%s)/a", "--load": "`pwd`"}),
        ("run --split 'a b' # --num-layers 3", {"--split": "a b"}),
        ("A=$B\nB=$A\nrun --save $A", {"--save": "$A"}),
        ("MODEL_ARGS:\n  --num-layers: 12\n  --bf16: true\n  --fp16: false\n", {"--num-layers": 12, "--bf16": True}),
        ("ENV:\n  A: 1\nMODEL_ARGS:\n  --recompute-modules: [a, b]\n", {"--recompute-modules": ["a", "b"]}),
        ("torchrun --nproc_per_node 8 pretrain_gpt.py --bf16", {"--nproc_per_node": 8, "--bf16": True}),
    ],
)
def test_arguments_are_read_from_scripts_and_files(text, wanted):
    found = data_of(text)
    if wanted == {"--save": "$A"}:  # names that stand for each other: whichever is left, it stays open
        assert found["--save"].startswith("$")
    else:
        assert found == wanted


def test_what_the_shell_fills_in_is_left_to_the_user():
    text = SCRIPT.replace("--lr 3e-4", "--lr $LR").replace("GPUS_PER_NODE=8", "GPUS_PER_NODE=$1")
    _, composed = composed_of(text)
    assert {gap.path for gap in composed.gaps} == {("optimizer", "lr"), ("schedule", "floor"), ("launch", "processes")}


def test_an_argument_that_is_given_twice_with_something_else_is_told():
    lost = found_in(SCRIPT + "run --num-layers 24\n").lost
    assert [told.key for told in lost] == ["--num-layers"]
    assert "given again in line 32" in lost[0].why


def test_a_decoder_of_another_kind_is_told_part_by_part():
    text = "--num-layers 2 --hidden-size 64 --num-attention-heads 2 --seq-length 8 --micro-batch-size 1 --lr 1e-4"
    lost = {told.key for told in found_in(text).lost}
    assert {"--normalization", "--swiglu", "--disable-bias-linear", "--attention-dropout"} <= lost
    assert "--position-embedding-type" in lost


def test_sizes_of_groups_are_axes_of_the_mesh(tmp_path):
    text = SCRIPT.replace("--sequence-parallel", "--sequence-parallel --context-parallel-size 2")
    _, recipe = recipe_of(text, tmp_path, processes=8)
    assert str(recipe.parallel.sizes(8)) == "shard 2 x context 2 x tensor 2"


def test_experts_are_taken(tmp_path):
    experts = (
        "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 256 --moe-shared-expert-intermediate-size 512"
        " --moe-aux-loss-coeff 1e-2 --moe-router-enable-expert-bias --moe-layer-freq ([0]*3+[1]*9) --moe-grouped-gemm"
    )
    findings, recipe = recipe_of(SCRIPT.replace("--bf16", f"--bf16 {experts}"), tmp_path)
    found = recipe.task.model.experts
    assert (found.count, found.top_k, found.hidden, found.shared, found.dense) == (8, 2, 256, 2, 3)
    assert (found.balance.loss, found.balance.rate) == (1e-2, 1e-3)
    assert [told.key for told in findings.lost] == ["--tensor-model-parallel-size"]


def test_a_batch_that_grows_counts_in_tokens(tmp_path):
    text = SCRIPT.replace("--global-batch-size=64", "--step-batch-size-schedule '0:64 1M:128 2.5M:256'")
    _, recipe = recipe_of(text, tmp_path)
    assert recipe.batch.size == 64
    assert [(each.from_.tokens, each.size) for each in recipe.batch.ramp] == [(10**6, 128), (2_500_000, 256)]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("--bf16", "--bf16 --fp16"), "--bf16 is given, too"),
        (("--train-iters 1000", "--train-iters 1000 --train-samples 5"), "--train-iters is given, too"),
        (("=64", "=63"), "63 is no multiple"),
        (("cosine", "sine"), "is one of constant, linear, cosine"),
        (("--lr-warmup-fraction .01", "--lr-warmup-samples 7"), "is in samples, and the run's length is in steps"),
        (("98,2,0", "most"), "is up to three shares"),
        (("--num-layers 12", "--num-layers many"), "whole number"),
        (("--eval-interval 100", "--eval-interval -3"), "whole number"),
    ],
)
def test_a_wrong_value_is_a_mistake_with_its_line(change, told):
    details = mistakes_of(SCRIPT.replace(*change))
    assert told in details
    assert details.startswith("train.sh:")


def test_the_file_is_known_by_its_words():
    assert importer_of(Source("a", SCRIPT), None)[0] == "megatron"


def test_no_argument_is_a_mistake():
    assert "has no argument" in mistakes_of("echo hello\n")


VALUES = st.sampled_from(
    ["", "1", "0", "-1", "0.5", "1e-3", "none", "full", "a b", "$X", "1 a 2 b", "'", "WSD", "adam"]
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from([*RULES, *[f"{prefix}x" for prefix, _ in PREFIXES], "--nobody"]), VALUES))
def test_something_is_said_of_every_argument_and_nothing_raises(given_arguments):
    text = "\n".join(f"{name} {value}" for name, value in given_arguments.items())
    findings = found_in(text)
    said = set(findings.keys) | {mistake.path[0] for mistake in findings.mistakes if mistake.path}
    assert set(data_of(text)) <= said
    with suppress(Failure):
        require_sound(findings)
        compose(findings, Path("new.yaml"), None)


@settings(max_examples=200, deadline=None)
@given(st.text("-ab =\n\\'\"$(){}[]#`;&|<>%1", max_size=60))
def test_any_text_is_read_without_an_exception(text):
    found_in(text)
