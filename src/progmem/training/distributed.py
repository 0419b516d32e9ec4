"""Where a run trains: its device, its precision, its processes and how they share a batch.

The losses see the processes as a `progmem.losses.total.Group`. Under autocast weights are cast once
a step; autocast by itself would cast one again at every use.
"""

import os
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.func import functional_call

from progmem.config import RunConfig
from progmem.errors import ConfigError
from progmem.losses.total import Group
from progmem.model.saving import gpu_or_cpu

PRECISIONS: dict[str, Any] = {"32": "32-true", "bf16": "bf16-mixed", "64": "64-true"}


def choose_device(cfg: RunConfig) -> str:
    """The kind of device a run is on: as configured, or a GPU if there is one."""
    device = cfg.train.device
    if device == "auto":
        device = gpu_or_cpu()
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("train.device is cuda, but no GPU is available here; set auto or cpu")
    return device


def make_fabric(cfg: RunConfig) -> Fabric:
    """Devices, precision and processes, from the settings and the launcher's environment."""
    device = choose_device(cfg)
    precision = cfg.train.precision
    if precision == "auto":
        precision = "bf16" if device == "cuda" else "32"
    world = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
    fabric = Fabric(
        accelerator=device,
        devices=local,
        num_nodes=world // local,
        strategy="ddp" if world > 1 else "auto",
        precision=PRECISIONS[precision],
    )
    fabric.launch()
    return fabric


def any_process(fabric: Fabric, flag: bool) -> bool:
    """Whether ``flag`` is set in any process."""
    if fabric.world_size == 1:
        return flag
    count = torch.tensor(float(flag), device=fabric.device)
    dist.all_reduce(count)
    return bool(count > 0)


def world_and_rank() -> tuple[int, int]:
    """The number of processes of this run, and which of them this one is."""
    return (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)


def split_rows(rows: int, world: int, rank: int) -> slice:
    """The rows of a global batch that process ``rank`` holds: consecutive, as even as can be."""
    whole, more = divmod(rows, world)
    start = rank * whole + min(rank, more)
    return slice(start, start + whole + (rank < more))


def split_batch(rows: int) -> Group:
    """A global batch of so many rows, as the processes of this run share it."""
    return Processes(rows) if dist.is_initialized() else OneProcess(rows)


class OneProcess:
    """A batch of which this process holds all rows."""

    def __init__(self, rows: int) -> None:
        self.rows = slice(0, rows)

    def gather(self, x: Tensor) -> Tensor:
        return x

    def total(self, x: Tensor) -> Tensor:
        return x


class Processes:
    """A batch of which each process holds a part; parts may differ by a row."""

    def __init__(self, rows: int) -> None:
        world, rank = world_and_rank()
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


def call_with_cast_weights(module: nn.Module, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """``module(x, ...)``; under autocast with weights that are all cast beforehand."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or torch.compiler.is_compiling():
        return module(x, *args, **kwargs)
    weights = cast_weights(module, torch.get_autocast_dtype(kind))
    return functional_call(module, weights, (x, *args), kwargs)


def cast_weights(module: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """The parameters of ``module`` by name, the matrices of its linear maps in ``dtype``.

    Gradients reach the module's own parameters. All weights, and all gradients, are cast by one
    operation.
    """
    named = {
        f"{name}.weight".removeprefix("."): part.weight
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear)
    }
    cast: tuple[Tensor, ...] = _Cast.apply(dtype, *named.values())  # type: ignore[no-untyped-call]
    return dict(module.named_parameters()) | dict(zip(named, cast, strict=True))


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.dtypes = [weight.dtype for weight in weights]
        return _copies(weights, [dtype] * len(weights))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        index = [i for i, gradient in enumerate(grads) if gradient is not None]
        cast = _copies([g for g in grads if g is not None], [ctx.dtypes[i] for i in index])
        by_index = dict(zip(index, cast, strict=True))
        return None, *(by_index.get(i) for i in range(len(grads)))


def _copies(tensors: Any, dtypes: list[torch.dtype]) -> tuple[Tensor, ...]:
    copies = [torch.empty_like(t, dtype=d) for t, d in zip(tensors, dtypes, strict=True)]
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return tuple(copies)
