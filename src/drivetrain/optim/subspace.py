"""The few directions in which a matrix has the most energy: the bases that GaLore projects gradients onto."""

from __future__ import annotations

import torch
from torch import Tensor

from drivetrain.optim.products import matmul

OVERSAMPLING = 8
"""Columns of a sketch beyond the rank: they are thrown away, and what is kept is the better for them."""


def exact(matrix: Tensor, rank: int) -> Tensor:
    """The leading left singular vectors, (m, rank), of a matrix (m, n), m <= n, the greatest first.

    They are eigenvectors of its Gram matrix: an order of magnitude cheaper than all factors.
    """
    # eigh gives the least eigenvalue first.
    _, vectors = torch.linalg.eigh(matmul(matrix, matrix.mT))
    vectors = vectors[:, -rank:].flip(1)
    return vectors * _signs(vectors)


def subspace(matrix: Tensor, rank: int, start: Tensor, iterations: int) -> Tensor:
    """As `exact`, but by power iterations on a sketch (Halko, Martinsson & Tropp 2011, algorithms 4.4 and 5.1).

    `start` (n, rank + some) is what the matrix is first applied to: random numbers, or columns that are nearly right.
    """
    basis = orthonormal(matmul(matrix, start))
    # Orthonormal after each: powers of a matrix would leave all columns in its first direction.
    for _ in range(iterations):
        basis = orthonormal(matmul(matrix, matmul(matrix.mT, basis)))
    vectors = matmul(basis, exact(matmul(basis.mT, matrix), rank))
    return vectors * _signs(vectors)


def orthonormal(columns: Tensor) -> Tensor:
    """An orthonormal basis of the columns' span; each vector is on the side of the column that it was made from.

    Columns that vanish, or depend on the others, leave vectors that are orthonormal all the same.
    """
    basis, triangle = torch.linalg.qr(columns)
    return basis * torch.where(triangle.diagonal() < 0, -1, 1)


def _signs(vectors: Tensor) -> Tensor:
    """1 or -1 for each column, so that its largest entry becomes positive, whatever a library chose."""
    return torch.where(vectors.gather(0, vectors.abs().argmax(0, keepdim=True)) < 0, -1, 1)
