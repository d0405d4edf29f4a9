"""Datasets as a user would write them."""

import os
import random
import time

import numpy as np
import torch


class Noisy:
    """Draws from every global generator, as augmentation does."""

    def __init__(self, size: int = 20):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return index, random.random(), float(np.random.rand()), torch.rand(2)


class Broken(Noisy):
    """One sample cannot be read."""

    def __getitem__(self, index):
        if index == 13:
            raise OSError("bad sector")
        return index


class Deadly(Noisy):
    """One sample kills the process that reads it."""

    def __getitem__(self, index):
        if index == 13:
            os._exit(1)
        return index


class Tensors(Noisy):
    """Tensors of every sort, in a structure; the second is how many threads its process computes with."""

    def __getitem__(self, index):
        return {
            "number": torch.full((3, 2), float(index)),
            "threads": torch.tensor(torch.get_num_threads()),
            "half": torch.tensor([index, -1.5], dtype=torch.bfloat16),
            "view": torch.arange(10_000)[index : index + 4 : 2],
            "leaf": torch.zeros(2, requires_grad=True),
        }


class Odd(Noisy):
    """Arrays of Python objects, and a method where others have a fingerprint."""

    def fingerprint(self):
        raise NotImplementedError

    def __getitem__(self, index):
        return np.array(["x" * 99 + str(index), (index, None)], dtype=object), np.float32(index)


class Slow(Noisy):
    """Ten milliseconds a sample."""

    def __getitem__(self, index):
        time.sleep(0.01)
        return index


class Empty(Noisy):
    """Nothing."""

    def __len__(self):
        return 0
