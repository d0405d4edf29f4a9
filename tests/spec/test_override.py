"""Selectors in overrides: what they choose, and what they say where they choose nothing."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.spec.exits import Exit
from drivetrain.spec.load import load
from drivetrain.spec.override import override, sets_kind
from drivetrain.spec.tree import Origin, RecipeMistakes, dotted, from_data, origins_of, to_data

SOURCES = [
    {"name": "books", "kind": "text", "weight": 1, "a": {"b": "c"}, "on": True},
    {"name": "web", "kind": "text", "weight": 0.5},
    {"name": "code", "kind": "tokens", "weight": 0.25, "limit": None},
    {"kind": "text"},
]
SETS = {"dogs": {"kind": "text"}, "cats": {"kind": "tokens", "context": 8}}


def tree_of(data):
    mistakes = []
    tree = from_data(data, Origin("file", "r.yaml", 1), mistakes, {})
    assert not mistakes
    return tree


def chosen(selector):
    """Which sources get a value by this selector."""
    after = to_data(override(tree_of({"s": SOURCES}), f"s[{selector}].new=1"))["s"]
    return [index for index, source in enumerate(after) if "new" in source]


def mistake(data, text):
    with pytest.raises(RecipeMistakes) as caught:
        override(tree_of(data), text)
    assert caught.value.outcome.code == Exit.BAD_RECIPE
    (found,) = caught.value.mistakes
    assert str(found.origin) == f"command line: {text}"
    return dotted(found.path), found.message


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("0", [0]),
        ("-1", [3]),
        ("-4", [0]),
        (":", [0, 1, 2, 3]),
        ("*", [0, 1, 2, 3]),
        ("1:3", [1, 2]),
        ("-2:", [2, 3]),
        (":1", [0]),
        ("2:99", [2, 3]),
        ("name=books", [0]),
        (" name = books ", [0]),
        ("name==books", [0]),
        ('name="books"', [0]),
        ("name='books'", [0]),
        ("kind=text", [0, 1, 3]),
        ("name!=web", [0, 2]),
        ("weight>0.5", [0]),
        ("weight>=0.5", [0, 1]),
        ("weight<1", [1, 2]),
        ("weight<=1", [0, 1, 2]),
        ("weight=1.0", [0]),
        ("weight=5e-1", [1]),
        ("a.b=c", [0]),
        ("a.b!=d", [0]),
        ("on=true", [0]),
        ("limit=null", [2]),
    ],
)
def test_a_selector_chooses_every_item_that_fits(selector, expected):
    assert chosen(selector) == expected


@pytest.mark.parametrize(
    "selector", ["on=1", "weight=true", "weight='1'", "name>1", "a=c", "missing!=1", "limit!=null"]
)
def test_values_are_compared_as_yaml_scalars_and_a_missing_field_never_fits(selector):
    with pytest.raises(RecipeMistakes, match="chooses nothing"):
        chosen(selector)


def test_a_value_may_hold_brackets_and_equals_signs_in_quotes_and_an_apostrophe_without():
    names = ["a]b", "a[0]=1", "it's", "x=y"]
    for text in ('"a]b"', "'a[0]=1'", "it's", "x=y"):
        after = to_data(override(tree_of({"s": [{"name": name} for name in names]}), f"s[name={text}].new=[1, 2]"))
        assert [source["name"] for source in after["s"] if source.get("new") == [1, 2]] == [text.strip("\"'")]


def test_every_key_of_a_mapping_and_those_whose_field_fits():
    every = to_data(override(tree_of({"v": SETS}), "v[*].context=128"))
    assert [part["context"] for part in every["v"].values()] == [128, 128]
    texts = to_data(override(tree_of({"v": SETS}), "v[kind=text].context=128"))
    assert [part.get("context") for part in texts["v"].values()] == [128, 8]


def test_selectors_follow_each_other_and_one_that_fits_somewhere_is_enough():
    data = {"a": [{"b": [{"n": 1}, {"n": 2}]}, {"b": []}, {"b": [{"n": 2}]}]}
    after = to_data(override(tree_of(data), "a[:].b[n=2].c=x"))
    assert after == {"a": [{"b": [{"n": 1}, {"n": 2, "c": "x"}]}, {"b": []}, {"b": [{"n": 2, "c": "x"}]}]}


def test_a_whole_item_is_merged_and_an_empty_one_takes_away():
    after = to_data(override(tree_of({"s": SOURCES}), "s[name=web]={weight: 2, path: p}"))["s"]
    assert after[1] == {"name": "web", "kind": "text", "weight": 2, "path": "p"}
    assert to_data(override(tree_of({"s": SOURCES}), "s[1:]={}"))["s"][1:] == [{}, {}, {}]


def test_each_changed_value_comes_from_the_command_line_and_no_other_does():
    text = "s[kind=text].weight=2"
    origins = origins_of(override(tree_of({"s": SOURCES}), text))
    ours = {dotted(path) for path, origin in origins.items() if str(origin) == f"command line: {text}"}
    assert ours - {"s"} == {"s[0].weight", "s[1].weight", "s[3].weight"}  # the list itself is another one now


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("s[name=boks].weight=2", "s", "name is 'books' in [0], 'web' in [1], 'code' in [2], missing in [3]; did you"),
        ("s[weight>1].weight=2", "s", "weight is 1 in [0], 0.5 in [1], 0.25 in [2], missing in [3]"),
        ("s[7].weight=2", "s[7]", "there is no such item: the list has 4"),
        ("s[-5].weight=2", "s[-5]", "there is no such item: the list has 4"),
        ("s[4:].weight=2", "s", "[4:] chooses nothing: the list has 4"),
        ("v[0].context=2", "v[0]", "it is a mapping of dogs, cats"),
        ("v[:].context=2", "v", "it is a mapping of dogs, cats"),
        ("v[kind=image].context=2", "v", "kind is 'text' in dogs, 'tokens' in cats"),
        ("e[*].context=2", "e", "the mapping is empty"),
        ("n[0].context=2", "n[0]", "it is no list, but 5"),
        ("none[*].context=2", "none", "the list has 0"),
    ],
)
def test_a_selector_that_chooses_nothing_says_what_is_there(text, path, words):
    place, message = mistake({"s": SOURCES, "v": SETS, "e": {}, "n": 5}, text)
    assert place == path
    assert words in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("s[name].weight=2", "[name] is no selector"),
        ("s[].weight=2", "[] is no selector"),
        ("s[name=].weight=2", "[name=] is no selector"),
        ("s[1:2:3].weight=2", "is no selector"),
        ("s[a..b=1].weight=2", "is no selector"),
        (f"s[{'9' * 5000}].weight=2", "is no selector"),
        ("s[name=books.weight=2", "the bracket is not closed"),
        ("s[name=[1]].weight=2", "the bracket is not closed, or has another one in it"),
        ("s[weight>much].weight=2", "> compares numbers, and 'much' is none"),
        ("s[weight>true].weight=2", "> compares numbers"),
        ("s[name={a: 1}].weight=2", "one word or number"),
        ("s[name=.nan].weight=2", "finite"),
        ("s[name='x].weight=2", "not YAML"),
    ],
)
def test_a_selector_that_cannot_be_read_is_a_mistake_with_its_place(text, words):
    place, message = mistake({"s": SOURCES}, text)
    assert place == "s"
    assert words in message
    assert message.endswith("(character 2)")


@pytest.mark.parametrize("text", ["s[name=books]", "s", " ", "=1", ".a=1", "a.=1", "a..b=1", "[0]=1", "a b=1", "a[0]b"])
def test_what_is_no_override_is_told_so(text):
    assert "an override is key=value" in mistake({"s": SOURCES}, text)[1]


def test_a_tag_in_a_selector_is_refused():
    with pytest.raises(RecipeMistakes) as caught:
        override(tree_of({"s": SOURCES}), "s[name=!!python/name:os.system x].weight=2")
    assert caught.value.outcome.code == Exit.SECURITY


def test_mistakes_of_several_overrides_are_told_together(tiny):
    with pytest.raises(RecipeMistakes) as caught:
        load(tiny, ["data.validation[kind=image].context=8", "data.train.sources[kindtext].context=8", "sede=1"])
    assert len(caught.value.mistakes) == 3


def test_a_recipe_takes_selectors_and_shows_where_the_values_come_from(tiny):
    resolved = load(tiny, ["data.validation[*].context=8", "data.train.sources[kind=text].context=4"])
    assert resolved.recipe.data.validation["dogs"].context == 8
    assert resolved.recipe.data.train.sources[0].context == 4
    assert str(resolved.origins["data.validation.dogs.context"]) == "command line: data.validation[*].context=8"


def test_an_override_of_a_kind_is_known_with_and_without_selectors():
    assert sets_kind("optimizer.kind=sgd")
    assert sets_kind("data.train.sources[name=a.b].kind=tokens")
    assert not sets_kind("data.train.sources[task.kind=x].path=y")
    assert not sets_kind("kind")


NAMES = st.lists(
    st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=8), min_size=1, unique=True
)


@given(names=NAMES, data=st.data())
def test_a_selector_by_a_unique_name_equals_the_same_one_by_index(names, data):
    index = data.draw(st.integers(0, len(names) - 1))
    tree = tree_of({"s": [{"name": name, "weight": at} for at, name in enumerate(names)]})
    by_index = override(tree, f"s[{index}].weight=-1")
    for same in (f"s[name={json.dumps(names[index])}]", f"s[weight={index}]", f"s[{index - len(names)}]"):
        assert to_data(override(tree, f"{same}.weight=-1")) == to_data(by_index)


@pytest.mark.parametrize(
    "texts",
    [
        ["budget.steps=1", "budget.epochs=null"],
        ["budget.epochs=null", "budget.steps=1"],
        ["budget={steps: 1, epochs: null}"],
    ],
)
def test_a_null_beside_an_amount_takes_nothing_away(texts):
    assert load("movielens", texts).recipe.budget.given == {"steps": 1}


def test_a_keyed_table_that_each_process_is_to_hold_is_told_by_the_recipe_alone():
    held = ["task.features.user={buckets: null, keyed: {rows: 999}}", 'embeddings.hold={"^us": each}']
    with pytest.raises(RecipeMistakes, match=r"task.features.user.*holds? 'user', and a key has one owner"):
        load("movielens", held)
