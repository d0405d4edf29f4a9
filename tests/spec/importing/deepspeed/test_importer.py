"""What becomes of DeepSpeed's keys: each is taken, listed or needs nothing; and the numbers are DeepSpeed's."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.optim.schedules import Horizon, build_factor
from drivetrain.spec.amount import Scale
from drivetrain.spec.batches import Batches
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.importing.compose import compose
from drivetrain.spec.importing.deepspeed.importer import DeepSpeed
from drivetrain.spec.importing.deepspeed.table import OPTIMIZERS, SCHEDULES, TOP, ZERO
from drivetrain.spec.importing.findings import FILL_IN, Source
from drivetrain.spec.importing.importers import require_sound
from drivetrain.spec.importing.rules import Nested, Switched
from drivetrain.spec.load import load
from drivetrain.spec.parse import parse
from drivetrain.spec.tree import Origin, to_data

NEW = Path("new.yaml")
BATCH = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4}


def found_in(data, processes=None):
    text = data if isinstance(data, str) else json.dumps(data, indent=1)
    return DeepSpeed().read(Source("ds.json", text, processes))


def recipe_of(data, processes=None):
    """The recipe as it is written, and checked, with something in each place that is to be filled in."""
    findings = found_in(data, processes)
    require_sound(findings)
    composed = compose(findings, NEW, None)
    tree = to_data(parse(composed.text, Origin("file", "new.yaml", 1), []))
    for gap in composed.gaps:
        node = tree
        for part in gap.path[:-1]:
            node = node[part]
        assert node[gap.path[-1]] == FILL_IN
        node[gap.path[-1]] = gap.stand_in
    return load(tree).recipe


def gaps_of(data, processes=None):
    findings = found_in(data, processes)
    require_sound(findings)
    return {".".join(map(str, gap.path)) for gap in compose(findings, NEW, None).gaps}


def lost_of(data):
    return {told.key: told.line for told in found_in(data).lost}


# Nothing is dropped in silence.

VALUES = [
    True,
    False,
    None,
    0,
    1,
    2,
    3,
    16,
    -1,
    1.5,
    1e-3,
    5e8,
    "auto",
    "none",
    "cpu",
    "fp32",
    "x",
    [],
    [0.9, 0.95],
    {},
]
ANY = st.sampled_from(VALUES)


def objects_of(rules):
    parts = {}
    for name, rule in rules.items():
        parts[name] = ANY
        if isinstance(rule, Nested):
            parts[name] = ANY | objects(rule.rules)
        elif isinstance(rule, Switched):
            parts[name] = ANY | objects({"enabled": None, **rule.rules})
    return parts


def objects(rules):
    return st.fixed_dictionaries({}, optional=objects_of(rules))


def typed(kinds, others):
    chosen = []
    for name, kind in kinds.items():
        chosen.append(st.fixed_dictionaries({"type": st.just(name), "params": objects(kind.params)}))
    other = st.fixed_dictionaries(
        {"type": st.sampled_from(others)}, optional={"params": objects({"lr": None, "x": None})}
    )
    return st.one_of(*chosen, other)


SECTIONS = {
    **objects_of(TOP),
    "zero_optimization": objects(ZERO) | st.booleans(),
    "optimizer": typed(OPTIMIZERS, ["Lamb", "OneBitAdam", "Lion", "NAdam", "adam"]),
    "scheduler": typed(SCHEDULES, ["LRRangeTest", "StepLR"]),
    **{name: st.sampled_from([1, 2, 4, 8, 64, "auto"]) for name in BATCH},
}
CONFIGS = st.lists(st.sampled_from(sorted(SECTIONS)), max_size=4, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: SECTIONS[name] for name in names})
)


def leaves(data, path=()):
    if not isinstance(data, dict):
        yield path
        return
    for key, part in data.items():  # an empty object says nothing
        yield from leaves(part, (*path, key))


def mistakes_in(data, processes):
    try:
        recipe_of(data, processes)
    except Failure as failure:
        return failure
    return None


def require_all_told(data, findings):
    for path in leaves(data):
        names = [".".join(path[:length]) for length in range(1, len(path) + 1)]
        assert findings.keys & set(names), path
    unknown = [told.key for told in findings.lost if "no such key" in told.why]
    assert unknown in ([], ["optimizer.params.x"], ["scheduler.params.x"])


@settings(max_examples=100, deadline=None)
@given(CONFIGS, st.sampled_from([None, 1, 2, 16]))
def test_every_known_key_is_taken_or_listed_or_needs_nothing_and_what_is_written_is_a_recipe(data, processes):
    failure = mistakes_in(data, processes)
    if failure is None:
        require_all_told(data, found_in(data, processes))
        return
    assert failure.outcome.code == Exit.BAD_DATA
    lines = len(json.dumps(data, indent=1).splitlines())
    assert all(re.search(r"^(ds.json:(\d+)|command line): ", line) for line in failure.details.splitlines())
    assert all(int(line) <= lines for line in re.findall(r"^ds.json:(\d+)", failure.details, re.MULTILINE))


def keys_of(rules, prefix=()):
    """Every key of a table, with those of the objects that it is in."""
    for name, rule in rules.items():
        yield (*prefix, name), {}
        if isinstance(rule, Nested | Switched):
            yield from keys_of(rule.rules, (*prefix, name))


def typed_keys(section, kinds, needed):
    for named, kind in kinds.items():
        for name in kind.params:
            yield (section, "params", name), {"type": named, "params": needed}


NEEDED = {"total_num_steps": 9000, "cycle_min_lr": 1, "cycle_max_lr": 2}
CASES = [
    *keys_of({**TOP, "zero_optimization": Nested(ZERO)}),
    *typed_keys("optimizer", OPTIMIZERS, {}),
    *typed_keys("scheduler", SCHEDULES, NEEDED),
]


def alone(key, value, beside):
    """A file with this key, and what has to be beside it so that it counts."""
    if len(key) == 1:
        return {key[0]: value}
    inner = alone(key[1:], value, {})
    if beside:
        params = {
            name: part
            for name, part in beside["params"].items()
            if name in (SCHEDULES | OPTIMIZERS)[beside["type"]].params
        }
        return {key[0]: {"type": beside["type"], "params": params | inner["params"]}}
    return {key[0]: {"enabled": True, **inner}}


@pytest.mark.parametrize(("key", "beside"), CASES, ids=lambda part: ".".join(part))
def test_a_key_alone_is_told_whatever_its_value(key, beside):
    for value in VALUES:
        findings = found_in(alone(key, value, beside))
        names = {".".join(key[:length]) for length in range(1, len(key) + 1)}
        wrong = {".".join(map(str, mistake.path)) for mistake in findings.mistakes}
        assert value == {} or names & {*findings.keys, *wrong}, value


@given(CONFIGS)
def test_the_line_of_each_finding_is_that_of_its_key(data):
    written = json.dumps(data, indent=1).splitlines()
    findings = found_in(data)
    for told in [*findings.taken, *findings.lost, *findings.spared]:
        last = told.key.rpartition(".")[2]
        if getattr(told, "given", True) and "is left out" not in getattr(told, "why", ""):
            assert f'"{last}":' in written[told.line - 1], told


@pytest.mark.parametrize(
    ("data", "key", "line"),
    [
        ('{"train_batch_size": 1,\n"zero_optimisation": {"stage": 1}}', "zero_optimisation", 2),
        ('{"zero_optimization": {\n"stage": 1,\n"stage3_max_live": 3}}', "zero_optimization.stage3_max_live", 3),
        ('{"optimizer": {"type": "Adam",\n"adam_w_mode": true}}', "optimizer.adam_w_mode", 2),
        ('{"optimizer": {"type": "Adam", "params": {\n"momentum": 0.9}}}', "optimizer.params.momentum", 2),
        ('{"scheduler": {"type": "WarmupLR", "params": {\n"warm": 1}}}', "scheduler.params.warm", 2),
    ],
)
def test_a_key_that_deepspeed_does_not_know_is_listed(data, key, line):
    assert lost_of(data)[key] == line


def test_what_is_near_an_unknown_key_is_told():
    (told,) = found_in({"zero_optimisation": {}}).lost
    assert told.why.endswith("did you mean 'zero_optimization'?")


@pytest.mark.parametrize(
    ("data", "lost"),
    [
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}, ["zero_optimization.offload_param"]),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "none"}}}, []),
        ({"zero_optimization": {"stage": 1, "cpu_offload": False}}, []),
        (
            {"zero_optimization": {"stage": 3, "zero_quantized_weights": True}},
            ["zero_optimization.zero_quantized_weights"],
        ),
        ({"gradient_allreduce_op": "mean", "prescale_gradients": True}, []),
        ({"communication_data_type": "fp16"}, ["communication_data_type"]),
        ({"autotuning": {"enabled": True, "fast": False}}, ["autotuning"]),
        ({"autotuning": {"enabled": False, "fast": False}}, []),
        ({"activation_checkpointing": {"partition_activations": True}}, ["activation_checkpointing"]),
        ({"elasticity": {"enabled": True}}, ["elasticity"]),
        ({"pipeline": {"stages": 2}}, ["pipeline"]),
        ({"fp16": {"enabled": True, "hysteresis": 1}}, []),
        ({"fp16": {"enabled": True}}, ["fp16.hysteresis"]),
        ({"fp16": {"enabled": False, "hysteresis": 4}}, []),
        ({"fp16": {"enabled": True, "loss_scale": 128}}, []),
    ],
)
def test_what_is_asked_for_and_is_not_here_is_listed_and_what_is_off_is_not(data, lost):
    assert list(lost_of(data)) == lost


# The batch.


@pytest.mark.parametrize(
    ("size", "micro", "accumulation", "processes", "expected"),
    [
        (64, 4, 4, None, (64, 4)),
        (64, 4, 4, 4, (64, 4)),
        (64, 4, None, None, (64, 4)),
        (64, 4, None, 2, (64, 4)),
        (64, None, 4, 2, (64, 8)),
        (64, None, 1, None, (64, None)),
        (64, None, None, 4, (64, None)),
        (None, 4, 8, 2, (64, 4)),
        (None, 4, None, 2, (8, 4)),
    ],
)
def test_the_batch_is_what_deepspeed_makes_of_it(size, micro, accumulation, processes, expected):
    given_ = dict(zip(BATCH, (size, micro, accumulation), strict=True))
    data = {key: value for key, value in given_.items() if value is not None}
    batch = recipe_of(data, processes).batch
    assert (batch.size, batch.micro) == expected
    assert not {"batch.size", "batch.micro"} & gaps_of(data, processes)


@pytest.mark.parametrize(
    ("data", "open_"),
    [
        ({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8}, {"batch.size"}),
        ({"train_micro_batch_size_per_gpu": 4}, {"batch.size"}),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 8}, {"batch.micro"}),
        ({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}, {"batch.size", "batch.micro"}),
        ({"train_batch_size": 64, "gradient_accumulation_steps": "auto"}, {"batch.micro"}),
        ({}, {"batch.size"}),
    ],
)
def test_what_follows_from_the_number_of_processes_only_is_left_open(data, open_):
    assert {path for path in gaps_of(data) if path.startswith("batch")} == open_


@pytest.mark.parametrize(
    ("data", "processes", "told"),
    [
        (BATCH, 2, "ds.json:2: train_batch_size: 64 is not train_micro_batch_size_per_gpu 4 x "
                   "gradient_accumulation_steps 4 x 2 processes = 32"),
        (BATCH, 3, "is no multiple of"),
        (BATCH | {"train_micro_batch_size_per_gpu": 5}, None, "no multiple of train_micro_batch_size_per_gpu 5 x"),
        ({"train_batch_size": 10, "gradient_accumulation_steps": 4}, None, "10 is no multiple of"),
        ({"train_batch_size": 0}, None, "is a whole number of at least 1, not 0"),
        ({"train_batch_size": "64"}, None, "not '64'"),
        ({"train_batch_size": True}, None, "not True"),
        ({"tensor_parallel": {"autotp_size": 2}, "train_batch_size": 8}, 3, "2 does not divide 3 processes"),
    ],
)  # fmt: skip
def test_batches_that_no_processes_make_are_mistakes_with_their_lines(data, processes, told):
    with pytest.raises(Failure) as failure:
        recipe_of(data, processes)
    assert failure.value.outcome.code == Exit.BAD_DATA
    assert told in failure.value.details


def test_processes_that_split_layers_read_the_same_samples():
    data = {"train_micro_batch_size_per_gpu": 4, "tensor_parallel": {"autotp_size": 2}}
    recipe = recipe_of(data, 8)
    assert (recipe.batch.size, recipe.parallel.tensor, recipe.launch.processes) == (16, 2, 8)


# ZeRO.


@pytest.mark.parametrize(
    ("zero", "replicate", "shard"),
    [
        ({"stage": 0}, "auto", 1),
        ({"stage": 1}, 1, "auto"),
        ({"stage": 2}, 1, "auto"),
        ({"stage": 3}, 1, "auto"),
        ({"stage": 3, "zero_hpz_partition_size": 4}, "auto", 4),
        ({"stage": 3, "mics_shard_size": 8}, "auto", 8),
        ({"stage": 3, "mics_shard_size": -1}, 1, "auto"),
        ({"stage": 3, "zero_hpz_partition_size": 1}, 1, "auto"),
        ({"stage": 2, "zero_hpz_partition_size": 4}, 1, "auto"),
        (True, 1, "auto"),
        (False, "auto", 1),
    ],
)
def test_zero_is_a_mesh(zero, replicate, shard):
    recipe = recipe_of({"train_batch_size": 64, "zero_optimization": zero})
    assert (recipe.parallel.replicate, recipe.parallel.shard) == (replicate, shard)


def test_a_mesh_of_fixed_size_asks_how_many_processes_there_are():
    zero = {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 4}, "train_batch_size": 24}
    assert "launch.processes" in gaps_of(zero)
    assert "launch.processes" not in gaps_of(zero, 8)
    mesh = recipe_of(zero, 8)
    sizes = mesh.parallel.sizes(8)
    assert (sizes.replicate, sizes.shard) == (2, 4)
    with pytest.raises(Failure) as failure:
        recipe_of(zero, 6)
    assert "shard 4 takes a multiple of 4 processes, and there are 6" in failure.value.details


# The optimizer.


@pytest.mark.parametrize(
    ("named", "params", "kind"),
    [
        ("Adam", {}, "adamw"),
        ("Adam", {"adam_w_mode": True}, "adamw"),
        ("Adam", {"adam_w_mode": False}, "adam"),
        ("AdamW", {"adam_w_mode": False}, "adamw"),
        ("adamw", {}, "adamw"),
        ("Adagrad", {}, "adagrad"),
        ("Muon", {}, "muon"),
        ("SGD", {}, "sgd"),
        ("RMSprop", {}, "rmsprop"),
    ],
)
def test_adam_is_adamw_unless_it_says_that_it_is_not(named, params, kind):
    recipe = recipe_of({"train_batch_size": 64, "optimizer": {"type": named, "params": params}})
    assert recipe.optimizer.kind == kind


def test_the_optimizers_numbers_are_those_of_the_file_and_of_deepspeed_where_it_has_none():
    params = {"lr": 2e-4, "betas": [0.8, 0.99], "eps": 1e-7, "weight_decay": 0.3}
    optimizer = recipe_of({"train_batch_size": 64, "optimizer": {"type": "AdamW", "params": params}}).optimizer
    assert (optimizer.lr, optimizer.betas, optimizer.eps, optimizer.weight_decay) == (2e-4, (0.8, 0.99), 1e-7, 0.3)
    bare = recipe_of({"train_batch_size": 64, "optimizer": {"type": "AdamW"}}).optimizer
    # Ours decays by 0.01 where nobody says so, DeepSpeed's does not.
    assert (bare.lr, bare.betas, bare.eps, bare.weight_decay) == (1e-3, (0.9, 0.999), 1e-8, 0.0)


@pytest.mark.parametrize(
    ("params", "rates"),
    [
        ({}, (0.02, 3e-4)),
        ({"lr": 0.1}, (0.1, 0.1)),
        ({"lr": 0.1, "muon_lr": 0.2}, (0.2, 0.1)),
        ({"lr": 0.1, "adam_lr": 0.3}, (0.1, 0.3)),
        ({"muon_lr": 0.2, "adam_lr": 0.3}, (0.2, 0.3)),
        ({"muon_lr": 0.2}, (0.2, 3e-4)),
    ],
)
def test_muons_rates_fall_back_to_the_common_one(params, rates):
    optimizer = recipe_of({"train_batch_size": 64, "optimizer": {"type": "Muon", "params": params}}).optimizer
    assert (optimizer.lr, optimizer.adamw_lr) == rates
    assert optimizer.adjust == "original"


def test_an_optimizer_that_is_not_here_is_listed_and_its_place_left_open():
    data = {"train_batch_size": 64, "optimizer": {"type": "Lamb", "params": {"lr": 0.1, "max_coeff": 1}}}
    assert list(lost_of(data)) == ["optimizer.type", "optimizer.params.max_coeff"]
    assert "optimizer.kind" in gaps_of(data)
    assert recipe_of(data).optimizer.lr == 0.1


@pytest.mark.parametrize(
    ("given_", "clip"), [({"gradient_clipping": 0.5}, 0.5), ({"gradient_clipping": 0}, None), ({}, 1.0)]
)
def test_gradients_are_clipped_as_there(given_, clip):
    assert recipe_of({"train_batch_size": 64, "optimizer": {"type": "SGD"}, **given_}).optimizer.clip == clip


def test_a_norm_among_the_optimizers_parameters_is_a_mistake_as_there():
    with pytest.raises(Failure) as failure:
        recipe_of({"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1.0}}})
    assert "write gradient_clipping" in failure.value.details


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"lr": -1}, "ds.json:6: optimizer.lr: Input should be greater than or equal to 0"),
        ({"lr": "fast"}, "ds.json:6: optimizer.lr: Input should be a valid number (got 'fast')"),
        ({"betas": [0.9]}, "ds.json:6: optimizer.betas"),
        ({"betas": [0.9, 1.5]}, "ds.json:6: optimizer.betas[1]"),
    ],
)
def test_a_value_that_is_wrong_in_a_recipe_has_the_line_of_its_key(params, told):
    data = {"train_batch_size": 64, "optimizer": {"type": "Adam", "params": params}}
    with pytest.raises(Failure) as failure:
        recipe_of(data)
    assert failure.value.outcome.code == Exit.BAD_DATA
    assert told in failure.value.details


# The schedule.


def there(named, params, iteration):
    """The factor of DeepSpeed 0.19's schedulers (runtime/lr_schedules.py) at an iteration, with a linear warm-up."""
    warm, total = max(2, params["warmup_num_steps"]), params.get("total_num_steps", 0)
    if iteration < warm:
        return iteration / warm
    if named == "WarmupLR":
        return 1.0
    if named == "WarmupDecayLR":
        return max(0.0, (total - iteration) / max(1.0, total - warm))
    low = params.get("cos_min_ratio", 0.0001)
    progress = min(1.0, (iteration - warm + 1) / max(1, total - warm))
    return low + (1 - low) * (1 + math.cos(math.pi * progress)) / 2


@pytest.mark.parametrize(
    ("named", "params", "shift"),
    [
        ("WarmupLR", {"warmup_num_steps": 10}, 0),
        ("WarmupDecayLR", {"warmup_num_steps": 10, "total_num_steps": 100}, 0),
        ("WarmupDecayLR", {"warmup_num_steps": 1, "total_num_steps": 50}, 0),
        ("WarmupCosineLR", {"warmup_num_steps": 10, "total_num_steps": 100}, 1),
        ("WarmupCosineLR", {"warmup_num_steps": 10, "total_num_steps": 100, "cos_min_ratio": 0.2}, 1),
    ],
)
def test_schedules_have_deepspeeds_shape(named, params, shift):
    data = {"train_batch_size": 8, "scheduler": {"type": named, "params": {"warmup_type": "linear", **params}}}
    schedule = recipe_of(data).schedule
    factor = build_factor(schedule, Horizon(8 * 1000, Scale(Batches(8))))
    warm = max(2, params["warmup_num_steps"])
    for step in [1, warm - 1, *range(warm + shift, 120, 7)]:
        # DeepSpeed's cosine begins a step early: its warm-up never comes to 1.
        iteration = step if step < warm else step - shift
        assert factor(8 * step) == pytest.approx(there(named, params, iteration), abs=1e-12), step


def test_a_schedules_peak_takes_the_place_of_the_optimizers_rate():
    optimizer = {"type": "Adam", "params": {"lr": 0.1}}
    with_peak = {"type": "WarmupLR", "params": {"warmup_max_lr": 0.2}}
    for scheduler, rate in (
        (with_peak, 0.2),
        ({"type": "WarmupLR"}, 0.1),
        (decays(), 0.001),
        (decays(warmup_max_lr=3), 3),
    ):
        recipe = recipe_of({"train_batch_size": 8, "optimizer": optimizer, "scheduler": scheduler})
        assert recipe.optimizer.lr == rate


def test_a_schedules_own_rate_is_no_other_optimizers():
    data = {"train_batch_size": 8, "optimizer": {"type": "Adagrad"}, "scheduler": decays()}
    assert recipe_of(data).optimizer.lr == 0.001
    assert recipe_of({"train_batch_size": 8, "optimizer": {"type": "Adagrad"}}).optimizer.lr == 0.01


def decays(**params):
    return {"type": "WarmupDecayLR", "params": {"total_num_steps": 5000, **params}}


def test_one_cycle_rises_and_falls_back():
    params = {"cycle_min_lr": 0.01, "cycle_max_lr": 0.1, "cycle_first_step_size": 10, "cycle_second_step_size": 30}
    data = {"train_batch_size": 8, "scheduler": {"type": "OneCycle", "params": params}}
    recipe = recipe_of(data | {"optimizer": {"type": "SGD"}})
    factor = build_factor(recipe.schedule, Horizon(8 * 1000, Scale(Batches(8))))
    assert recipe.optimizer.lr == 0.1
    for step, rate in ((10, 0.1), (25, 0.055), (40, 0.01), (90, 0.01)):
        assert recipe.optimizer.lr * factor(8 * step) == pytest.approx(rate)
    assert lost_of(data) == {"scheduler.params.cycle_min_lr": 6, "scheduler.params.cycle_momentum": 5}


def test_a_schedule_that_is_not_here_is_listed_with_its_parameters():
    data = {"train_batch_size": 8, "scheduler": {"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 1e-4}}}
    assert list(lost_of(data)) == ["scheduler.type", "scheduler.params.lr_range_test_min_lr"]
    assert "schedule.kind" in gaps_of(data)


def test_rates_of_parameter_groups_are_listed():
    data = {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": [1, 2]}}}
    assert "scheduler.params.warmup_max_lr" in lost_of(data)
    assert "optimizer.lr" in gaps_of(data)


# Precision.


@pytest.mark.parametrize(
    ("data", "precision"),
    [
        ({}, "fp32"),
        ({"bf16": {"enabled": True}}, "bf16"),
        ({"bfloat16": {"enabled": True}}, "bf16"),
        ({"fp16": {"enabled": True}}, "fp16"),
        ({"fp16": {"enabled": False}, "bf16": {"enabled": True}}, "bf16"),
        ({"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}, "bf16"),
        ({"torch_autocast": {"enabled": True, "dtype": "torch.float16"}}, "fp16"),
        ({"torch_autocast": {"enabled": False, "dtype": "bfloat16"}}, "fp32"),
        ({"bf16": {"enabled": True}, "torch_autocast": {"enabled": True, "dtype": "bfloat16"}}, "bf16"),
    ],
)
def test_precision_is_one_word(data, precision):
    assert recipe_of({"train_batch_size": 8, **data}).precision == precision


def test_the_factor_on_the_loss_starts_at_a_power_of_two():
    scaling = recipe_of({"train_batch_size": 8, "fp16": {"enabled": True, "initial_scale_power": 12}}).scaling
    assert (scaling.start, scaling.window, scaling.least, scaling.most) == (4096, 1000, 1, 2**32)
    given_ = {"enabled": True, "initial_scale_power": 40, "loss_scale_window": 50, "min_loss_scale": 4}
    scaling = recipe_of({"train_batch_size": 8, "fp16": given_}).scaling
    assert (scaling.start, scaling.window, scaling.least, scaling.most) == (2**40, 50, 4, 2**40)
    scaling = recipe_of({"train_batch_size": 8, "fp16": {"enabled": True, "loss_scale": 128}}).scaling
    assert (scaling.start, scaling.least, scaling.most) == (128, 128, 128)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "fp16 is enabled, too"),
        ({"fp16": {"enabled": True, "loss_scale": 100}}, "is 100; here it is a power of two"),
        ({"fp16": {"enabled": True, "min_loss_scale": 3}}, "is 3; here it is a power of two"),
        ({"fp16": {"enabled": True, "initial_scale_power": 10**9}}, "beyond float32"),
        ({"fp16": {"enabled": "yes"}}, "is true or false, not 'yes'"),
        ({"fp16": True}, "is an object, not True"),
        ({"torch_autocast": {"enabled": True, "dtype": "int8"}}, "not 'int8'"),
        ({"zero_optimization": {"stage": 4}}, "is 0, 1, 2 or 3, not 4"),
        ({"zero_optimization": {"stage": "auto"}}, "nobody fills it in"),
        ({"optimizer": "Adam"}, 'is an object such as {"type": ...'),
        ({"optimizer": {"type": "Adam", "params": [1]}}, "is an object, not [1]"),
        ({"scheduler": {"type": "WarmupDecayLR"}}, "total_num_steps: is missing"),
        ({"scheduler": decays(warmup_num_steps=-1)}, "is a whole number of at least 0"),
        (
            {"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 2, "cycle_max_lr": 1}}},
            "the lower end of the cycle",
        ),
    ],
)
def test_what_deepspeed_could_not_run_either_is_a_mistake(data, told):
    with pytest.raises(Failure) as failure:
        recipe_of({"train_batch_size": 8, **data})
    assert failure.value.outcome.code == Exit.BAD_DATA
    assert told in failure.value.details


def test_what_the_trainer_fills_in_is_left_open_with_its_own_word_for_it():
    params = {"lr": "auto", "betas": "auto", "weight_decay": "auto"}
    data = {
        "optimizer": {"type": "AdamW", "params": params},
        "fp16": {"enabled": "auto"},
        "bf16": {"enabled": "auto"},
        "gradient_clipping": "auto",
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
    }
    open_ = {".".join(map(str, gap.path)): gap.what for gap in found_in(data).gaps}
    assert "--learning_rate" in open_["optimizer.lr"]
    assert "--max_grad_norm" in open_["optimizer.clip"]
    assert {"optimizer.betas", "optimizer.weight_decay", "precision"} <= open_.keys()


def test_trackers_are_ours():
    monitors = {"tensorboard": {"enabled": True}, "wandb": {"enabled": True, "team": "us", "project": "it"}}
    watch = recipe_of({"train_batch_size": 8, **monitors}).watch
    assert (watch.tensorboard, watch.wandb.project, watch.wandb.entity) == (True, "it", "us")
    assert recipe_of({"train_batch_size": 8, "wandb": {"enabled": False, "project": "it"}}).watch.wandb is None


def test_the_words_of_a_file_give_it_away_also_where_it_is_damaged():
    assert DeepSpeed().marks('{"zero_optimization" : {"stage": 1}') == ["zero_optimization"]
    assert DeepSpeed().marks('{"name": "zero_optimization"}') == []


def test_a_finding_is_data():
    finding = found_in(BATCH).taken[0]
    assert replace(finding, note="x").comment.endswith(": x")
