"""One update of the weights: gradients, clipping, the optimiser; and what is told of it."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch
from lightning.fabric import Fabric
from torch import Tensor

from progmem.errors import TrainingError
from progmem.settings import TrainConfig
from progmem.training.two_pass import backward_in_parts


class Outcome(NamedTuple):
    """What an update tells; on a GPU its values may still be on their way."""

    number: int
    names: tuple[str, ...]
    values: Tensor
    sequence: Tensor  # (b, D), sequence vectors of the first view
    rows: int  # of the global batch
    arrived: torch.cuda.Event | None = None

    def read(self) -> dict[str, float]:
        """The values by name; one that is not a number ends the run by name."""
        if self.arrived is not None:
            self.arrived.synchronize()
        values = dict(zip(self.names, self.values.tolist(), strict=True))
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        if bad:
            causes = [name for name in bad if name not in ("loss", "gradient")]
            names = ", ".join(causes or bad[:1])
            raise TrainingError(
                f"step {self.number + 1}: {names} is not a finite number; the last good "
                "checkpoint is kept. Look for extreme values in the data, or lower train.lr"
            )
        return values


class BatchStep(Protocol):
    """What is done with one batch before the optimiser: with labels or without."""

    batch_size: int

    def make(self, number: int) -> Any: ...

    def embed(self, made: Any, part: slice) -> tuple[Any, Tensor]: ...

    def losses(self, made: Any, views: Any) -> tuple[Tensor, dict[str, Tensor]]: ...


class Update:
    """The plain path: an update whose values are read before the weights change.

    ``in_parts`` adds the gradients of a batch that is held in memory a part at a time.
    """

    def __init__(
        self,
        step: BatchStep,
        wrapped: Any,
        optimizer: Any,
        fabric: Fabric,
        cfg: TrainConfig,
        *,
        in_parts: Callable[..., tuple[dict[str, Tensor], Tensor, int]] = backward_in_parts,
    ) -> None:
        self.step, self.wrapped, self.optimizer = step, wrapped, optimizer
        self.fabric, self.cfg, self.in_parts = fabric, cfg, in_parts

    def __call__(self, number: int) -> Outcome:
        if self.cfg.parts == 1:
            made = self.step.make(number)
            told, sequence = self.gradients(made)
            rows = made.batch
        else:
            told, sequence, rows = self.in_parts(
                self.step, number, self.cfg.parts, self.backward, unsynchronised=self.apart
            )
            told["gradient"] = self.clip()
        outcome = Outcome(
            number, tuple(told), torch.stack(list(told.values())).cpu(), sequence, rows
        )
        outcome.read()  # nothing that is not finite reaches the weights
        self.optimizer.step()
        self.optimizer.zero_grad()
        return outcome

    def gradients(self, made: Any) -> tuple[dict[str, Tensor], Tensor]:
        """Clipped gradients of a batch; the loss, its parts, the gradient's norm; sequences."""
        views, sequence = self.step.embed(made, slice(None))
        loss, told = self.step.losses(made, views)
        self.backward(loss)
        return {**told, "gradient": self.clip()}, sequence

    def backward(self, loss: Tensor) -> None:
        self.fabric.backward(loss * self.fabric.world_size)  # data parallelism will average

    def clip(self) -> Tensor:
        """Bound the gradient, and its norm before that."""
        norm = self.fabric.clip_gradients(
            self.wrapped, self.optimizer, max_norm=self.cfg.clip, error_if_nonfinite=False
        )
        return torch.as_tensor(norm)

    def apart(self) -> AbstractContextManager[None]:
        """A backward pass that data parallelism is not told of."""
        return self.fabric.no_backward_sync(self.wrapped, enabled=self.fabric.world_size > 1)


Advance = Callable[[int], Outcome]


def make_optimizer(groups: list[dict[str, Any]], lr: float, device: torch.device) -> Any:
    """AdamW; on a GPU its rate and its steps live there, so that an update can be recorded."""
    if device.type != "cuda":
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.999))
    groups = [{**group, "lr": torch.tensor(lr, device=device)} for group in groups]
    return torch.optim.AdamW(groups, betas=(0.9, 0.999), fused=True, capturable=True)


def set_rate(optimizer: Any, lr: float) -> None:
    """Set the learning rate; that of a group with a ``factor`` is so many times as large."""
    for group in optimizer.param_groups:
        rate = lr * group.get("factor", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
