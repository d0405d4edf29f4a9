import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.data.opening import open_source
from drivetrain.data.recipe import Documents, Parted, Tokens
from drivetrain.data.split import choose, hashed, parted
from drivetrain.data.windows import Windows
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load

NAMES = ("train", "validation", "test")


@st.composite
def shares(draw):
    cuts = sorted(draw(st.tuples(st.integers(0, 20), st.integers(0, 20))))
    return (cuts[0] / 20, (cuts[1] - cuts[0]) / 20, (20 - cuts[1]) / 20)


@settings(max_examples=150)
@given(st.integers(0, 300), shares(), st.sampled_from(["hash", "range"]), st.booleans())
def test_parts_are_disjoint_and_cover_everything(count, split, by, keyed):
    keys = hashed([n % 7 for n in range(count)]) if keyed and by == "hash" else None
    parts = [list(choose(count, Parted(part=part, split=split, by=by), keys)) for part in NAMES]
    assert sorted(number for part in parts for number in part) == list(range(count))
    assert all(part == sorted(part) for part in parts)
    for part, share in zip(parts, split, strict=True):
        assert share or not part
    if by == "range":
        assert all(abs(len(part) - share * count) <= 1 for part, share in zip(parts, split, strict=True))
    if keys is not None:
        groups = [{number % 7 for number in part} for part in parts]
        assert sum(len(group) for group in groups) == len(set().union(*groups))


@given(st.integers(1, 200), st.integers(1, 200))
def test_by_hash_more_items_move_none_of_those_before(few, more):
    for part in NAMES:
        longer = choose(few + more, Parted(part=part))
        assert longer[longer < few].tolist() == choose(few, Parted(part=part)).tolist()


def test_the_part_of_a_number_and_of_a_key_never_changes():
    """A resume with a newer version must find the same samples: these values are for ever."""
    assert choose(60, Parted(part="validation")).tolist() == [22, 29, 30, 45]
    assert choose(60, Parted(part="test")).tolist() == [3, 9, 58]
    assert [f"{key:016x}" for key in hashed(["ann", 5, None, 0.5, {"b": 1, "a": 2}, b"x"]).tolist()] == KEYS


KEYS = [
    "dd2bc8822444fe62",
    "a0998dee9f08548b",
    "6ed20afacbb27673",
    "034c92f8ddc4d723",
    "d1321102db910533",
    "682ed8c920ce0595",
]


def test_a_part_reads_the_samples_of_its_own_numbers():
    source = Windows(np.arange(4 * 100 + 1), 4, "w")
    for by in ("hash", "range"):
        chosen = list(choose(100, Parted(part="validation", by=by)))
        part = parted(source, Parted(part="validation", by=by), "numbers")
        ids = np.arange(len(part))
        assert (part.read(ids, ids) == source.read(np.array(chosen), ids)).all()
        assert part.fingerprint != source.fingerprint
        again = pickle.loads(pickle.dumps(part))
        assert (again.read(ids, ids) == part.read(ids, ids)).all()
        assert again.fingerprint == part.fingerprint
    assert parted(source, Parted(), "numbers") is source
    with pytest.raises(Failure, match="none of 100 samples is in test") as caught:
        parted(source, Parted(part="test", split=(0.5, 0.5, 0)), "numbers")
    assert caught.value.outcome.code == Exit.BAD_DATA


def test_a_token_file_is_split_by_place_and_predicts_each_token_once(tmp_path):
    np.arange(1001, dtype="<u2").tofile(tmp_path / "t.bin")
    predicted = []
    for part in NAMES:
        settings = Tokens(path=str(tmp_path / "t.bin"), context=4, part=part, split=(0.8, 0.1, 0.1))
        source = open_source(settings, 0, tmp_path / "cache.json")
        predicted += source.read(np.arange(len(source)), np.arange(len(source)))[:, 1:].flatten().tolist()
    assert predicted == list(range(1, 1001))


def test_documents_and_samples_are_shared_out_alike():
    assert choose(99, Documents(path="", part="test")).tolist() == choose(99, Parted(part="test")).tolist()


def own(folder, **keys):
    (folder / "mine.py").write_text(
        "class Numbers:\n    def __len__(self): return 100\n    def __getitem__(self, i): return i\n"
    )
    tree = load("quickstart").tree
    source = {"kind": "mine:Numbers", **keys}
    return load(tree | {"data": {"train": {"sources": [source]}, "validation": {}}}, folder=folder)


def test_a_users_own_data_set_is_split_too(tmp_path):
    seen = []
    for part in NAMES:
        resolved = own(tmp_path, parted={"part": part, "by": "range"})
        assert load(resolved.tree, folder=tmp_path).recipe == resolved.recipe
        (settings,) = resolved.recipe.data.train.sources
        source = open_source(settings, 0, tmp_path / "cache.json")
        seen += source.read(np.arange(len(source)), np.arange(len(source)))
    assert seen == list(range(100))


def test_another_part_is_another_run(tmp_path):
    from drivetrain.spec.affects import bits_digest, differences

    whole, train = own(tmp_path).recipe, own(tmp_path, parted={"part": "train"}).recipe
    assert bits_digest(whole) != bits_digest(train)
    assert "data.train.sources[0].parted.part" in {change.path for change in differences(whole, train)}
