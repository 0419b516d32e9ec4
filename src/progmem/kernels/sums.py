"""Sums over many rows as a product with ones, which the library spreads over the whole GPU."""

from functools import cache

import torch
from torch import Tensor


def column_sums(x: Tensor) -> Tensor:
    """Sum of ``x`` (R, ...) over its first axis, float32."""
    rounded = x.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"
    if not x.is_cuda or rounded:  # nobody asked for rounded sums
        return x.sum(0, dtype=torch.float32)
    R = len(x)
    ones = _ones(1 << (R - 1).bit_length(), x.dtype, x.device)[:, :R]
    return torch.mm(ones, x.reshape(R, -1), out_dtype=torch.float32).view(x.shape[1:])


@cache
def _ones(rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Kept for good: a recorded graph goes on reading them."""
    with torch.inference_mode(False):
        return torch.ones(1, rows, dtype=dtype, device=device)
