"""What a disk gives back of what was written to it."""

import errno
import hashlib

import numpy as np
import pytest

from drivetrain.checkpoint.files import CHUNK, FileMetadata, OpenFolder, write_file

SIZE = CHUNK + 1001
"""Of two chunks, and no whole number of words."""


def written(folder):
    """A durable file, and the memory it came from, in three arrays."""
    memory = np.random.default_rng(0).integers(0, 256, SIZE, dtype=np.uint8)
    memory[CHUNK:] = memory[: SIZE - CHUNK]  # as the chunk before it begins
    write_file(folder / "x", memory.tobytes())
    return memory, [memory[:16], memory[16:16], memory[16:]]


def test_what_reads_back_is_hashed(tmp_path):
    memory, content = written(tmp_path)
    with OpenFolder(tmp_path) as folder:
        found = folder.read_back("x", content)
        assert found == folder.metadata("x") == FileMetadata(SIZE, hashlib.sha256(memory.data).hexdigest())
        data, digest = folder.read_hashed("x")
    assert (bytes(data), digest) == (memory.tobytes(), found.sha256)


def exchange(data):
    """The sum of all words stays as it is."""
    data[64:72], data[128:136] = data[128:136].copy(), data[64:72].copy()
    return data


def flip(at):
    def flipped(data):
        data[at] ^= 1
        return data

    return flipped


OTHERS = {
    "first bit": flip(0),
    "last bit": flip(SIZE - 1),
    "words exchanged": exchange,
    "torn": lambda data: data[:-1],
    "torn at a chunk": lambda data: data[:CHUNK],
    "empty": lambda data: data[:0],
    "longer": lambda data: np.append(data, data[:1]),
}


@pytest.mark.parametrize("how", OTHERS)
def test_a_disk_that_gives_back_anything_else_is_found(tmp_path, how):
    memory, content = written(tmp_path)
    (tmp_path / "x").write_bytes(OTHERS[how](memory.copy()).tobytes())
    with OpenFolder(tmp_path) as folder, pytest.raises(OSError, match="reads back") as error:
        folder.read_back("x", content)
    assert error.value.errno == errno.EIO


def test_memory_that_has_changed_since_it_was_written_is_found(tmp_path):
    memory, content = written(tmp_path)
    flip(CHUNK + 7)(memory)
    with OpenFolder(tmp_path) as folder, pytest.raises(OSError, match="reads back differently"):
        folder.read_back("x", content)
