"""What all objectives compare: vectors of length one."""

import torch.nn.functional as F
from torch import Tensor

from progmem import kernels


def unit(x: Tensor) -> Tensor:
    """``x`` (..., D) with its rows divided by their length."""
    if kernels.fit(x):
        from progmem.kernels.unit import unit as by_kernel

        return by_kernel(x)
    return F.normalize(x, dim=-1)
