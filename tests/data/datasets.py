"""Datasets as a user would write them."""

import os
import random

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


class Empty(Noisy):
    """Nothing."""

    def __len__(self):
        return 0
