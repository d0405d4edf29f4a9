"""What GaLore is to those who sum gradients over processes: declared here, since GaLore's own imports take long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor, nn


@runtime_checkable
class Projecting(Protocol):
    """An optimizer that needs of some gradients no more than their projections, in most of its steps."""

    given: dict[nn.Parameter, Tensor]
    """Gradients that are projections already, for the next step, which takes them out."""

    @property
    def matrices(self) -> Sequence[nn.Parameter]:
        """The parameters whose gradients it projects."""
        ...

    def keeps_basis(self, parameter: nn.Parameter) -> bool:
        """Whether the next step will do with the `projection` of this matrix's gradient; if not, it needs all of it."""
        ...

    def projection(self, parameter: nn.Parameter, gradient: Tensor) -> Tensor:
        """A gradient's projection, of the parameter's type; linear in the gradient."""
        ...
