"""Tables that grow become tables of keys; what these have not is listed with its line."""

import pytest

from drivetrain.engine.tables.keyed_recipe import BUCKETS
from drivetrain.spec.exits import Failure
from drivetrain.spec.importing.easyrec.growing import SHARED
from pipelines import SMALL, lost_of, recipe_of

ITEM = "feature_configs[1].id_feature"


def grown(text):
    return SMALL.replace("hash_bucket_size: 99", text)


def keyed_of(text, **source):
    return recipe_of(grown(text), **source).task.features["item"].keyed


def test_as_many_rows_are_shared_as_a_table_of_keys_has_buckets():
    assert SHARED == BUCKETS
    assert keyed_of("zch { zch_size: 1000 lfu {} }").rows == 1064
    assert keyed_of("dynamicemb { max_capacity: 5 }").rows == 2 * BUCKETS


@pytest.mark.parametrize(
    ("policy", "least", "lost"),
    [("lfu {}", "count", []), ("lru { decay_exponent: 2 }", "recent", []), ("distance_lfu {}", "count", [ITEM])],
)
def test_a_policy_says_who_goes_from_a_full_table(policy, least, lost):
    text = f"zch {{ zch_size: 1000 eviction_interval: 2 {policy} }}"
    keyed = keyed_of(text)
    assert (keyed.evict.least, keyed.evict.age, keyed.evict.every.steps) == (least, None, 2)
    assert keyed.admit.count == 1
    assert lost_of(grown(text)) == {f"{name}.zch.distance_lfu": 17 for name in lost}


def test_an_interval_is_of_steps_and_not_of_micro_batches():
    text = grown("zch { zch_size: 1000 lfu {} }").replace(
        "num_epochs: 2", "num_epochs: 2 gradient_accumulation_steps: 4"
    )
    assert recipe_of(text).task.features["item"].keyed.evict.every.steps == 2


def test_a_function_that_says_who_is_let_in_is_listed():
    text = 'zch { zch_size: 1000 lfu {} threshold_filtering_func: "lambda x: (x > 10, 10)" }'
    assert lost_of(grown(text)) == {f"{ITEM}.zch.threshold_filtering_func": 17}


@pytest.mark.parametrize(
    ("score", "least"), [("", "recent"), ('"STEP"', "recent"), ('"TIMESTAMP"', "recent"), ('"LFU"', "count")]
)
def test_a_score_says_who_goes_from_a_full_table(score, least):
    text = f"score_strategy: {score}" if score else ""
    keyed = keyed_of(f"dynamicemb {{ max_capacity: 1000 {text} }}")
    assert (keyed.evict.least, keyed.admit.count, keyed.admit.waiting) == (least, 1, None)


@pytest.mark.parametrize("score", ["NO_EVICTION", "CUSTOMIZED"])
def test_a_table_from_which_nobody_goes_ends_the_run_when_it_is_full_and_that_is_told(score):
    text = f'dynamicemb {{ max_capacity: 1000 score_strategy: "{score}" }}'
    assert keyed_of(text).evict is None
    assert lost_of(grown(text)) == {f"{ITEM}.dynamicemb.score_strategy": 17}


def test_who_is_let_in_after_so_many_times():
    text = """dynamicemb {
        max_capacity: 1000
        frequency_admission_strategy { threshold: 5 counter_capacity: 300 counter_bucket_capacity: 8
                                       initializer_args { value: 1 } }
        initializer_args { mode: "NORMAL" }
        cache_load_factor: 0.5
    }"""
    assert (keyed_of(text).admit.count, keyed_of(text).admit.waiting) == (5, 300)
    assert lost_of(grown(text)) == {
        f"{ITEM}.dynamicemb.frequency_admission_strategy.initializer_args": 20,
        f"{ITEM}.dynamicemb.initializer_args": 21,
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("zch { zch_size: 1000 }", r"eviction_policy: none is given; there are lfu, lru, distance_lfu"),
        ('dynamicemb { max_capacity: 9 score_strategy: "AGE" }', r"score_strategy: is one of STEP, .*, not 'AGE'"),
    ],
)
def test_a_table_that_nobody_can_make_there_is_a_mistake(text, told):
    with pytest.raises(Failure, match=rf"p\.config:17: .*{told}"):
        recipe_of(grown(text))
