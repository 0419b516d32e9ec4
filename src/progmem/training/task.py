"""What a trainer needs to know of a task: pretraining and training on labels are the two."""

from typing import Any, Protocol

from torch import Tensor, nn


class Task(Protocol):
    """What is trained, on which batches, and its loss.

    A batch is a named tuple of tensors and of what never changes; it has a ``size`` (the rows of
    the global batch), the ``lengths`` of this process' rows, and ``rows(part)`` for some of them.
    """

    batch_size: int  # rows of a global batch; the last one of an epoch may have fewer
    compares_rows: bool  # whether the loss of a row depends on other rows of the batch

    @property
    def learner(self) -> nn.Module:
        """What is trained, the network with its heads, on its device."""

    def make_batch(self, step: int, *, batch_size: int | None = None) -> Any:
        """The batch of a step, a function of seed, step and rows alone."""

    def embed(self, learner: nn.Module, batch: Any) -> tuple[Any, Tensor]:
        """What the loss takes, and sequence vectors; ``learner`` is its own or Fabric's wrapper."""

    def losses(self, batch: Any, embedded: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the own rows to be differentiated; it and its parts over all processes."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        """What the optimiser is given; a group's rate is ``factor`` times that of the run."""
