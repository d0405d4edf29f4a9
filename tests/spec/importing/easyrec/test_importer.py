"""What becomes of the fields of TorchEasyRec's configurations: each is taken, listed or needs nothing."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipelines
from drivetrain.optim.schedules import Horizon, build_factor
from drivetrain.spec.amount import Scale
from drivetrain.spec.batches import Batches
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.importing.easyrec.importer import UNKNOWN, EasyRec
from drivetrain.spec.importing.easyrec.schema import INTEGERS, OPAQUE, ROOT, schema
from drivetrain.spec.parse import parse
from drivetrain.spec.tree import Origin, to_data
from pipelines import composed_of, findings_of, lost_of, read, recipe_of

SMALL = pipelines.SMALL


def with_train(text):
    return SMALL.replace("  num_epochs: 2\n", f"  {text}\n")


def features_of(*texts, data=None):
    """The features of a recipe that has these besides the small one's."""
    texts = [f"feature_configs {{ {text} }}" for text in texts]
    names = []
    for text in texts:
        names.append(text.partition('feature_name: "')[2].partition('"')[0])
    text = SMALL.replace("model_config {", f"{' '.join(texts)}\nmodel_config {{\n{pipelines.group('deep', *names)}")
    if data:
        text = text.replace("fg_mode: FG_DAG", data)
    return recipe_of(text).task.features


# -- every field


def fields_of(message, path=(), seen=()):
    """Every field of a message and of those in it, by the path that leads there."""
    for field in schema().fields(message).values():
        yield (*path, field), message
        if schema().is_message(field.type) and field.type not in (OPAQUE, *seen):
            yield from fields_of(field.type, (*path, field), (*seen, field.type))


def each_field():
    """Each field of each message once, by its shortest path."""
    found = {}
    for path, message in fields_of(ROOT):
        key = (message, path[-1].name)
        if key not in found or len(path) < len(found[key]):
            found[key] = path
    return found


FIELDS = each_field()


def written(field):
    """A value of a field's type, that is not its default."""
    if schema().is_message(field.type):
        return "{ key: 'a' }" if field.is_map else "{}"
    if field.type in schema().enums:
        return list(schema().enums[field.type])[-1]
    if field.type == "string":
        return {"normalizer": "'method=zscore,mean=1,standard_deviation=2'", "expression": "'user:x'"}.get(
            field.name, "'x'"
        )
    if field.type == "bool":
        return "false" if field.default == "true" else "true"
    return "7" if field.type in INTEGERS else "0.5"


def text_with(path):
    """A configuration in which the field that a path leads to is given."""
    text = f"{path[-1].name}: {written(path[-1])}"
    for field in reversed(path[:-1]):
        beside = ""
        if field.name.endswith("_feature") or field.name == "kv_dot_product":
            beside = 'feature_name: "x" embedding_dim: 4 hash_bucket_size: 5 expression: "user:x"'
            known = schema().fields(field.type)
            beside = " ".join(part for part in beside.replace(": ", ":").split() if part.split(":")[0] in known)
        text = f"{field.name} {{ {beside} {text} }}"
    if path[0].name == "feature_configs":
        text += '\nmodel_config { feature_groups { group_name: "deep" feature_names: "x" } }'
    return f"{SMALL}{text}\n"


def test_there_are_as_many_fields_as_in_version_1_3_16():
    assert len(schema().messages) == 169
    assert sum(len(fields) for fields in schema().messages.values()) == 1149
    assert len(FIELDS) > 1000


@pytest.mark.parametrize("top", [field.name for field in schema().fields(ROOT).values()])
def test_of_every_field_it_is_known_what_becomes_of_it(top):
    unknown, silent, unplaced = [], [], []
    for (message, name), path in FIELDS.items():
        if path[0].name != top:
            continue
        try:
            findings = read(text_with(path))
        except Failure as failure:
            unplaced += [] if "p.config:" in failure.outcome.cause else [f"{message}.{name}"]
            continue
        unknown += [told.key for told in findings.lost if told.why == UNKNOWN]
        unplaced += [str(mistake) for mistake in findings.mistakes if not mistake.origin.line]
        if not findings.mistakes and not findings.taken:
            silent.append(f"{message}.{name}")
    assert unknown == []
    assert silent == unplaced == []


@pytest.mark.parametrize(
    "place",
    [
        "bogus: 1",
        "train_config { bogus: 1 }",
        "data_config { negative_sampler { bogus: 1 } }",
        "feature_configs { raw_feature { bogus: 1 } }",
        "model_config { dlrm { bogus { x: 1 } } }",
    ],
)
def test_an_unknown_field_is_named_with_its_line(place):
    with pytest.raises(Failure, match=r"p\.config:23: .*bogus: TorchEasyRec's \w+ has no such field") as raised:
        findings_of(f"{SMALL}{place}")
    assert raised.value.outcome.code == Exit.BAD_DATA


def test_what_was_meant_is_proposed():
    with pytest.raises(Failure, match="did you mean 'num_steps'"):
        findings_of(with_train("num_step: 1"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, max_size=6))
def test_any_fields_together_are_a_recipe_or_one_clear_error(chosen):
    text = SMALL
    for key in chosen:
        text += text_with(FIELDS[key]).removeprefix(SMALL)
    failure = pipelines.failure_of(lambda: composed_of(text))
    if failure is not None:
        assert failure.outcome.code in (Exit.BAD_DATA, Exit.BAD_RECIPE)
        assert "p.config:" in f"{failure.outcome.cause}{failure.details}"


# -- how long


@pytest.mark.parametrize(("steps", "epochs"), [(5, 5), (0, 0), (30, 2), (1000, 1)])
def test_steps_and_epochs_both_or_neither_end_with_78(steps, epochs):
    with pytest.raises(Failure, match=r"p\.config:\d+: train_config\.num_") as raised:
        findings_of(with_train(f"num_steps: {steps} num_epochs: {epochs}"))
    assert raised.value.outcome.code == Exit.BAD_RECIPE


@pytest.mark.parametrize(("text", "unit", "number"), [("num_steps: 5", "steps", 5), ("num_epochs: 3", "epochs", 3)])
def test_one_of_them_is_the_budget(text, unit, number):
    assert recipe_of(with_train(text)).budget.given == {unit: number}


def test_micro_batches_are_no_steps_here():
    text = with_train("num_steps: 10 gradient_accumulation_steps: 4 save_checkpoints_steps: 8")
    recipe = recipe_of(text, processes=2)
    assert (recipe.batch.size, recipe.batch.micro) == (64 * 4 * 2, 64)
    assert recipe.budget.steps == 3
    assert recipe.checkpoint.every.steps == recipe.evaluate.every.steps == 2
    assert recipe.launch.processes == 2


# -- features


def test_a_feature_is_read_as_there():
    found = features_of(
        'id_feature { feature_name: "a" expression: "user:col" vocab_list: ["x", "y"] embedding_dim: 8 }',
        'raw_feature { feature_name: "b" expression: "item:b" boundaries: [1, 2.5] embedding_dim: 8 }',
        'combo_feature { feature_name: "c" expression: ["user:p", "item:q"] hash_bucket_size: 9 embedding_dim: 8 }',
        'raw_feature { feature_name: "d" normalizer: "method=minmax,min=1,max=5" default_value: "3" }',
        'id_feature { feature_name: "e" num_buckets: 5 separator: "|" pooling: "mean" embedding_dim: 8 }',
    )
    assert (found["a"].column, found["a"].vocab, found["a"].dim) == ("col", ("x", "y"), 8)
    assert found["b"].boundaries == (1.0, 2.5)
    assert (found["c"].cross, found["c"].hash) == (("p", "q"), 9)
    assert (found["d"].normalize.mean, found["d"].normalize.std, found["d"].default) == (1.0, 4.0, 3.0)
    assert (found["e"].length, found["e"].separator, found["e"].pooling) == (64, "|", "mean")


def test_encoded_columns_hold_rows_already():
    found = features_of(
        'id_feature { feature_name: "a" expression: "user:col" vocab_list: ["x", "y"] embedding_dim: 8 }',
        'raw_feature { feature_name: "b" expression: "item:z" boundaries: [1, 2.5] embedding_dim: 8 }',
        'lookup_feature { feature_name: "c" map: "user:m" key: "item:k" hash_bucket_size: 9 embedding_dim: 8 }',
        data="fg_mode: FG_NONE",
    )
    assert (found["a"].column, found["a"].buckets) == (None, 4)
    assert (found["b"].column, found["b"].buckets) == (None, 3)
    assert (found["c"].buckets, found["item"].buckets) == (9, 99)


@pytest.mark.parametrize(
    ("data", "buckets"),
    [("fg_encoded: true", 99), ("fg_encoded: false fg_threads: 0", None), ("fg_encoded: false", None)],
)
def test_the_deprecated_field_says_how_columns_are_read(data, buckets):
    assert features_of(data=data)["item"].buckets == buckets


def test_sequences_of_a_group_are_lists_of_prefixed_columns():
    sequence = """feature_configs { sequence_feature {
        sequence_name: "clicks" sequence_length: 20 sequence_delim: "|"
        features { id_feature { feature_name: "item" expression: "item:item" hash_bucket_size: 99
                                embedding_dim: 8 embedding_name: "item_emb" } } } }"""
    text = SMALL.replace("model_config {", f"{sequence}\nmodel_config {{")
    text = text.replace(
        'group_name: "deep"',
        """group_name: "deep" sequence_groups { group_name: "s" feature_names: "clicks__item" }
        sequence_encoders { pooling_encoder { input: "s" pooling_type: "sum" } }""",
    )
    feature = recipe_of(text).task.features["clicks__item"]
    assert (feature.column, feature.length, feature.separator, feature.pooling) == (None, 20, "|", "sum")
    # `item` is in the table that is called after it, and shares it with whoever names that.
    assert feature.table == recipe_of(text).task.features["item"].table == "item_emb"


def test_columns_of_arrays_are_lists_without_a_separator():
    text = SMALL.replace("with_header: true", 'with_header: true input_fields_str: "item:ARRAY<BIGINT>;user:BIGINT"')
    feature = recipe_of(text).task.features["item"]
    assert (feature.length, feature.separator) == (64, None)


def test_rows_that_do_not_train_have_a_rate_of_zero():
    text = SMALL.replace("hash_bucket_size: 99", "hash_bucket_size: 99 trainable: false")
    (group,) = recipe_of(text).embeddings.groups
    assert (group.match, group.optimizer.kind, group.optimizer.lr) == ("^item$", "sgd", 0.0)


@pytest.mark.parametrize(
    ("feature", "told"),
    [
        ('lookup_feature { feature_name: "x" map: "user:m" key: "item:k" }', "looked up"),
        ('expr_feature { feature_name: "x" expression: "a+b" variables: ["user:a"] }', "an expression"),
        (
            'raw_feature { feature_name: "x" expression: "user:x" value_dim: 3 boundaries: 1 embedding_dim: 4 }',
            "boundaries",
        ),
        ('id_feature { feature_name: "x" expression: "feature:y" num_buckets: 3 embedding_dim: 8 }', "is no column"),
        (
            'combo_feature { feature_name: "x" expression: "user:a" hash_bucket_size: 3 embedding_dim: 8 }',
            "of two columns",
        ),
    ],
)
def test_what_has_to_be_computed_is_left_out_and_told(feature, told):
    text = SMALL.replace("model_config {", f"feature_configs {{ {feature} }}\nmodel_config {{")
    text = text.replace('feature_names: "user"', 'feature_names: "user" feature_names: "x"')
    findings = findings_of(text)
    (lost,) = [each for each in findings.lost if each.key.startswith("feature_configs[3]")]
    assert (lost.line, told in lost.why) == (19, True)
    assert "x" not in recipe_of(text).task.features


def test_a_group_that_names_no_feature_is_a_mistake():
    with pytest.raises(Failure, match=r"p\.config:20: .* no feature 'itm' .*did you mean 'item'"):
        findings_of(SMALL.replace('feature_names: "item"', 'feature_names: "itm"'))


@pytest.mark.parametrize(
    ("name", "told"),
    [("item", "'item' is declared twice, first in line 17"), ("it.em", "is it_em in a recipe, as 'it-em' is")],
)
def test_two_features_of_one_name_are_a_mistake(name, told):
    text = SMALL.replace('feature_name: "age"', f'feature_name: "{name}"').replace('feature_names: "age"', "")
    if name != "item":
        text = text.replace('"item"', '"it-em"').replace('"it-em" feature_names', '"it-em"  feature_names')
    with pytest.raises(Failure) as raised:
        findings_of(text)
    assert told in raised.value.details


@pytest.mark.parametrize("name", ["sparse_optimizer", "dense_optimizer"])
def test_an_optimizer_that_is_left_out_is_a_mistake(name):
    lines = [line for line in SMALL.splitlines() if name not in line]
    with pytest.raises(Failure, match=rf"p\.config:4: train_config\.{name}: is left out"):
        findings_of("\n".join(lines))


def test_a_normalizer_without_a_counterpart_is_to_be_filled_in():
    text = SMALL.replace(
        'expression: "user:age"', 'expression: "user:age" normalizer: "method=expression,expr=log(x+3)"'
    )
    composed = composed_of(text)
    assert [gap.path for gap in composed.gaps] == [("task", "features", "age", "normalize")]
    assert "log(x+3)" in composed.text


# -- models and labels


def test_deepfm_with_its_label():
    task = recipe_of(SMALL).task
    assert (task.model.kind, task.model.hidden) == ("deepfm", (16, 8))
    assert (task.labels["like"].loss, task.labels["like"].metrics) == ("bce", ("auc",))


def test_mmoe_with_a_label_for_each_tower():
    task = recipe_of(pipelines.MMOE).task
    assert (task.model.experts, task.model.expert, task.model.tower) == (3, (16,), (8,))
    assert {name: label.column for name, label in task.labels.items()} == {"ctr": "like", "cvr": "love"}


def test_two_towers_with_negatives_of_the_batch():
    recipe = recipe_of(pipelines.DSSM)
    model = recipe.task.model
    assert (model.user, model.item, model.size, model.temperature, model.recall) == (
        ("user", "age"),
        ("item",),
        8,
        0.2,
        (1, 5),
    )
    assert (model.negatives.kind, model.negatives.group, recipe.lanes) == ("in_batch", 64, 1)
    assert recipe.task.labels == {}


def test_a_sampler_draws_for_each_sample_here():
    text = pipelines.DSSM.replace("in_batch_negative: true", "")
    text += 'data_config { negative_sampler { input_path: "items" num_sample: 512 item_id_field: "item" } }'
    assert recipe_of(text).task.model.negatives.kind == "popularity"
    assert "data_config.negative_sampler.num_sample" in lost_of(text)


@pytest.mark.parametrize(
    ("losses", "loss", "options"),
    [
        ("binary_cross_entropy { label_smoothing: 0.1 }", "bce", {"label_smoothing": 0.1}),
        ("binary_focal_loss {}", "focal", {"gamma": 2.0, "alpha": 0.5}),
        ("softmax_cross_entropy {} } num_class: 3 metrics { accuracy {}", "softmax", {"classes": 3}),
        ("l2_loss {}", "mse", {}),
    ],
)
def test_losses(losses, loss, options):
    text = SMALL.replace("binary_cross_entropy {}", losses).replace("metrics { auc {} }", "")
    label = recipe_of(text).task.labels["like"]
    assert label.loss == loss
    assert {name: getattr(label, name) for name in options} == options


@pytest.mark.parametrize("kind", ["dlrm", "multi_tower", "wide_and_deep", "simple_multi_task", "dbmtl", "ple", "mind"])
def test_a_model_without_a_kind_is_to_be_filled_in_and_all_else_is_there(kind):
    text = SMALL.replace("deepfm { deep { hidden_units: [16, 8] } }", f"{kind} {{}}")
    composed = composed_of(text)
    assert ("task", "model", "kind") in [gap.path for gap in composed.gaps]
    assert recipe_of(text).task.features.keys() == {"user", "item", "age"}


@pytest.mark.parametrize("kind", ["tdm", "dlrm_hstu", "sid_rqvae"])
def test_what_is_no_such_task_is_one_error_with_its_line(kind):
    with pytest.raises(Failure, match=rf"p\.config:21: model_config\.{kind}: has no counterpart"):
        findings_of(SMALL.replace("deepfm { deep { hidden_units: [16, 8] } }", f"{kind} {{}}"))


# -- optimizers and schedules


@pytest.mark.parametrize(
    ("text", "kind", "options"),
    [
        (
            "adam_optimizer { lr: 0.1 beta1: 0.8 amsgrad: true }",
            "adam",
            {"lr": 0.1, "betas": (0.8, 0.999), "amsgrad": True},
        ),
        ("adamw_optimizer { weight_decay: 0.1 }", "adamw", {"lr": 0.002, "weight_decay": 0.1}),
        ("sgd_optimizer { nesterov: true }", "sgd", {"momentum": 0.9, "nesterov": True}),
        ("adagrad_optimizer { initial_accumulator_value: 0.1 }", "adagrad", {"initial": 0.1, "eps": 1e-10}),
        ("rmsprop_optimizer { alpha: 0.9 }", "rmsprop", {"alpha": 0.9, "eps": 1e-8}),
    ],
)
def test_optimizers_of_layers(text, kind, options):
    optimizer = recipe_of(SMALL.replace("adam_optimizer { lr: 0.001 }", text)).optimizer
    assert (optimizer.kind, optimizer.clip) == (kind, None)
    assert {name: getattr(optimizer, name) for name in options} == options


@pytest.mark.parametrize(
    ("text", "kind", "options"),
    [
        ("sgd_optimizer { lr: 0.3 }", "sgd", {"lr": 0.3}),
        ("adam_optimizer { beta2: 0.9 }", "adam", {"lr": 0.002, "betas": (0.9, 0.9)}),
        ("lars_sgd_optimizer { momentum: 0.5 }", "lars", {"momentum": 0.5}),
        ("lamb_optimizer { weight_decay: 0.1 }", "lamb", {"weight_decay": 0.1}),
        ("rowwise_adagrad_optimizer { weight_decay: 0.1 }", "rowwise_adagrad", {"weight_decay": 0.0}),
        (
            "rowwise_adagrad_optimizer { weight_decay: 0.1 weight_decay_mode: L2 }",
            "rowwise_adagrad",
            {"weight_decay": 0.1},
        ),
    ],
)
def test_optimizers_of_rows(text, kind, options):
    optimizer = recipe_of(SMALL.replace("adagrad_optimizer { lr: 0.05 }", text)).embeddings.optimizer
    assert optimizer.kind == kind
    assert {name: getattr(optimizer, name) for name in options} == options


def test_a_row_optimizer_without_a_counterpart_is_to_be_filled_in():
    composed = composed_of(SMALL.replace("adagrad_optimizer { lr: 0.05 }", "rmsprop_optimizer { lr: 0.05 }"))
    assert [gap.path for gap in composed.gaps] == [("embeddings", "optimizer", "kind")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "exponential_decay_learning_rate { decay_size: 9 decay_factor: .5 min_learning_rate: 1e-4 warmup_size: 3 }",
            {
                "kind": "exponential",
                "rate": 0.5,
                "every": {"steps": 9},
                "staircase": True,
                "floor": 0.1,
                "warmup": {"steps": 3},
                "read_at": "step_end",
            },
        ),
        (
            "manual_step_learning_rate { schedule_sizes: [2, 5] learning_rates: [0.0005, 0.0001] }",
            {
                "kind": "steps",
                "milestones": [{"at": {"steps": 3}, "factor": 0.5}, {"at": {"steps": 6}, "factor": 0.1}],
                "read_at": "step_start",
            },
        ),
        (
            "cosine_annealing_learning_rate { T_max: 4 warmup_size: 2 by_epoch: true }",
            {"kind": "cosine", "length": {"epochs": 6}, "floor": 0.0, "warmup": {"epochs": 2}},
        ),
        (
            "cosine_annealing_learning_rate { T_max: 4 warmup_size: 2 warmup_learning_rate: 5e-4 by_epoch: true }",
            {
                "kind": "cosine",
                "length": {"epochs": 6},
                "floor": 0.0,
                "warmup": {"epochs": 2},
                "warmup_from": 0.5,
                "read_at": "epoch_start",
            },
        ),
        (
            "cosine_annealing_warm_restarts_learning_rate { T_0: 2 T_mult: 3 }",
            {"kind": "cosine_restarts", "period": {"steps": 2}, "multiplier": 3, "floor": 0.0, "read_at": "step_start"},
        ),
    ],
)
def test_schedules(text, expected):
    given_ = SMALL.replace("lr: 0.001 } constant_learning_rate {}", f"lr: 0.001 }} {text}")
    tree = to_data(parse(composed_of(given_).text, Origin("file", "new.yaml", 1), []))
    assert tree["schedule"] == expected


COSINE = "cosine_annealing_learning_rate { T_max: 4 warmup_size: 2 min_learning_rate: 0.01"


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("exponential_decay_learning_rate { decay_size: 2 decay_factor: 0.5 }", [0.1, 0.1, 0.05, 0.05, 0.025]),
        (
            "exponential_decay_learning_rate { decay_size: 2 decay_factor: 0.25 staircase: false }",
            [0.1, 0.05, 0.025, 0.0125],
        ),
        (
            "exponential_decay_learning_rate { decay_size: 1 decay_factor: 0.5 by_epoch: true }",
            [0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025],
        ),
        (
            "manual_step_learning_rate { schedule_sizes: [2, 5] learning_rates: [0.05, 0.01] }",
            [0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.01],
        ),
        (
            "manual_step_learning_rate { schedule_sizes: 1 learning_rates: 0.05 by_epoch: true }",
            [*[0.1] * 6, 0.05],
        ),
        (
            "cosine_annealing_warm_restarts_learning_rate { T_0: 2 T_mult: 2 }",
            [0.1, 0.05, 0.1, 0.0854, 0.05, 0.0146, 0.1],
        ),
        # Theirs has a 0 before.
        (f"{COSINE} }}", [0.05, 0.1, 0.0868, 0.055, 0.0232, 0.01, 0.01]),
        (f"{COSINE} warmup_learning_rate: 0.05 }}", [0.05, 0.075, 0.1, 0.0868, 0.055, 0.0232, 0.01, 0.01]),
        ("constant_learning_rate {}", [0.1] * 5),
    ],
)
def test_rates_are_those_that_were_seen_there(text, rates):
    recipe = recipe_of(SMALL.replace("lr: 0.001 } constant_learning_rate {}", f"lr: 0.1 }} {text}"))
    factor = build_factor(recipe.schedule, Horizon(64 * 100, Scale(Batches(64), epoch=64 * 3)))
    found = [recipe.optimizer.lr * factor(64 * step) for step in range(1, len(rates) + 1)]
    assert found == pytest.approx(rates, abs=5e-5)


def test_a_warm_up_from_zero_by_epochs_is_told_and_one_from_above_the_peak_begins_there():
    scheduled = SMALL.replace("lr: 0.001 } constant_learning_rate {}", f"lr: 0.1 }} {COSINE} by_epoch: true }}")
    told = "train_config.dense_optimizer.cosine_annealing_learning_rate"
    assert lost_of(scheduled) == {f"{told}.by_epoch": 6}
    scheduled = scheduled.replace("by_epoch: true", "warmup_learning_rate: 0.2")
    assert lost_of(scheduled) == {f"{told}.warmup_learning_rate": 6}
    assert recipe_of(scheduled).schedule.warmup_from == 1.0


@pytest.mark.parametrize(
    ("text", "clip"),
    [
        ("clipping_type: 'norm' max_gradient: 5", 5.0),
        ("clipping_type: 'none'", None),
        ("max_gradient: 5", None),
    ],
)
def test_clipping(text, clip):
    assert recipe_of(with_train(f"num_epochs: 1 grad_clipping {{ {text} }}")).optimizer.clip == clip


def test_precision_and_averages():
    text = """num_epochs: 1 mixed_precision: "FP16"
        grad_scaler { init_scale: 1024 growth_interval: 10 growth_factor: 3 }
        dense_optimizer { ema { decay: 0.9 } }"""
    recipe = recipe_of(with_train(text) + "eval_config { use_dense_ema: false }")
    assert (recipe.precision, recipe.scaling.start, recipe.scaling.window) == ("fp16", 1024.0, 10)
    assert (recipe.average.decay, recipe.average.warmup, recipe.average.evaluate) == (0.9, False, False)
    assert "train_config.grad_scaler.growth_factor" in lost_of(with_train(text))


def test_commits_and_evaluations_come_as_there():
    recipe = recipe_of(SMALL)
    assert recipe.checkpoint.every.steps == recipe.evaluate.every.steps == recipe.checkpoint.keep_every.steps == 1000
    text = with_train("num_epochs: 3 save_checkpoints_steps: 7 save_checkpoints_epochs: 1 keep_checkpoint_max: 2")
    best = 'export_config { exporter_type: "best" best_exporter_metric: "auc" } eval_config { num_steps: 3 }'
    recipe = recipe_of(text + best)
    assert (recipe.checkpoint.every.epochs, recipe.checkpoint.keep, recipe.checkpoint.keep_every) == (1, 2, None)
    assert (recipe.checkpoint.keep_best.metric, recipe.checkpoint.keep_best.mode) == ("validation/auc", "max")
    assert (recipe.evaluate.budget.samples, recipe.evaluate.full_at_end) == (192, False)


# -- files


def test_a_file_shows_what_it_is_in_each_of_its_forms():
    assert EasyRec().marks(SMALL)[:2] == ["train_input_path", "eval_input_path"]
    assert EasyRec().marks('{"trainInputPath": "a",\n "model_config": {}}') == ["train_input_path", "model_config"]
    assert EasyRec().marks('{"train_batch_size": 64, "optimizer": {}}') == []


def test_json_is_the_same_configuration():
    data = {
        "trainInputPath": "train.csv",
        "eval_input_path": "test.csv",
        "model_dir": "experiments/small",
        "train_config": {
            "sparse_optimizer": {"adagrad_optimizer": {"lr": 0.05}, "constant_learning_rate": {}},
            "dense_optimizer": {"adam_optimizer": {"lr": 0.001}, "constant_learning_rate": {}},
            "num_epochs": 2,
        },
        "dataConfig": {
            "batch_size": 64,
            "dataset_type": "CsvDataset",
            "fg_mode": 3,
            "with_header": True,
            "label_fields": ["like"],
        },
        "feature_configs": [
            {
                "id_feature": {
                    "feature_name": "user",
                    "expression": "user:user",
                    "num_buckets": "41",
                    "embedding_dim": 8,
                }
            },
            {
                "id_feature": {
                    "feature_name": "item",
                    "expression": "item:item",
                    "hash_bucket_size": 99,
                    "embeddingDim": 8,
                }
            },
            {"raw_feature": {"feature_name": "age", "expression": "user:age"}},
        ],
        "model_config": {
            "feature_groups": [{"group_name": "deep", "feature_names": ["user", "item", "age"], "group_type": "DEEP"}],
            "deepfm": {"deep": {"hidden_units": [16, 8]}},
            "losses": [{"binary_cross_entropy": {}}],
            "metrics": [{"auc": {}}],
        },
    }
    assert recipe_of(json.dumps(data, indent=1)) == recipe_of(SMALL)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("num_epochs: 1.5", "is a whole number from 0 to 4294967295, not 1.5"),
        ("num_epochs: -1", "is a whole number from 0"),
        ('num_epochs: "2"', "is a number"),
        ("num_epochs { }", "is a uint32, not a message"),
        ("dense_optimizer: 3", "is a message"),
        ("is_profiling: maybe", "is true or false, not maybe"),
        ("mixed_precision: BF16", "is a text in quotes, not BF16"),
        ('mixed_precision: "BF32" num_epochs: 1', "is BF16, FP16 or empty"),
        ("num_epochs: 1 dense_optimizer { cosine_annealing_learning_rate {} }", "T_max"),
        ('num_epochs: 1 tensorboard_summaries: "loses"', "is one of loss,"),
    ],
)
def test_a_wrong_value_is_told_with_its_line(text, told):
    with pytest.raises(Failure, match=r"p\.config:7: train_config\.") as raised:
        findings_of(with_train(text))
    assert told in raised.value.details


@pytest.mark.parametrize("text", ["16", "0x10", "020", "1.6e1", "+16"])
def test_a_number_is_written_in_many_ways(text):
    assert recipe_of(SMALL.replace("batch_size: 64", f"batch_size: {text}")).batch.size == 16


def test_an_enum_is_one_of_its_names():
    with pytest.raises(Failure, match=r"dataset_type: is one of OdpsDataset, .* did you mean 'CsvDataset'"):
        findings_of(SMALL.replace("CsvDataset", "CsvDatset"))


def test_of_what_is_given_twice_the_last_counts_and_that_is_told():
    findings = findings_of(SMALL.replace("batch_size: 64", "batch_size: 64\n  batch_size: 32"))
    assert [(told.key, told.line) for told in findings.spared if "given again" in told.why] == [
        ("data_config.batch_size", 10)
    ]
    assert recipe_of(SMALL.replace("batch_size: 64", "batch_size: 64 batch_size: 32")).batch.size == 32


def test_what_no_source_reads_is_to_be_filled_in():
    (gap,) = composed_of(SMALL.replace('"train.csv"', '"odps://p/tables/t"')).gaps
    assert gap.path == ("data", "train", "sources", 0, "kind")
    assert "MaxCompute" in gap.what


def test_a_csv_file_without_a_header_has_the_names_of_its_fields():
    fields = " ".join(f'input_fields {{ input_name: "{name}" }}' for name in ("user", "item", "age", "like"))
    (source,) = recipe_of(SMALL.replace("with_header: true", fields)).data.train.sources
    assert source.header == ("user", "item", "age", "like")
    with pytest.raises(Failure, match="no input_fields say what the columns are called"):
        findings_of(SMALL.replace("with_header: true", ""))


PARTS = """part_optimizers {
      adam_optimizer { lr: 0.01 weight_decay: 0.5 } regex_pattern: ".*\\\\.bias"
      exponential_decay_learning_rate { decay_size: 10 decay_factor: 0.5 }
    }
    part_optimizers { adam_optimizer { lr: 0.02 beta1: 0.5 } regex_pattern: ".*deep_mlp.*" }
    part_optimizers { sgd_optimizer { lr: 0.1 } regex_pattern: ".*" }"""


def test_optimizers_of_parts_are_groups_where_their_kind_is_that_of_all():
    text = SMALL.replace("adam_optimizer { lr: 0.001 }", f"adam_optimizer {{ lr: 0.001 }} {PARTS}")
    (first, second) = recipe_of(text).optimizer.groups
    assert (first.match, first.lr, first.weight_decay) == (r"^(?:.*\.bias)$", 0.01, 0.5)
    assert (first.schedule.kind, first.schedule.rate) == ("exponential", 0.5)
    assert (second.lr, second.schedule) == (0.02, None)
    gaps = [gap.path for gap in findings_of(text).gaps]
    assert gaps == [("optimizer", "groups", 1, "match")]
    lost = lost_of(text)
    dense = "train_config.dense_optimizer.part_optimizers"
    assert [key for key in lost if key.startswith(dense)] == [f"{dense}[1].adam_optimizer.beta1", f"{dense}[2]"]


def test_a_pattern_of_a_part_that_is_none_is_told_with_its_line():
    part = 'part_optimizers { adam_optimizer { lr: 0.1 } regex_pattern: "(" }'
    text = SMALL.replace("adam_optimizer { lr: 0.001 }", f"adam_optimizer {{ lr: 0.001 }} {part}")
    with pytest.raises(Failure, match=r"p.config:6.*is no regular expression"):
        findings_of(text)


def test_grouped_xauc_is_imported_with_its_column():
    metric = 'grouped_xauc { grouping_key: "user" }'
    recipe = recipe_of(SMALL.replace("auc {}", metric))
    assert (recipe.task.group, recipe.task.labels["like"].metrics) == ("user", ("grouped_xauc",))
