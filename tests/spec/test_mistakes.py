"""Sixty seeded mistakes: each is caught, with its place, before torch is imported."""

import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load
from drivetrain.spec.tree import RecipeMistakes, dotted

LINES = """\
version: 1
name: good
seed: 0
task:
  kind: language_model
  model:
    kind: llama
    width: 32
    heads: 4
    context: 16
data:
  train:
    sources:
      - kind: text
        path: corpus
  validation:
    dogs:
      kind: text
      path: corpus
lanes: 4
batch:
  size: 16
  micro: 4
budget:
  steps: 100
optimizer:
  kind: adamw
  lr: 0.01
  groups:
    - match: embed
      lr: 0.1
schedule:
  kind: cosine
  warmup:
    steps: 10
evaluate:
  every:
    steps: 50
checkpoint:
  keep: 3
launch:
  processes: 2
""".splitlines()

# (line to replace, counted from 1; what stands there instead; path of the mistake; words of the message)
IN_FILE = [
    (3, "sede: 0", "sede", "did you mean 'seed'"),
    (8, "    widht: 32", "task.model.widht", "did you mean 'width'"),
    (10, "    contxt: 16", "task.model.contxt", "did you mean 'context'"),
    (14, "      - kidn: text", "data.train.sources[0]", "needs a kind"),
    (15, "        pth: corpus", "data.train.sources[0].pth", "did you mean 'path'"),
    (16, "  validaton:", "data.validaton", "did you mean 'validation'"),
    (20, "lane: 4", "lane", "did you mean 'lanes'"),
    (22, "  sizes: 16", "batch.sizes", "did you mean 'size'"),
    (23, "  micros: 4", "batch.micros", "did you mean 'micro'"),
    (25, "  stesp: 100", "budget.stesp", "did you mean 'steps'"),
    (28, "  learning_rate: 0.01", "optimizer.learning_rate", "unknown key"),
    (30, "    - mtch: embed", "optimizer.groups[0].mtch", "did you mean 'match'"),
    (31, "      weight_deacy: 0.1", "optimizer.groups[0].weight_deacy", "did you mean 'weight_decay'"),
    (34, "  warmpu:", "schedule.warmpu", "did you mean 'warmup'"),
    (37, "  evry:", "evaluate.evry", "did you mean 'every'"),
    (40, "  keeps: 3", "checkpoint.keeps", "did you mean 'keep'"),
    (42, "  proceses: 2", "launch.proceses", "did you mean 'processes'"),
    (5, "  kind: langauge_model", "task.kind", "did you mean 'language_model'"),
    (7, "    kind: lama", "task.model.kind", "llama"),
    (14, "      - kind: texts", "data.train.sources[0].kind", "did you mean 'text'"),
    (27, "  kind: adamz", "optimizer.kind", "did you mean 'adam'"),
    (33, "  kind: cosin", "schedule.kind", "did you mean 'cosine'"),
    (42, "  kind: slurmy", "launch.kind", "unknown kind"),
    (3, "seed: many", "seed", "valid integer"),
    (3, "seed: 1e3", "seed", "valid integer"),
    (3, "seed: true", "seed", "valid integer"),
    (3, 'seed: "3"', "seed", "valid integer"),
    (8, "    width: 12a", "task.model.width", "valid integer"),
    (8, "    width: 32.5", "task.model.width", "valid integer"),
    (22, "  size: [16]", "batch.size", "valid integer"),
    (25, "  steps: true", "budget.steps", "valid integer"),
    (25, "  steps: null", "budget", "exactly one"),
    (28, '  lr: "0.01"', "optimizer.lr", "valid number"),
    (28, "  lr: yes", "optimizer.lr", "valid number"),
    (30, "    - match: 3", "optimizer.groups[0].match", "valid string"),
    (2, "name: 7", "name", "valid string"),
    (15, "        path: {a: b}", "data.train.sources[0].path", "valid string"),
    (17, "    cats: 3\n    dogs:", "data.validation.cats", "mapping with a kind"),
    (1, "version: 2", "version", "1"),
    (28, "  lr: -1", "optimizer.lr", "greater than or equal to 0"),
    (28, "  lr: .nan", "optimizer.lr", "finite"),
    (28, "  lr: .inf", "optimizer.lr", "finite"),
    (8, "    width: 0", "task.model.width", "greater than or equal to 1"),
    (8, "    dropout: 1.0", "task.model.dropout", "less than 1"),
    (25, "  steps: 0", "budget.steps", "greater than or equal to 1"),
    (40, "  keep: 0", "checkpoint.keep", "greater than or equal to 1"),
    (25, "  tokens: 1.00000005M", "budget.tokens", "valid integer"),
    (25, "  steps: 100\n  tokens: 5", "budget", "exactly one"),
    (35, "    steps: 100", "schedule.warmup", "a warm-up of 100 steps in a budget of 100"),
    (20, "lanes: 3", "lanes", "may be 1, 2, 4, 8, 16"),
    (42, "  processes: 3", "launch.processes", "do not share 4 lanes"),
    (23, "  micro: 17", "batch.micro", "more than batch.size"),
    (9, "    heads: 5", "task.model", "not a multiple of heads"),
    (37, "  every: 50\n  batch:", "evaluate.every", ""),
    (3, "seed: 0\nseed: 1", "seed", "twice"),
    (17, "    d/gs:", "data.validation.d/gs", "names of validation sets"),
    (3, "seed: [1", "", "not YAML"),
    (27, "  kind: adamW", "optimizer.kind", "did you mean 'adamw'"),
    (20, "lr: 1e-3", "lr", "did you mean 'optimizer.lr'"),
    (33, "  decay: 5\n  kind: cosine", "schedule.decay", "there are warmup, warmup_from, read_at, floor, length, kind"),
    (
        14,
        "      - include: a\n        kind: text",
        "data.train.sources[0].include",
        "a list, such as [a] (got 'a'): patterns",
    ),
    (
        14,
        "      - {kind: jsonl, path: x, split: [0.9, 0.1]}\n      - kind: text",
        "data.train.sources[0].split",
        "has too few items (2): shares of train, validation and test",
    ),
]
ON_COMMAND_LINE = [
    ("optimizer.lrr=1", "optimizer.lrr", "did you mean 'lr'"),
    ("budget.steps=many", "budget.steps", "valid integer"),
    ("data.train.sources[1].path=x", "data.train.sources[1]", "the list has 1"),
    ("optimizer.lr", "", "key=value"),
    ("steps=50", "steps", "did you mean 'budget.steps'"),
    ("budget.epochs=1e300", "budget.epochs", "is a number beyond 64 bits"),
    ("budget.steps=1e300", "budget.steps", "is a number beyond 64 bits"),
    ("checkpoint.every.epochs=1e300", "checkpoint.every.epochs", "is a number beyond 64 bits"),
    ("budget.tokens=1.5Gb", "budget.tokens", "valid integer (got '1.5Gb'): tokens, such as 1.5B"),
    ("stop.deadline=90min", "stop.deadline", "(got '90min'): seconds, or such as 2h30m"),
    ("optimizer=sgd", "optimizer", "such as {kind: sgd}"),
    ("data.validation=corpus", "data.validation", "a mapping (got 'corpus')"),
    ("data=corpus", "data", "a mapping of train, validation, test"),
    ("init={from: x, freeze: ['(']}", "init.freeze[0]", "'(' is no regular expression: missing )"),
    ("init=[{from: x, fresh: [embed, '(']}]", "init[0].fresh[1]", "'(' is no regular expression: missing )"),
]
ALONE = {  # a lone value where a mapping is meant, and the mapping that the message proposes
    "batch=64": "{size: 64}",
    "budget=100": "{steps: 100}",
    "budget=1.5B": "{steps: 1.5B}",
    "evaluate=50": "{every: {steps: 50}}",
    "evaluate.every=50": "{steps: 50}",
    "checkpoint=100": "{every: {steps: 100}}",
    "schedule.warmup=20": "{steps: 20}",
    "average=0.999": "{decay: 0.999}",
    "profile=10": "{start: 10}",
    "guard.spike=skip": "{action: skip}",
    "stop.patience=3": "{evaluations: 3}",
    "init=runs/x": "{from: runs/x}",
    "watch=true": "{tensorboard: true}",
    "task.model=llama": "{kind: llama}",
    "optimizer.groups=[embed]": "{match: embed}",
    "optimizer.groups=[{match: x, schedule: cosine}]": "{kind: cosine}",
    "batch.ramp=[{from: 10k, size: 32}]": "{steps: 10k}",
}


def test_there_are_sixty():
    assert len(IN_FILE) + len(ON_COMMAND_LINE) >= 60


def write(folder: Path, replaced: dict[int, str]) -> Path:
    path = folder / "recipe.yaml"
    path.write_text("\n".join(replaced.get(number, line) for number, line in enumerate(LINES, start=1)) + "\n")
    return path


def test_the_recipe_without_a_mistake_is_fine(tmp_path):
    assert load(write(tmp_path, {})).recipe.batch.size == 16


@pytest.mark.parametrize(("line", "text", "path", "words"), IN_FILE, ids=[case[1].strip() for case in IN_FILE])
def test_a_mistake_in_the_file_is_caught_with_file_line_and_path(tmp_path, line, text, path, words):
    source = write(tmp_path, {line: text})
    with pytest.raises(RecipeMistakes) as caught:
        load(source)
    assert caught.value.outcome.code == Exit.BAD_RECIPE
    found = [m for m in caught.value.mistakes if dotted(m.path) == path and words in m.message]
    assert found, str(caught.value)
    assert found[0].origin.file == str(source)
    nearby = (
        range(line - 2, line + 2)
        if words in ("exactly one", "a warm-up of 100 steps in a budget of 100", "twice", "not YAML")
        else [line]
    )
    assert found[0].origin.line in nearby or "multiple of heads" in words


@pytest.mark.parametrize(("text", "path", "words"), ON_COMMAND_LINE)
def test_a_mistake_on_the_command_line_is_caught_with_its_words(tmp_path, text, path, words):
    with pytest.raises(RecipeMistakes) as caught:
        load(write(tmp_path, {}), [text])
    (mistake,) = caught.value.mistakes
    assert dotted(mistake.path) == path
    assert words in mistake.message
    assert str(mistake.origin) == f"command line: {text}"


@pytest.mark.parametrize(("text", "meant"), ALONE.items())
def test_a_lone_value_is_answered_with_the_mapping_that_was_meant(tmp_path, text, meant):
    with pytest.raises(RecipeMistakes) as caught:
        load(write(tmp_path, {}), [text])
    assert f"a mapping, such as {meant}" in caught.value.mistakes[0].message


def test_a_mistake_inside_of_what_one_kind_of_value_takes_is_the_only_one_that_is_told(tmp_path):
    with pytest.raises(RecipeMistakes) as caught:
        load(write(tmp_path, {}), ["init={from: x, freeze: ['(']}"])
    assert [dotted(mistake.path) for mistake in caught.value.mistakes] == ["init.freeze[0]"]


def test_two_sources_of_one_name_are_told_before_the_stages_that_name_none(tmp_path):
    named = "data.train.sources=[{name: b, kind: text, path: x}, {name: b, kind: text, path: y}]"
    with pytest.raises(RecipeMistakes) as caught:
        load(write(tmp_path, {}), [named, "data.train.stages=[{from: {steps: 9}, weights: {a: 1}}]"])
    assert [m.message for m in caught.value.mistakes] == [
        "another source is called 'b'",
        "no source is called 'a'; there are b, b",
    ]


def test_a_proposal_ends_the_cause_with_a_question_mark_alone():
    assert Failure(Exit.BAD_RECIPE, "no 'x'; did you mean 'y'?", "look").outcome.line().endswith("'y'? look")


def test_all_mistakes_are_told_together(tmp_path):
    source = write(tmp_path, {3: "seed: x", 22: "  sizes: 16", 27: "  kind: adamz"})
    with pytest.raises(RecipeMistakes) as caught:
        load(source, ["checkpoint.keep=none"])
    assert [m.origin.line for m in caught.value.mistakes if m.origin.file] == [3, 21, 22, 27]
    assert any(m.origin.text == "checkpoint.keep=none" for m in caught.value.mistakes)


@pytest.mark.cold
def test_c01_mistakes_end_the_command_with_78_and_without_torch(tmp_path):
    source = write(tmp_path, {3: "sede: 0"})
    code = (
        "import sys\nfrom drivetrain.cli.main import run\n"
        f"code = run(['train', {str(source)!r}, '--run', {str(tmp_path / 'run')!r}])\n"
        "assert 'torch' not in sys.modules\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 78
    first, last = done.stderr.splitlines()
    assert first == f"{source}:3: sede: unknown key 'sede'; did you mean 'seed'?"
    assert last.startswith("drivetrain: 78 bad recipe: 1 mistake")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "text",
    ["!!python/object/apply:os.system ['true']", "!!python/name:os.system", "!mine 3"],
    ids=["apply", "name", "own"],
)
def test_x05_yaml_tags_are_refused(tmp_path, text):
    source = write(tmp_path, {3: f"seed: {text}"})
    with pytest.raises(RecipeMistakes) as caught:
        load(source)
    assert caught.value.outcome.code == Exit.SECURITY
    assert caught.value.mistakes[0].origin.line == 3


@pytest.mark.parametrize("name", ["../../etc/x", "a/../b", "a\\0b", "x" * 101, "/etc/passwd", ".."])
def test_x07_a_name_cannot_leave_the_run_directory(tmp_path, name):
    with pytest.raises(RecipeMistakes) as caught:
        load(write(tmp_path, {2: f'name: "{name}"'}))
    assert caught.value.outcome.code == Exit.SECURITY


def test_aliases_that_blow_up_are_refused(tmp_path):
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 8)
    )
    (tmp_path / "bomb.yaml").write_text(bomb)
    with pytest.raises(RecipeMistakes, match="100,000"):
        load(tmp_path / "bomb.yaml")


@pytest.mark.parametrize(
    ("given", "path", "words"),
    [
        (["lanes=6", "batch.size=18", "batch.micro=3"], "lanes", "exact: 6 is no power of two"),
        (["lanes=auto", "launch.processes=3", "batch.size=24"], "launch.processes", "exact: 3 is no power of two"),
        (["batch.micro=8"], "batch.micro", "exact: 8 would span 4 lanes of 4 samples; 1, 2, 4 would not"),
        (["batch.micro=3"], "batch.micro", "1, 2, 4 would not"),
        (["batch.ramp=[{from: {steps: 9}, size: 24}]"], "batch.micro", "exact: 4 would span 4 lanes of 2 samples"),
        (["lanes=auto", "batch.micro=16"], "batch.micro", "lanes of 2 processes of 8 samples"),
        (["compile=true"], "compile", "exact: the compiler"),
        (["device=mps"], "device", "exact: there are no deterministic kernels"),
    ],
)
def test_what_does_not_go_with_exact_is_a_mistake(tmp_path, given, path, words):
    with pytest.raises(RecipeMistakes) as caught:
        load(write(tmp_path, {}), ["exact=true", *given])
    assert [m for m in caught.value.mistakes if dotted(m.path) == path and words in m.message], str(caught.value)
    load(write(tmp_path, {}), ["exact=true"])


@pytest.mark.parametrize(
    ("given", "path", "words"),
    [
        ("exact=true", "exact", "adds rows up as processes hold them"),
        ("optimizer.clip=1.0", "optimizer.clip", "knows no row's gradient"),
        ("statistics={every: {steps: 5}}", "statistics.gradients", "knows no row's gradient"),
        ("parameters.dtype=bf16", "parameters.dtype", "keeps fp32 rows"),
        ("embeddings.optimizer={kind: adam}", "embeddings.optimizer.kind", "by sgd, adagrad or rowwise_adagrad"),
        (
            "embeddings.optimizer={kind: sgd, weight_decay: 0.1}",
            "embeddings.optimizer.weight_decay",
            "does not have it for all",
        ),
        (
            "embeddings.groups=[{match: a, optimizer: {kind: lars}}]",
            "embeddings.groups[0].optimizer.kind",
            "by sgd, adagrad or rowwise_adagrad",
        ),
        ("embeddings.hold={users: each}", "embeddings.hold.users", "holds each row once"),
    ],
)
def test_what_does_not_go_with_tables_on_torchrec_is_a_mistake(tmp_path, given, path, words):
    fine = ["optimizer.clip=null", "embeddings.backend=torchrec"]
    with pytest.raises(RecipeMistakes) as caught:
        load(write(tmp_path, {}), [*fine, given])
    assert [m for m in caught.value.mistakes if dotted(m.path) == path and words in m.message], str(caught.value)
    load(write(tmp_path, {}), fine)


@pytest.mark.parametrize(
    ("optimizer", "axis", "path"),
    [
        ("{kind: adafactor}", "shard", "optimizer.kind"),
        ("{kind: galore, base: {kind: adafactor}}", "shard", "optimizer.base.kind"),
        ("{kind: galore}", "tensor", "optimizer.kind"),
        ("{kind: torchao_adamw8bit}", "tensor", "optimizer.kind"),
        ("{kind: 'torch.optim:NAdam', lr: 0.1}", "shard", "optimizer.kind"),
    ],
)
def test_an_optimizer_that_cannot_move_a_part_of_a_tensor_is_a_mistake_on_a_mesh_that_cuts_it(optimizer, axis, path):
    pytest.importorskip("torch")
    from loop.test_guard import recipe as guarded_recipe

    given = [f"optimizer={optimizer}", "launch.processes=2"]
    load(guarded_recipe(), given)
    with pytest.raises(RecipeMistakes) as caught:
        load(guarded_recipe(), [*given, f"parallel.{axis}=2"])
    assert path in [dotted(mistake.path) for mistake in caught.value.mistakes], str(caught.value)


@pytest.mark.parametrize("kind", ["adamw", "sgd", "muon", "'torch.optim:NAdam', elementwise: true"])
def test_one_that_can_is_none(kind):
    pytest.importorskip("torch")
    from loop.test_guard import recipe as guarded_recipe

    load(guarded_recipe(), [f"optimizer={{kind: {kind}, lr: 0.1}}", "launch.processes=2", "parallel.shard=2"])


@pytest.mark.parametrize("path", ["activations", "networks.model.activations"])
def test_the_compiler_chooses_activations_by_itself(tmp_path, path):
    with pytest.raises(RecipeMistakes, match="chooses by itself"):
        load(write(tmp_path, {}), ["compile=true", f"{path}=recompute"])
    with pytest.raises(RecipeMistakes, match="keeps what products make"):
        load(write(tmp_path, {}), ["compile={scope: block}", f"{path}=selective"])
    load(write(tmp_path, {}), ["compile={scope: block}", f"{path}=recompute"])
    load(write(tmp_path, {}), [f"{path}=recompute"])


@pytest.mark.parametrize(("mode", "words"), [("reduce-overhead", "CUDA"), ("max-autotune", "the fastest")])
def test_modes_of_the_compiler_that_do_not_run_here_are_refused(tmp_path, mode, words):
    with pytest.raises(RecipeMistakes, match=words):
        load(write(tmp_path, {}), [f"compile={{mode: {mode}}}"])


def test_kernels_are_kinds_by_patterns(tmp_path):
    with pytest.raises(RecipeMistakes, match=r"kernels: is a mapping from names to kinds \(got \[\]\)"):
        load(write(tmp_path, {}), ["kernels=[]"])
    with pytest.raises(RecipeMistakes, match=r"kernels.norm: is a mapping with a kind"):
        load(write(tmp_path, {}), ["kernels={norm: 'a:b'}"])
    kernels = load(write(tmp_path, {}), ["kernels={norm: {kind: 'a:B', tolerance: 0.1, eps: 2}}"]).recipe.kernels
    assert kernels["norm"].own.settings == {"eps": 2}
    assert kernels["norm"].tolerance == 0.1


@pytest.mark.parametrize("given", ["activations=all", "activations={'layers.*': some}"])
def test_activations_are_one_of_three_words(tmp_path, given):
    with pytest.raises(RecipeMistakes) as caught:
        load(write(tmp_path, {}), [given])
    assert next(iter(caught.value.mistakes)).path[0] == "activations", str(caught.value)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("guard.skip=['12-10']", "ends before it begins"),
        ("guard.spike={window: 1}", "greater than or equal to 4"),
        ("statistics={every: {tokens: 500}}", "no fixed number of tokens"),
        ("batch.ramp=[{from: {tokens: 500}, size: 16}]", "no fixed number of tokens"),
    ],
)
def test_what_could_never_act_is_a_mistake(override, words):
    from loop.test_guard import recipe as guarded_recipe  # here: it imports torch, which the others do without

    with pytest.raises(RecipeMistakes, match=words):
        load(guarded_recipe(), [override])


@pytest.mark.parametrize(
    ("train", "scored", "refused"),
    [
        ({}, {"part": "validation"}, True),
        ({"part": "train"}, {}, True),
        ({"part": "train", "holdout": 0.1}, {"part": "validation", "holdout": 0.2}, True),
        ({"part": "train"}, {"part": "validation"}, False),
        ({"part": "train"}, {"part": "train"}, False),
        ({}, {}, False),
    ],
)
def test_training_and_validation_that_have_samples_in_common_are_a_mistake(tiny, corpus, train, scored, refused):
    source = {"kind": "text", "path": str(corpus)}
    tiny["data"] = {"train": {"sources": [source | train]}, "validation": {"dogs": source | scored}}
    if refused:
        with pytest.raises(RecipeMistakes, match="samples in common"):
            load(tiny)
    else:
        load(tiny)


OWN = {"name": "own", "batch": {"size": 8}, "budget": {"steps": 4}}


class Inner:
    """Stands for a class of the user's own."""


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Mine", "a class of your own is 'module:Mine'"),
        ("mine.tasks.Mine", "a class of your own is 'mine.tasks:Mine'"),
        (Inner, f"the class Inner: write '{__name__}:Inner'"),
    ],
)
def test_a_class_without_its_module_is_one_mistake_with_what_to_write(kind, words):
    source = {"kind": "mine:Rows"}
    for task, where in (({"kind": kind}, source), ({"kind": "mine:Task"}, {"kind": kind, "size": 3})):
        with pytest.raises(RecipeMistakes) as caught:
            load({**OWN, "task": task, "data": {"train": {"sources": [where]}}})
        (mistake,) = caught.value.mistakes
        assert words in mistake.message
        assert mistake.path[-1] == "kind"


def test_a_class_within_a_function_is_told_to_be_moved():
    class Local:
        pass

    with pytest.raises(RecipeMistakes, match="move it out of where it is defined"):
        load({**OWN, "task": {"kind": Local}, "data": {"train": {"sources": [{"kind": "mine:Rows"}]}}})
