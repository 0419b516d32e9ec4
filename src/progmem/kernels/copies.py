"""Where the copies of a token lie in the windows, for kernels that never lay them out.

Copy r of token t is row t % S + rS of window t // S - r.

Shapes: B series, K tokens, N windows, W window, S stride, O copies, D width, H heads, d = D / H.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from progmem.kernels.row_parts import divided

TOKENS = 2  # of a program at a time
PROGRAMS = 528  # of a backward pass, each with its own sums for the weights


def sizes_of(rows: Tensor, exists: Tensor, stride: int, heads: int) -> dict[str, int]:
    _, N, W, D = rows.shape
    K, O = exists.shape[1:]
    d = D // heads
    return {
        "K": K, "N": N, "W": W, "S": stride, "O": O, "H": heads, "d": d,
        "H_": triton.next_power_of_2(heads), "d_": triton.next_power_of_2(d),
        "O_": triton.next_power_of_2(O), "TOKENS": TOKENS,
    }  # fmt: skip


def room_for(rows: Tensor, sizes: dict[str, int], dtype: torch.dtype | None = None) -> Tensor:
    """Like ``rows``, to be written by tokens; zeros where some rows have no token."""
    every = (sizes["N"] - 1) * sizes["S"] + sizes["W"] <= sizes["K"]
    return (torch.empty_like if every else torch.zeros_like)(rows, dtype=dtype)


@triton.jit
def place_of(
    token, r, b, exists, B, K, N, W: tl.constexpr, S: tl.constexpr, O: tl.constexpr
):  # fmt: skip
    """Which row of the windows copy r of some tokens is, if it is there, if there is such a row."""
    _, t = divided(token, K)
    w, j = t // S - r, t % S + r * S
    is_row = (token < B * K) & (w >= 0) & (w < N) & (j < W) & (r >= 0) & (r < O)
    there = is_row & (tl.load(exists + token * O + r, mask=is_row, other=0) != 0)
    return (b * N + w) * W + j, there, is_row


@triton.jit
def score_of(q, k, bias, by_width, h, r, there, H: tl.constexpr, O: tl.constexpr):
    """The score of copy r for each token and head, (TOKENS, H); lowest where it is not there."""
    more = tl.load(bias + h * O + r, mask=h < H, other=0.0).to(tl.float32)
    score = tl.sum(q * k, axis=2) * by_width + more[None, :]
    return tl.where(there[:, None], score, -3.0e38)


@triton.jit
def row_at(rows, row, there, inner, inside, step: tl.constexpr):
    at = rows + row[:, None, None] * step + inner[None]
    return tl.load(at, mask=there[:, None, None] & inside[None], other=0.0).to(tl.float32)
