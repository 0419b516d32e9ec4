"""The neighbourhood encoder's attention on a GPU by hand: band and CLS, one function for autograd.

CLS is row 0 of a series, its tokens the rows after it. Twin: `NeighbourhoodEncoder.refine` and
`summarise`.

Shapes: B series, K tokens, n neighbourhood, P pieces of c queries and n + c keys, D width, H heads,
d = D / H.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.kernels import few_keys, lay
from progmem.model.rotary import Turn, turns


class Band(NamedTuple):
    """What has no gradient."""

    places: lay.Places  # of a piece's keys
    turn: Turn
    mask: Tensor  # (B, P, c, n+c)
    cls_mask: Tensor  # (B, 1, 1, 1+K)


def lay_out_band(valid: Tensor, mask: Tensor, *, width: int) -> Band:
    """For tokens ``valid`` (B, K), with the pieces' ``mask`` (B, P, c, n+c)."""
    _, P, c, keys = mask.shape
    places = lay.Places(keys, c, P, before=keys - c)
    turn = turns(torch.empty(keys, width, device=valid.device))
    return Band(places, turn, mask, F.pad(valid, (1, 0), value=True)[:, None, None])


def attend_band(band: Band, qkv: Tensor) -> Tensor:
    """Attention of CLS and tokens, (B, 1+K, H, d), from projections (B, 1+K, 3, H, d)."""
    out: Tensor = _Band.apply(band, qkv)  # type: ignore[no-untyped-call]
    return out


class _Band(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, band: Band, qkv: Tensor) -> Tensor:
        B, rows, _, H, d = qkv.shape
        P, c = band.mask.shape[1:3]
        laid = lay.lay(qkv[:, 1:], None, band.turn.cos, band.turn.sin, band.places)
        tokens, cls = qkv.new_empty(B, P, c, H, d), qkv.new_empty(B, 1, 1, H, d)
        lse, cls_lse = (t.new_empty(t.shape[:-1], dtype=torch.float32) for t in (tokens, cls))
        few_keys.run_forward(_seen_by_tokens(band, laid), out=tokens, lse=lse)
        few_keys.run_forward(_seen_by_cls(band, qkv), out=cls, lse=cls_lse)
        ctx.band = band
        ctx.save_for_backward(qkv, laid, tokens, lse, cls, cls_lse)
        return torch.cat([cls[:, 0], tokens.flatten(1, 2)[:, : rows - 1]], dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, back: Tensor) -> tuple[None, Tensor]:
        band: Band = ctx.band
        qkv, laid, tokens, lse, cls, cls_lse = ctx.saved_tensors
        P, c = band.mask.shape[1:3]
        short = P * c - (qkv.shape[1] - 1)
        pulls = torch.unflatten(F.pad(back[:, 1:], (0, 0, 0, 0, 0, short)), 1, (P, c))
        made, first = torch.empty_like(laid), laid[:, :, :0, 0]
        few_keys.run_backward(
            _seen_by_tokens(band, laid), out=tokens, lse=lse, back=pulls,
            made=[made[:, :, -c:, 0], first, first, made[:, :, :, 1], made[:, :, :, 2]], keys=True,
        )  # fmt: skip
        d_qkv = torch.empty_like(qkv)
        d_qkv[:, 0] = 0.0
        lay.gather(
            made, band.turn.cos, band.turn.sin, band.places, out=d_qkv[:, 1:],
            silent=band.places.before,
        )  # fmt: skip
        q, k, v = d_qkv[:, None].unbind(3)  # (B, 1, 1+K, H, d)
        first = q[:, :, :0]
        few_keys.run_backward(
            _seen_by_cls(band, qkv), out=cls, lse=cls_lse, back=back[:, None, :1],
            made=[q[:, :, :1], first, first, k, v], keys=True, onto=0,
        )  # fmt: skip
        return None, d_qkv


def _seen_by_tokens(band: Band, laid: Tensor) -> few_keys.Given:
    q, k, v = (t.transpose(2, 3) for t in laid.unbind(3))  # (B, P, H, n+c, d)
    none = k[:, :, :, :0]
    return few_keys.Given(q[:, :, :, band.places.before :], none, none, k, v, band.mask)


def _seen_by_cls(band: Band, qkv: Tensor) -> few_keys.Given:
    q, k, v = (t.transpose(1, 2)[:, None] for t in qkv.unbind(2))  # (B, 1, H, 1+K, d)
    none = k[:, :, :, :0]
    return few_keys.Given(q[:, :, :, :1], none, none, k, v, band.cls_mask)
