"""The files of an export that somebody has damaged, or made up: one named error, or what they say."""

import io
import json
import logging
import zipfile
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load as their_load
from safetensors.torch import save

from drivetrain.serving.files import BadExport, load_program, load_weights

TENSORS = {
    "a": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "b.empty": torch.empty(0, 4),
    "c": torch.tensor([True, False, True]),
    "d": torch.arange(3, dtype=torch.int64),
    "e": torch.tensor(1.5).bfloat16(),
}
FILE = save(TENSORS)
LENGTH = int.from_bytes(FILE[:8], "little")
HEADER = json.loads(FILE[8 : 8 + LENGTH])
MANY = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def file_of(header, data=FILE[8 + LENGTH :]):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def read(path, content):
    """The tensors of a file, None where it is refused by its name."""
    path.write_bytes(content)
    try:
        return load_weights(path)
    except BadExport as error:
        if str(path) not in str(error):
            raise
        return None


def theirs(content):
    """What safetensors' own reader makes of a file, None where it refuses it."""
    try:
        return their_load(content)
    except (SafetensorError, KeyError):  # a KeyError: of types that it has no numbers of torch for
        return None


def require_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, tensor in found.items():
        assert (tensor.dtype, tensor.shape) == (wanted[name].dtype, wanted[name].shape)
        assert torch.equal(tensor.flatten().view(torch.uint8), wanted[name].flatten().view(torch.uint8))


@MANY
@given(st.lists(st.tuples(st.integers(0, 8 + LENGTH - 1), st.integers(0, 255)), min_size=1, max_size=3))
def test_a_header_with_other_bytes_is_refused_or_means_what_it_means_to_others(tmp_path, changes):
    content = bytearray(FILE)
    for place, byte in changes:
        content[place] = byte
    found = read(tmp_path / "w", bytes(content))
    if found is not None:
        require_same(found, theirs(bytes(content)))


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NUMBERS = st.lists(st.integers(-2, 90) | st.booleans() | st.floats(0, 9) | st.just(2**62), max_size=4)
ENTRY = st.fixed_dictionaries(
    {"dtype": st.sampled_from(["F32", "I64", "BOOL", "U16", "C64", "x"]) | ANY, "shape": NUMBERS | ANY},
    optional={"data_offsets": NUMBERS | ANY},
)


@MANY
@given(st.dictionaries(st.sampled_from(list(TENSORS)), ENTRY | ANY, min_size=1) | ANY)
def test_a_header_of_other_values_is_refused_or_means_what_it_means_to_others(tmp_path, changed):
    header = changed
    if isinstance(changed, dict):
        header = {**HEADER, **changed}
    content = file_of(header)
    found = read(tmp_path / "w", content)
    if found is not None:
        require_same(found, theirs(content))


def test_a_file_as_it_was_written_is_read(tmp_path):
    require_same(read(tmp_path / "w", FILE), TENSORS)


HOSTILE = {
    "nothing": b"",
    "short": b"1234567",
    "long": (1 << 62).to_bytes(8, "little") + b"{}",
    "list": file_of([1]),
    "deep": file_of(b'{"a":' * 100_000),
    "digits": file_of(b'{"a": ' + b"9" * 10_000 + b"}"),
    "words": file_of(b"{\xff}"),
    "twice": file_of(json.dumps(HEADER).encode().replace(b'"d"', b'"a"')),
    "type": file_of({**HEADER, "a": {**HEADER["a"], "dtype": "F8_E4M3"}}),
    "shape": file_of({**HEADER, "a": {**HEADER["a"], "shape": [-2, -3]}}),
    "floats": file_of({**HEADER, "a": {**HEADER["a"], "shape": [2.0, 3.0]}}),
    "truths": file_of({**HEADER, "e": {**HEADER["e"], "shape": [True]}}),
    "large": file_of({**HEADER, "b.empty": {**HEADER["b.empty"], "shape": [0, 2**40, 2**40]}}),
    "overlap": file_of({**HEADER, "f": HEADER["a"]}),
    "hole": file_of({name: told for name, told in HEADER.items() if name != "a"}),
    "more": FILE + b"x",
    "less": FILE[:-1],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_file_that_contradicts_itself_is_told_by_its_name(tmp_path, what):
    assert read(tmp_path / "w", HOSTILE[what]) is None


class Sum(torch.nn.Module):
    """It has a constant, so that an archive has one."""

    def __init__(self):
        super().__init__()
        self.double = (torch.tensor([2.0]),)

    def forward(self, weights, inputs):
        return {"said": inputs["x"] * weights["w"] * self.double[0]}


@pytest.fixture(scope="module")
def graph():
    """An archive as exports have it."""
    given = {"w": torch.ones(1)}, {"x": torch.ones(3)}
    dynamic = {"w": None}, {"x": {0: torch.export.Dim("n")}}
    logger = logging.getLogger("torch.__trace")  # it tells pytest each step of a trace, which takes ten times as long
    before, logger.propagate = logger.propagate, False
    program = torch.export.export(Sum(), given, dynamic_shapes=dynamic, strict=False)
    logger.propagate = before
    program.example_inputs = None
    archive = io.BytesIO()
    torch.export.save(program, archive)
    return archive.getvalue()


def said_by(path, content):
    """What a program says, None where the archive is refused by its name."""
    path.write_bytes(content)
    try:
        program = load_program(path)
    except BadExport as error:
        if str(path) not in str(error):
            raise
        return None
    return program({"w": torch.tensor([3.0])}, {"x": torch.arange(4.0)})["said"].tolist()


def archive_of(parts, **options):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", **options) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return made.getvalue()


def parts_of(graph):
    with zipfile.ZipFile(io.BytesIO(graph)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_graph_as_torch_wrote_it_is_a_program(tmp_path, graph):
    assert said_by(tmp_path / "g.pt2", graph) == [0.0, 6.0, 12.0, 18.0]


@settings(MANY, max_examples=60)
@given(st.data())
def test_an_archive_with_other_bytes_is_refused_or_says_the_same(tmp_path, graph, data):
    content = bytearray(graph)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert said_by(tmp_path / "g.pt2", bytes(content)) in (None, [0.0, 6.0, 12.0, 18.0])


@settings(MANY, max_examples=40)
@given(st.data())
def test_a_graph_with_other_values_is_refused_or_is_a_program(tmp_path, graph, data):
    parts = parts_of(graph)
    name = data.draw(st.sampled_from([name for name in parts if name.endswith(".json")]))
    tree = json.loads(parts[name])
    node, key = None, None
    inner = tree
    while isinstance(inner, (dict, list)) and inner and data.draw(st.integers(0, 5)):
        node, key = inner, data.draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
        inner = inner[key]
    if node is not None:
        node[key] = data.draw(ANY)
    (tmp_path / "g.pt2").write_bytes(archive_of({**parts, name: json.dumps(tree)}))
    with suppress(BadExport):
        load_program(tmp_path / "g.pt2")


@pytest.mark.parametrize("part", ["models/model.json", "data/constants/tensor_0", "archive_version"])
def test_a_part_that_would_inflate_is_refused_before_it_is_read(tmp_path, graph, part, monkeypatch):
    parts = parts_of(graph)
    (name,) = [each for each in parts if each.endswith(part)]
    content = archive_of({**parts, name: b" " * (64 << 20)}, compression=zipfile.ZIP_DEFLATED)
    read_parts = []
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda archive, name: read_parts.append(name) or b"")
    assert len(content) < 1 << 20
    assert said_by(tmp_path / "g.pt2", content) is None
    assert read_parts == []


def test_parts_that_share_their_bytes_are_refused(tmp_path, graph):
    content = bytearray(graph)
    with zipfile.ZipFile(io.BytesIO(graph)) as archive:
        start = archive.start_dir
    # The directory says of each part that it is as long as the longest one.
    at = bytes(content).find(b"PK\1\2", start)
    while at >= 0:
        content[at + 20 : at + 28] = np.array([len(graph) // 2] * 2, "<u4").tobytes()
        at = bytes(content).find(b"PK\1\2", at + 4)
    assert said_by(tmp_path / "g.pt2", bytes(content)) is None


def test_torch_reads_the_archive_that_was_looked_at(tmp_path, graph):
    """Python finds an archive's directory by the end of its file, other readers by what the directory says of itself:
    in a file of two archives each finds another one."""
    other = archive_of({name: part.replace(b"aten.mul", b"aten.add") for name, part in parts_of(graph).items()})
    assert said_by(tmp_path / "g.pt2", other) == [5.0, 6.0, 7.0, 8.0]
    graph = archive_of(parts_of(graph))
    for first, last, wanted in ((other, graph, [0.0, 6.0, 12.0, 18.0]), (graph, other, [5.0, 6.0, 7.0, 8.0])):
        assert said_by(tmp_path / "g.pt2", first + last) == wanted
