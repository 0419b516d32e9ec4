"""What the kernels of the contrast share: their arguments, and the band that a program works on.

Shapes: S sequences of both views here, b of one view, B of the global batch, T anchors a sequence,
P entries a sequence, M negatives, D width, E entries of a view's bank.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

TILE, DEPTH = 64, 32  # of a program's products: rows and columns, and what is summed at once
WARPS, STAGES = 4, 3
ROWS, COLUMNS = 4, 512  # of a program's sums


class Given(NamedTuple):
    """What the kernels take, dense; a view's anchors meet the other view's bank."""

    anchors: Tensor  # (S, T, D) float32, the sequences from number ``begin`` of both views' 2b
    bank: Tensor  # (2, E, D)
    known: Tensor  # (2, E), entries that exist
    order: Tensor  # (B P,), the entry at each place; sequence i meets places i P .. i P + M - 1
    mask: Tensor  # (b, M)
    temperature: Tensor | float
    first: int  # number of the first own sequence in the global batch
    begin: int
    entries: int  # P


def anchor_grid(given: Given) -> tuple[int, int]:
    S, T, _ = given.anchors.shape
    return triton.cdiv(min(S, len(given.mask)) * T, TILE), 2


def sizes_of(given: Given) -> tuple[Any, ...]:
    S, T, _ = given.anchors.shape
    b, M = given.mask.shape
    pool, E = len(given.order), given.bank.shape[1]
    return given.temperature, given.first, given.begin, S, b, pool, E, M, T, given.entries


def tiles_for(given: Given) -> dict[str, Any]:
    return {
        "D": given.bank.shape[2], "POINTED": isinstance(given.temperature, Tensor),
        "X": TILE, "Y": DEPTH, "num_warps": WARPS, "num_stages": STAGES,
    }  # fmt: skip


@triton.jit
def sharpness_of(temperature, POINTED: tl.constexpr):
    if POINTED:
        temperature = tl.load(temperature).to(tl.float32)
    return 1.0 / temperature


@triton.jit
def block_of(
    block, view, first, begin, S, b, M, T, P, R: tl.constexpr
):  # fmt: skip
    """R anchors of a view: which exist, their rows, own sequences, and the places they meet."""
    low = tl.maximum(begin, view * b)
    count = tl.maximum(tl.minimum(begin + S, (view + 1) * b) - low, 0)  # sequences of the view
    row = block * R + tl.arange(0, R)
    there = row < count * T
    own = low - view * b
    last = tl.minimum((block * R + R - 1) // T, count - 1)
    start = (first + own + block * R // T) * P
    end = (first + own + last) * P + M
    return there, ((low - begin) * T + row).to(tl.int64), own + row // T, start, end


@triton.jit
def entries_at(order, column, pool):
    """The entries at columns of the band: places beyond the last are the first again."""
    return tl.load(order + column % pool)
