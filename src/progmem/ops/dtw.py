"""Dynamic time warping (DTW) of all pairs of series, many pairs at a time on any device.

The cost of aligning the first i samples of one series with the first j of another needs those of
(i-1, j), (i, j-1) and (i-1, j-1). Cells with equal i + j do not need each other: for all pairs they
are computed together, one such diagonal after the other.

Shapes: R series, A and B of them at a time, L samples, C channels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from progmem.ops import with_fused

CELLS_AT_ONCE = {"cpu": 2**20, "cuda": 2**27}  # of a diagonal, over all pairs


def dtw_distances(series: Sequence[Tensor], *, band: float = 1.0) -> Tensor:
    """The distance of each two of series (L_i, C), (R, R): root of the least sum of squares.

    Times are moved by at most the share ``band`` of the longest series.

    Example:
        >>> import torch
        >>> from progmem.ops.dtw import dtw_distances
        >>> early, late = torch.zeros(2, 9, 1)
        >>> early[2], late[5] = 1, 1
        >>> [float(dtw_distances([early, late], band=share)[0, 1]) for share in (1.0, 0.5)]
        [0.0, 0.0]
    """
    lengths = torch.tensor([len(one) for one in series], device=series[0].device)
    padded = pad_sequence(list(series)).transpose(1, 2)  # (L, C, R)
    L, _, R = padded.shape
    step = max(1, int((CELLS_AT_ONCE[padded.device.type] / L) ** 0.5))
    found = padded.new_zeros(R, R)
    for a in range(0, R, step):
        for b in range(a, R, step):
            x, y = (slice(start, min(start + step, R)) for start in (a, b))
            apart = int((lengths[x][:, None] - lengths[y]).abs().max())
            reach = max(round(band * L), apart)  # the last cell of every pair is within it
            block = pair_costs(padded[..., x], padded[..., y], lengths[x], lengths[y], reach)
            found[x, y], found[y, x] = block, block.T
    return found.sqrt()


@with_fused("dtw.pair_costs")
def pair_costs(x: Tensor, y: Tensor, x_length: Tensor, y_length: Tensor, reach: int) -> Tensor:
    """The least sums of squares of A series (L, C, A) and B series (L, C, B), (A, B).

    Times are moved by at most ``reach``, which is at least as much as lengths differ.
    """
    L, A, B = len(x), x.shape[2], y.shape[2]
    x, backwards = x[..., None], y.flip(0)[:, :, None]  # (L, C, A, 1), (L, C, 1, B)
    last_cell = x_length[:, None] + y_length - 2  # (A, B), the diagonal it is on
    place = (x_length - 1)[:, None].expand(A, B)[None]
    # entry i + 1 is the cell (i, d - i) of the diagonal d; what lies outside costs too much
    blank = x.new_full((L + 1, A, B), torch.inf)
    before, newest = blank.clone(), blank.clone()
    before[0] = 0.0  # the way into the first cell
    found = x.new_zeros(A, B)
    first_end, last_end = int(last_cell.min()), int(last_cell.max())
    for d in range(last_end + 1):
        low = max(0, d - L + 1, -((reach - d) // 2))
        high = min(d, L - 1, (d + reach) // 2)
        shift = L - 1 - d  # y at d - i is `backwards` at i + shift
        cost = (x[low : high + 1] - backwards[low + shift : high + 1 + shift]).square().sum(1)
        ways = torch.minimum(newest[low : high + 1], newest[low + 1 : high + 2])
        ways = torch.minimum(ways, before[low : high + 1])
        before.fill_(torch.inf)
        before[low + 1 : high + 2] = cost + ways
        before, newest = newest, before
        if d >= first_end:
            here = newest[1:].gather(0, place)[0]
            found = torch.where(last_cell == d, here, found)
    return found
