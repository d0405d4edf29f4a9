import json
import os
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load as load_by_library
from safetensors.torch import save as save_by_library

from drivetrain.checkpoint.files import read_file
from drivetrain.checkpoint.snapshot import Arena, pieces_of
from drivetrain.checkpoint.tensors import parse_tensors, write_tensors
from drivetrain.spec.exits import Exit, Failure

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
shapes = st.lists(st.integers(0, 4), max_size=3)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(DTYPES), shapes), max_size=5), st.randoms())
def test_tensors_of_any_type_and_shape_come_back_bit_for_bit(tmp_path_factory, kinds, generator):
    tensors = {
        f"t{n}": torch.randint(0, 2, shape, dtype=torch.uint8).to(dtype) for n, (dtype, shape) in enumerate(kinds)
    }
    path = tmp_path_factory.mktemp("t") / "x.safetensors"
    ways = generator.sample([pieces_of, Arena().take], 2)
    header = write_tensors(path, ways[0](tensors))
    # A commit has the same bytes whether it was copied first or not.
    assert write_tensors(path.with_suffix(".other"), ways[1](tensors)) == header
    data = read_file(path)
    assert bytes(data[: len(header)]) == header
    assert len(data) == len(header) + sum(tensor.nbytes for tensor in tensors.values())
    for reader in (lambda: parse_tensors(data), lambda: load_by_library(bytes(data))):
        found = reader()
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert found[name].dtype == tensor.dtype
            assert found[name].shape == tensor.shape
            assert torch.equal(found[name], tensor)


def test_files_of_the_safetensors_library_are_read():
    tensors = {"a": torch.randn(3, 4), "b": torch.arange(5)}
    found = parse_tensors(bytearray(save_by_library(tensors)))
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_slices_and_transposes_are_written_as_what_they_show(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    write_tensors(tmp_path / "x", pieces_of({"t": base.T, "s": base[:, 1:3]}))
    found = parse_tensors(read_file(tmp_path / "x"))
    assert torch.equal(found["t"], base.T)
    assert torch.equal(found["s"], base[:, 1:3])


def with_header(header, body=b"\0" * 16):
    text = json.dumps(header).encode()
    return bytearray(len(text).to_bytes(8, "little") + text + body)


def entry(**changed):
    return {"t": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]} | changed}


@pytest.mark.parametrize(
    "data",
    [
        bytearray(b"abc"),
        bytearray((1 << 62).to_bytes(8, "little") + b"{}"),
        with_header([1, 2]),
        with_header(entry(shape=[5])),
        with_header(entry(shape=[-4])),
        with_header(entry(data_offsets=[0, 1 << 50])),
        with_header(entry(data_offsets=[4, 20])),
        with_header(entry(dtype="F99")),
        with_header(entry(), b"\0" * 15),
        with_header(entry(), b"\0" * 17),
        with_header(entry())[:-20],
    ],
    ids=["short", "bomb", "no object", "shape", "negative", "offset", "gap", "type", "truncated", "longer", "torn"],
)
def test_x08_lengths_shapes_and_offsets_are_checked_against_the_file(data):
    with pytest.raises((ValueError, KeyError)):
        parse_tensors(data)


def test_random_bytes_never_do_more_than_raise():
    generator = random.Random(1)
    good = bytes(save_by_library({"a": torch.randn(3, 4)}))
    for _ in range(300):
        data = bytearray(good)
        for _ in range(generator.randint(1, 4)):
            data[generator.randrange(min(100, len(data)))] = generator.randrange(256)
        try:
            parse_tensors(data)
        except (ValueError, KeyError, TypeError):
            pass


def test_s17_links_and_pipes_are_refused(tmp_path):
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(Failure) as caught:
            read_file(tmp_path / name)
        assert caught.value.outcome.code == Exit.SECURITY
