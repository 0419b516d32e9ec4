"""The processes of a run as the losses see them (`progmem.losses.total.Group`)."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def split_rows(rows: int, world: int, rank: int) -> slice:
    """The rows of a global batch that process ``rank`` holds: consecutive, as even as can be."""
    whole, more = divmod(rows, world)
    start = rank * whole + min(rank, more)
    return slice(start, start + whole + (rank < more))


class OneProcess:
    """A batch that is all here."""

    def __init__(self, rows: int) -> None:
        self.rows = slice(0, rows)

    def gather(self, x: Tensor) -> Tensor:
        return x

    def total(self, x: Tensor) -> Tensor:
        return x


class Processes:
    """A batch of which each process holds a part; parts may differ by a row."""

    def __init__(self, rows: int) -> None:
        world, rank = dist.get_world_size(), dist.get_rank()
        self.parts = [split_rows(rows, world, r) for r in range(world)]
        self.rows = self.parts[rank]

    def gather(self, x: Tensor) -> Tensor:
        if x.dtype == torch.bool:
            return self.gather(x.to(torch.uint8)).bool()
        gathered: Tensor = _Gather.apply(x, self.parts)  # type: ignore[no-untyped-call]
        return gathered

    def total(self, x: Tensor) -> Tensor:
        x = x.detach().clone()
        dist.all_reduce(x)
        return x


class _Gather(torch.autograd.Function):
    """Rows of all processes in order; in backward each gets the sum of its rows' gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, parts: list[slice]) -> Tensor:
        ctx.own = parts[dist.get_rank()]
        most = max(p.stop - p.start for p in parts)
        padded = x.new_zeros(most, *x.shape[1:])  # equal shapes, as backends want
        padded[: len(x)] = x
        received = [torch.empty_like(padded) for _ in parts]
        dist.all_gather(received, padded)
        return torch.cat([r[: p.stop - p.start] for r, p in zip(received, parts, strict=True)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad[ctx.own], None
