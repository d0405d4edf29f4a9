"""Samples that are left out: nobody reads them, and they count for nothing."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.data.batch_reader import BatchReader
from drivetrain.data.blend import Blend, BlendStage
from drivetrain.data.dataset import MapSource
from drivetrain.data.geometry import Geometry
from drivetrain.data.order import Order, digest
from drivetrain.data.prefetch import prefetch
from drivetrain.data.quarantine import Quarantine
from drivetrain.spec.batches import Batches
from drivetrain.spec.custom import Custom

SIZE, BATCH = 50, 12


class Numbers:
    thread_safe = True
    fingerprint = ""

    def __len__(self):
        return SIZE

    def read(self, ids, positions):
        return [(int(i), int(p)) for i, p in zip(ids, positions, strict=True)]


def feed(quarantine, rank=0, processes=1, total=70, blend=False, **settings):
    order = Blend([20, 30], [BlendStage(0, (1, 2))], 3, True) if blend else Order(SIZE, 3, True)
    geometry = Geometry(Batches(BATCH), 4, processes, settings.pop("micro", 2), **settings)
    return BatchReader(Numbers(), order, geometry, rank, total, list, lambda batch: {"rows": len(batch)}, quarantine)


def steps(total=70):
    return range(1, -(-total // BATCH) + 1)


held = st.lists(st.tuples(st.integers(1, 6), st.lists(st.integers(0, SIZE - 1), max_size=25)), max_size=4)


@given(held, st.booleans(), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 3, None]))
def test_everything_else_is_read_at_its_own_position_on_any_number_of_processes(entries, blend, processes, micro):
    quarantine = Quarantine(entries)
    order = feed(quarantine, blend=blend).order
    for step in steps():
        start, stop = BATCH * (step - 1), min(BATCH * step, 70)
        out = {sample for first, ids in entries if first <= step for sample in ids}
        wanted = [(int(i), p) for p, i in enumerate(order.ids(start, stop), start) if int(i) not in out]
        feeds = [feed(quarantine, rank, processes, blend=blend, micro=micro) for rank in range(processes)]
        shares = [each.read(step) for each in feeds]
        assert [pair for share in shares for micro in share.micro_batches for pair in micro.batch] == wanted
        assert all(micro.size for share in shares for micro in share.micro_batches)
        assert sum(share.counts["samples"] for share in shares) == len(wanted)
        assert all(share.counts.keys() == {"samples", "rows"} for share in shares) or len(out) == SIZE
        expected = digest(np.array([i for i, _ in wanted], np.int64), np.array([p for _, p in wanted], np.int64))
        assert sum(share.digest for share in shares) % (1 << 64) == expected % (1 << 64)
        assert {each.samples(step).digest for each in feeds} == {expected % (1 << 64)}
        assert feeds[0].samples(step).ids.tolist() == [i for i, _ in wanted]
        assert {share.gaps for share in shares} == {any(not share.micro_batches for share in shares)}


@given(st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=20))
def test_the_places_of_micro_batches_stay(ids):
    """Lanes and parts seed the random numbers: what is left out must not change those of the others."""
    plain, without = feed(Quarantine()), feed(Quarantine([(1, ids)]))
    for step in steps():
        places = {micro.start: (micro.lane, micro.part) for micro in plain.read(step).micro_batches}
        assert all(places[micro.start] == (micro.lane, micro.part) for micro in without.read(step).micro_batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_reads_ahead_leaves_them_out_too(workers):
    own = Custom(section="source", kind="map_style:Noisy", settings={}, folder=str(Path(__file__).parent))
    source = MapSource(own, seed=5)
    order, quarantine = Order(len(source), 3, True), Quarantine([(2, range(0, len(source), 3))])
    make = replace(feed(quarantine), source=source, order=order)
    shares = prefetch(make, 1, 5, 2, workers)
    read = [[(m.start, m.ids.tolist(), str(m.batch)) for m in share.micro_batches] for share in shares]
    shares.close()
    alone = [make.read(step) for step in range(1, 6)]
    assert read == [[(m.start, m.ids.tolist(), str(m.batch)) for m in share.micro_batches] for share in alone]


def test_a_sample_that_is_held_twice_is_left_out_from_the_first_step_on():
    quarantine = Quarantine([(5, [7, 8]), (3, [7])])
    assert quarantine.kept(3, np.array([7, 8, 9])).tolist() == [False, True, True]
    assert len(quarantine) == 2
    assert not Quarantine([(1, [])])
