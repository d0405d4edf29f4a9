import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate

from drivetrain.cli.main import run
from drivetrain.data.batch_reader import BatchReader
from drivetrain.data.blend import Blend, BlendStage, one_source
from drivetrain.data.geometry import Geometry, divisors
from drivetrain.data.inputs import find_inputs
from drivetrain.data.opening import open_source
from drivetrain.data.order import Order
from drivetrain.data.packing import IGNORED, Packed, segments
from drivetrain.data.prefetch import prefetch
from drivetrain.data.prepare import Preparation, encoding, prepare
from drivetrain.data.quarantine import Quarantine
from drivetrain.data.recipe import Documents
from drivetrain.data.split import choose
from drivetrain.data.stacked import stacked
from drivetrain.data.windows import Windows
from drivetrain.spec.batches import Batches, Change
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load
from drivetrain.spec.tree import RecipeMistakes


def made(lengths, chosen, context):
    """Documents whose tokens are their own numbers in the file, packed."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Packed(np.arange(offsets[-1], dtype="<u4"), offsets, chosen, context, "mark"), offsets


def prepared(folder, texts, name="out", **options):
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    inputs = tuple(find_inputs([str(path)]))
    prepare(Preparation(folder / name, inputs, encoding(None, eod="0"), **options))
    return folder / name


def opened(path, folder, **how):
    return open_source(Documents(path=str(path), **({"context": 16} | how)), 0, folder / "cache.json")


@settings(max_examples=150)
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=40),
    context=st.integers(1, 40),
    batch=st.integers(1, 12),
    shuffle=st.booleans(),
    by_range=st.booleans(),
    data=st.data(),
)
def test_each_epoch_predicts_every_token_of_every_document_once(lengths, context, batch, shuffle, by_range, data):
    count = len(lengths)
    if by_range:
        first = data.draw(st.integers(0, count - 1))
        chosen = range(first, data.draw(st.integers(first + 1, count)))
    else:
        chosen = np.array(sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1))))
    source, offsets = made(lengths, chosen, context)
    wanted = [(d, t) for d in chosen for t in range(offsets[d], offsets[d + 1])]
    assert len(source) == max(0, -(-(len(wanted) - 1) // context))
    if len(source) == 0:
        return
    lanes = data.draw(st.sampled_from(divisors(batch)))
    processes = data.draw(st.sampled_from(divisors(lanes)))
    geometry = Geometry(Batches(batch), lanes, processes, data.draw(st.integers(1, batch)))
    order = Order(len(source), 3, shuffle)
    epoch = data.draw(st.integers(0, 1))
    start, stop = epoch * len(source), (epoch + 1) * len(source)
    read, predicted = [], []
    for step in range(start // batch + 1, -(-stop // batch) + 1):
        for rank in range(processes):
            for chunk in geometry.share(rank, step, stop):
                first = max(chunk.start, start)  # the epoch's first step may begin in the one before
                ids = order.ids(first, chunk.stop) if first < chunk.stop else np.arange(0)
                for sample in source.read(ids, np.arange(first, first + len(ids))):
                    owner, mask = sample["documents"], sample["mask"]
                    assert (sample["targets"][~mask] == IGNORED).all()
                    assert (owner[1:][~mask] == -1).all()
                    read += zip(owner[:-1][owner[:-1] >= 0], sample["tokens"][owner[:-1] >= 0], strict=True)
                    predicted += zip(owner[1:][mask], sample["targets"][mask], strict=True)
    assert sorted(predicted) == wanted[1:]
    padded = [pair for pair in sorted(read) if pair != wanted[-1]]  # the last token may be read, before padding
    assert padded == wanted[:-1]


@settings(max_examples=100)
@given(
    lengths=st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=15), min_size=1, max_size=3),
    context=st.integers(1, 9),
    batch=st.integers(1, 12),
    data=st.data(),
)
def test_a_blend_in_proportion_to_its_sources_predicts_every_token_once_on_all_ranks(lengths, context, batch, data):
    """Weights in proportion to sizes make an epoch of the blend one of each source."""
    sources, wanted = [], []
    for number, own in enumerate(lengths):
        chosen = np.array(sorted(data.draw(st.sets(st.integers(0, len(own) - 1), min_size=1))))
        source, offsets = made(own, chosen, context)
        source.tokens += 10_000 * number
        tokens = [t + 10_000 * number for d in chosen for t in range(offsets[d], offsets[d + 1])]
        sources += [source] if len(source) else []
        wanted += tokens[1:] if len(source) else []
    lanes = data.draw(st.sampled_from(divisors(batch)))
    processes = data.draw(st.sampled_from(divisors(lanes)))
    total = sum(map(len, sources))
    if total < lanes:
        return
    blend, micro = one_source(sources), data.draw(st.integers(1, batch))
    order = Blend([len(source) for source in sources], [BlendStage(0, tuple(map(len, sources)))], 5, True)
    geometry = Geometry(Batches(batch), lanes, processes, micro)
    predicted = []
    for rank in range(processes):
        feed = BatchReader(blend, order, geometry, rank, total, lambda samples: samples, lambda samples: {})
        for step in range(1, -(-total // batch) + 1):
            for part in feed.read(step).micro_batches:
                predicted += stacked(part.batch, "targets")[stacked(part.batch, "mask")].tolist()
                for sample in part.batch:
                    assert (sample["tokens"][1:] == sample["targets"][:-1])[sample["mask"][1:]].all()
    assert sorted(predicted) == wanted


def test_an_empty_document_at_the_end_of_a_source_does_not_hide_the_next_one():
    first, second = (made(own, np.arange(len(own)), 1)[0] for own in ([0, 2, 0], [2]))
    second.tokens += 10
    both = one_source([first, second])
    for ids in ([0], [1], [0, 1], [1, 0]):
        found = both.read(np.array(ids), np.array(ids))
        assert [sample["targets"].tolist() for sample in found] == [[[1], [11]][number] for number in ids]


@settings(max_examples=50)
@given(
    lengths=st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=15), min_size=1, max_size=2),
    context=st.integers(1, 9),
    data=st.data(),
)
def test_samples_in_quarantine_are_holes_and_all_others_are_packed_as_before(lengths, context, data):
    sources = [source for own in lengths if len(source := made(own, np.arange(len(own)), context)[0])]
    total = sum(map(len, sources))
    if not total:
        return
    order = Blend([len(source) for source in sources], [BlendStage(0, tuple(map(len, sources)))], 5, True)
    plain = BatchReader(one_source(sources), order, Geometry(Batches(4), 1, 1, 2), 0, total, list, lambda samples: {})
    held = data.draw(st.sets(st.integers(0, total - 1)))
    without = replace(plain, quarantine=Quarantine([(1, sorted(held))]))

    def read(feed):
        micros = [micro for step in range(1, -(-total // 4) + 1) for micro in feed.read(step).micro_batches]
        return [(int(i), sample) for micro in micros for i, sample in zip(micro.ids, micro.batch, strict=True)]

    wanted = [pair for pair in read(plain) if pair[0] not in held]
    for (i, sample), (own, other) in zip(read(without), wanted, strict=True):
        assert i == own
        assert all((sample[key] == other[key]).all() for key in other)


@settings(max_examples=100)
@given(
    lengths=st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=15), min_size=1, max_size=3),
    context=st.integers(1, 9),
    data=st.data(),
)
def test_what_a_batch_is_does_not_depend_on_what_it_is_read_with(lengths, context, data):
    sources = []
    for own in lengths:
        chosen = np.array(sorted(data.draw(st.sets(st.integers(0, len(own) - 1), min_size=1))))
        sources += [source for source in [made(own, chosen, context)[0]] if len(source)]
    if not sources:
        return
    blend = one_source(sources)
    batches = [np.array(ids, np.int64) for ids in data.draw(st.lists(lists_of(blend), min_size=1, max_size=5))]
    for ids, together in zip(batches, blend.read_each(batches), strict=True):
        alone = blend.read(ids, ids)
        for name in ("tokens", "targets", "mask", "documents"):
            one, other = getattr(alone, name), getattr(together, name)
            assert one.dtype == other.dtype
            assert one.strides == other.strides
            assert one.tolist() == other.tolist()


def lists_of(source):
    return st.lists(st.integers(0, len(source) - 1), min_size=1, max_size=6)


class OneByOne:
    """A source that cannot read batches together."""

    def __init__(self, source):
        self.source, self.read = source, source.read

    def __len__(self):
        return len(self.source)


@settings(max_examples=100)
@given(
    lengths=st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=15), min_size=1, max_size=3),
    context=st.integers(1, 9),
    plain=st.booleans(),
    data=st.data(),
)
def test_shares_are_the_same_however_many_steps_are_read_together(lengths, context, plain, data):
    """Over blends and single sources, of documents or windows; ramps, ragged ends, quarantine, ranks, micro-batches."""
    sources = [made(own, np.arange(len(own)), context)[0] for own in lengths]
    sources = [Windows(source.tokens, context, "") if plain else source for source in sources]
    sources = [source for source in sources if len(source)]
    lanes = data.draw(st.sampled_from([1, 2, 4]))
    if sum(map(len, sources)) < lanes:
        return
    weights = st.tuples(*[st.integers(1, 4)] * len(sources))
    stages = [BlendStage(0, data.draw(weights)), BlendStage(data.draw(st.integers(1, 30)), data.draw(weights))]
    one = data.draw(st.booleans()) and len(sources) == 1
    source = sources[0] if one else one_source(sources)
    order = Order(len(source), 5, True) if one else Blend([len(each) for each in sources], stages, 5, True)
    own = st.integers(1, 4).map(lambda size: size * lanes)
    batches = Batches(data.draw(own), (Change(data.draw(st.integers(1, 4)), data.draw(own)),))
    processes = data.draw(st.sampled_from(divisors(lanes)))
    geometry = Geometry(batches, lanes, processes, data.draw(st.none() | st.integers(1, 4)))
    held = data.draw(st.lists(st.tuples(st.integers(1, 6), st.sets(st.integers(0, len(source) - 1))), max_size=2))
    rank, total = data.draw(st.integers(0, processes - 1)), data.draw(st.integers(1, 60))
    feed = BatchReader(
        source, order, geometry, rank, total, collated, lambda batch: {"sum": batch[0]}, Quarantine(held)
    )
    last = batches.steps(total)
    wanted = [shown(share) for share in map(replace(feed, source=OneByOne(source)).read, range(1, last + 1))]
    width = data.draw(st.integers(1, 8))
    parts = [feed.read_each(range(first, min(first + width, last + 1))) for first in range(1, last + 1, width)]
    assert [shown(share) for part in parts for share in part] == wanted
    assert [shown(share) for share in prefetch(feed, 1, last, width, 0)] == wanted


def collated(samples):
    """Their sum, and everything that they hold."""
    if isinstance(samples, np.ndarray):
        return int(samples.sum()), samples.tolist()
    return int(stacked(samples, "tokens").sum()), [{k: v.tolist() for k, v in each.items()} for each in samples]


def shown(share):
    return share._replace(micro_batches=[micro._replace(ids=micro.ids.tolist()) for micro in share.micro_batches])


@settings(max_examples=100)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(1, 20), st.data())
def test_documents_and_targets_are_right_at_every_position(lengths, context, data):
    chosen = np.array(sorted(data.draw(st.sets(st.integers(0, len(lengths) - 1), min_size=1))))
    source, offsets = made(lengths, chosen, context)
    flat = np.array([(t, d) for d in chosen for t in range(offsets[d], offsets[d + 1])]).reshape(-1, 2)
    for number in range(len(source)):
        (sample,) = source.read(np.array([number]), np.array([number]))
        part = flat[number * context : number * context + context + 1]
        assert sample["documents"].tolist() == [*part[:, 1], *[-1] * (context + 1 - len(part))]
        assert sample["tokens"][: len(part)].tolist() == part[:context, 0].tolist()
        assert sample["targets"][: len(part) - 1].tolist() == part[1:, 0].tolist()
        runs = segments(sample)
        assert np.concatenate([tokens for owner, _, tokens in runs if owner >= 0]).tolist() == part[:, 0].tolist()
    assert list(source.read(np.arange(0), np.arange(0))) == []


def test_one_document_that_fills_samples_exactly_has_no_padding():
    source, _ = made([9], range(1), 4)
    assert len(source) == 2
    assert all(sample["mask"].all() for sample in source.read(np.array([0, 1]), np.array([0, 1])))


@pytest.mark.parametrize("by", ["hash", "range"])
def test_parts_share_all_documents_out(by):
    parts = [choose(10_000, Documents(path="", part=part, by=by)) for part in ("train", "validation", "test")]
    assert sorted(number for part in parts for number in part) == list(range(10_000))
    assert [abs(len(part) - size) < 100 for part, size in zip(parts, (9000, 500, 500), strict=True)] == [True] * 3


def test_the_part_of_a_document_never_changes():
    """Resuming with a newer version must find the same documents: these values are for ever."""
    assert choose(60, Documents(path="", part="validation")).tolist() == VALIDATION
    assert choose(60, Documents(path="", part="test")).tolist() == TEST
    more = choose(600, Documents(path="", part="validation"))
    assert more[more < 60].tolist() == VALIDATION


VALIDATION = [22, 29, 30, 45]
TEST = [3, 9, 58]


def test_a_share_of_nothing_is_nothing_whatever_the_rounding():
    for by in ("hash", "range"):
        for split in ((0.7, 0.3, 0.0), (1.0, 0.0, 0.0), (0.1, 0.9, 0.0)):
            assert len(choose(5000, Documents(path="", part="test", split=split, by=by))) == 0


def test_a_prepared_file_is_a_source(tmp_path):
    texts = [f"text {n} " * (n % 7 + 1) for n in range(50)]
    path = prepared(tmp_path, texts)
    whole = opened(path, tmp_path)
    (sample,) = whole.read(np.array([0]), np.array([0]))
    assert bytes(sample["tokens"].tolist()) == (texts[0].encode() + b"\0" + texts[1].encode())[:16]
    assert {name: value.dtype.name for name, value in sample.items()} == {
        "tokens": "int64",
        "targets": "int64",
        "documents": "int64",
        "mask": "bool",
    }
    batch = default_collate(whole.read(np.arange(3), np.arange(3)))
    assert batch["tokens"].shape == batch["mask"].shape == (3, 16)
    assert batch["documents"].shape == (3, 17)
    sizes = [opened(path, tmp_path, part=part).size for part in ("train", "validation", "test")]
    assert sum(sizes) == whole.size == sum(len(text) + 1 for text in texts)


def test_megatron_files_are_the_same_source_with_and_without_a_manifest(tmp_path):
    texts = [f"text {n} " * (n % 7 + 1) for n in range(50)]
    own = opened(prepared(tmp_path, texts), tmp_path)
    other = prepared(tmp_path, texts, "m", format="megatron")
    with_manifest = opened(other, tmp_path)
    Path(f"{other}.json").unlink()
    for source in (with_manifest, opened(f"{other}.idx", tmp_path)):
        ids = np.arange(len(own))
        for mine, theirs in zip(own.read(ids, ids), source.read(ids, ids), strict=True):
            assert all((mine[name] == theirs[name]).all() for name in mine)


def test_the_fingerprint_follows_content_and_part(tmp_path):
    path = prepared(tmp_path, ["one text " * 9] * 40)
    prints = [
        opened(path, tmp_path, **how).fingerprint
        for how in (
            {},
            {"part": "train"},
            {"part": "train", "by": "range"},
            {"part": "train", "split": (0.8, 0.1, 0.1)},
        )
    ]
    prints.append(opened(prepared(tmp_path, ["two text " * 9] * 40, "other"), tmp_path).fingerprint)
    assert len(set(prints)) == 5
    for suffix in (".bin", ".documents", ".json"):
        Path(f"{path}{suffix}").rename(tmp_path / f"moved{suffix}")
    assert opened(tmp_path / "moved", tmp_path).fingerprint == prints[0]


@pytest.mark.parametrize("suffix", [".bin", ".documents"])
def test_a_changed_byte_is_found(tmp_path, suffix):
    path = prepared(tmp_path, ["some text"] * 9)
    file = Path(f"{path}{suffix}")
    data = bytearray(file.read_bytes())
    data[40] ^= 1
    file.write_bytes(data)
    with pytest.raises(Failure, match=r"manifest says|begin|ascend") as caught:
        opened(path, tmp_path)
    assert caught.value.outcome.code == Exit.BAD_DATA


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"vocabulary": 116}, Exit.BAD_DATA),
        ({"part": "test", "split": (1.0, 0.0, 0.0)}, Exit.BAD_DATA),
        ({"path": "nowhere"}, Exit.INPUT_MISSING),
    ],
    ids=["token beyond the vocabulary", "empty part", "missing"],
)
def test_unusable_files_are_named(tmp_path, how, code):
    path = prepared(tmp_path, ["some text"] * 9)
    with pytest.raises(Failure) as caught:
        opened(how.pop("path", path), tmp_path, **how)
    assert caught.value.outcome.code == code


@pytest.mark.parametrize("workers", [0, 2])
def test_feed_and_prefetch_read_it(tmp_path, workers):
    source = opened(prepared(tmp_path, [f"text {n} " * (n % 7 + 1) for n in range(50)]), tmp_path, part="train")
    feed = BatchReader(
        source,
        Order(len(source), 0, True),
        Geometry(Batches(4), 2, 1, 2),
        0,
        len(source),
        default_collate,
        lambda batch: {"tokens": int(batch["mask"].sum())},
    )
    steps = -(-len(source) // 4)
    shares = prefetch(feed, 1, steps, 2, workers)
    counted = sum(share.counts["tokens"] for share in shares)
    shares.close()
    assert counted == source.size - 1


def test_data_workers_are_sent_the_name_of_the_file_not_its_content(tmp_path):
    source = opened(prepared(tmp_path, ["some text " * 50] * 200), tmp_path, part="train")
    sent = pickle.dumps(source)
    assert len(sent) < 1000
    again = pickle.loads(sent)
    assert again.fingerprint == source.fingerprint
    assert (
        again.read(np.array([5]), np.array([0]))[0]["tokens"] == source.read(np.array([5]), np.array([0]))[0]["tokens"]
    ).all()


def recipe(path, **how):
    source = {"kind": "documents", "path": str(path)} | how
    tree = load("quickstart").tree
    return tree | {"data": {"train": {"sources": [source]}, "validation": {}}}


def test_a_recipe_takes_it_and_its_context_from_the_model(tmp_path):
    resolved = load(recipe(tmp_path / "out", part="train", split=[0.8, 0.1, 0.1]))
    (source,) = resolved.recipe.data.train.sources
    assert (source.context, source.vocabulary, source.split) == (128, 256, (0.8, 0.1, 0.1))
    assert load(resolved.tree).recipe == resolved.recipe


@pytest.mark.parametrize(("how", "words"), [({"split": [0.5, 0.1, 0.1]}, "adds up to 0.7"), ({"part": "x"}, "train")])
def test_mistakes_in_its_settings_are_found(tmp_path, how, words):
    with pytest.raises(RecipeMistakes, match=words):
        load(recipe(tmp_path / "out", **how))


def test_inspect_shows_the_samples_of_a_recipes_step_in_their_order(tmp_path, capsys):
    path = prepared(tmp_path, [f"text {n} " * 40 for n in range(50)])
    (tmp_path / "r.json").write_text(json.dumps(recipe(path) | {"batch": {"size": 8}}))
    assert run(["data", "inspect", str(tmp_path / "r.json"), "--step", "2", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    source = opened(path, tmp_path, context=128)
    ids = Order(len(source), 0, True).ids(8, 16).tolist()
    assert [sample["sample"] for sample in shown] == ids
    assert [sample["position"] for sample in shown] == list(range(8, 16))
    for sample, tokens in zip(shown, source.read(np.array(ids), np.arange(8, 16)), strict=True):
        text = "".join(part["text"] for part in sample["documents"])
        assert text.startswith(bytes(tokens["tokens"].tolist()).decode())
    assert run(["data", "inspect", "quickstart", "--position", "3", "--count", "2"]) == 0
    assert "position 4" in capsys.readouterr().out
    assert run(["data", "inspect", "quickstart", "--position", "3", "--step", "2"]) == Exit.BAD_COMMAND


def test_the_loss_of_a_padded_batch_counts_real_targets_only(tmp_path):
    source = opened(prepared(tmp_path, ["some text"] * 5), tmp_path, context=20)
    batch = default_collate(source.read(np.arange(len(source)), np.arange(len(source))))
    logits = torch.randn(*batch["targets"].shape, 256)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="none")
    assert (loss.reshape(batch["mask"].shape)[~batch["mask"]] == 0).all()
    assert int(batch["mask"].sum()) == source.size - 1
