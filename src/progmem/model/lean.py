"""Long windows on a GPU without a gradient: few launches, and no row is laid out twice.

Positions are counted from the start of the series here, which turns every key once instead of once
per window: scores depend on distances alone. Rows go through a layer's products in pieces. Tokens
may be missing after the end of a series, which no token before it sees; what stands in their place
is finite and means nothing.

Twins: `PMABlock.forward` and `NeighbourhoodEncoder.forward`.

Shapes: B series, K tokens, N windows, W window, n slots, R rows, D width, H heads, d = D / H.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from progmem import kernels
from progmem.config import ModelConfig
from progmem.model.attention import (
    AttentionLayer,
    FeedForward,
    Norm,
    precision_of,
    split_heads,
)
from progmem.model.gates import TokenGate, mixed
from progmem.model.geometry import unfold_windows
from progmem.model.rotary import Turn, turns
from progmem.model.scan import MemorySlots, Scanned
from progmem.model.twins import cast_once

if TYPE_CHECKING:
    from progmem.kernels.norm_rows import Normed
    from progmem.model.encoder import NeighbourhoodEncoder
    from progmem.model.pma import Layout, PMABlock

PIECE = 2**15  # rows at a time: more would need more memory, fewer more launches
LONGEST = 2**17  # tokens, as positions of all of them are kept
SHARED = 160_000  # bytes of fast memory that the kernels take at most


def takes(x: Tensor, cfg: ModelConfig, layer: AttentionLayer, *, gaps: bool) -> bool:
    """Whether tokens ``x`` (B, K, D), missing before a series' end if ``gaps``, can go this way."""
    if torch.is_grad_enabled() or layer.training or gaps or not kernels.fit(x):
        return False  # training makes some rows twice, which must agree to the last bit
    from progmem.kernels import band, carry, few_keys

    keys = 2 * cfg.slots + cfg.window
    carried = cfg.slots == 0 or (cfg.gate_carry and cfg.readout == "carry")
    return (
        carried
        and cfg.slots <= carry.MOST_SLOTS
        and not few_keys.takes(keys, keys, cfg.dim // cfg.heads)
        and cfg.dim <= carry.WIDEST
        and cfg.dim // cfg.heads <= band.WIDEST
        and x.shape[1] <= LONGEST
        and _shared(x) >= SHARED
    )


def _shared(x: Tensor) -> int:
    if not x.is_cuda:
        return SHARED
    found = torch.cuda.get_device_properties(x.device)
    return int(getattr(found, "shared_memory_per_block_optin", 0))


def run_block(
    block: "PMABlock", tokens: Tensor, signal: Tensor, below: Tensor | None, layout: "Layout"
) -> tuple[Tensor, Scanned | None]:
    """`PMABlock.forward`."""
    from progmem.kernels import band

    dtype = precision_of(block.layer.qkv)
    block = cast_once(block, dtype)
    cfg, layer, pool = block.cfg, block.layer, block.aggregator
    N = layout.windows.shape[1]
    tokens, signal = tokens.contiguous(), signal.contiguous()  # a tokenizer's need not be
    rows = tokens if block.token_gate is None else _gated(block.token_gate, tokens, signal)
    normed = rows.new_empty(rows.shape, dtype=dtype)
    _norm(rows[:, None], layer.norm, out=normed, segment=block.segment)
    qkv = _product(normed, layer.qkv.weight)  # (B, K, 3D)
    del normed
    turn = _turn(qkv, cfg.heads)
    q, k, v = (unfold_windows(t, cfg, N) for t in qkv.chunk(3, dim=-1))  # (B, N, W, D)
    scanned, carry = None, None
    if block.slots is not None and below is not None:
        scanned = _scan(block.slots, layer, below, k, v, turn, layout, stride=cfg.stride)
        carry = scanned.carry
    attended = band.attend(q, k, v, carry, heads=cfg.heads)
    del q, k, v, qkv
    both = None if pool.overlap == 1 else pool.keys_and_values()
    out, known = complete(layer, unfold_windows(rows, cfg, N), attended, both)
    del attended
    merged = pool(out, layout.copies, known)
    del out, known
    if cfg.windows == "floor":  # tokens after the last window pass through
        merged = torch.where(layout.copies.any(2, keepdim=True), merged, rows)
    return feed_forward(block.feed_forward, merged), scanned


def run_encoder(
    encoder: "NeighbourhoodEncoder", tokens: Tensor, valid: Tensor
) -> tuple[Tensor, Tensor]:
    """`NeighbourhoodEncoder.forward`."""
    from progmem.kernels import band

    B, K, D = tokens.shape
    dtype = precision_of(encoder.attention_layers[0].qkv)
    encoder = cast_once(encoder, dtype)
    heads, cls = encoder.heads, encoder.start(B)
    seen = F.pad(valid, (1, 0), value=True)[:, None, None]
    for layer in encoder.attention_layers:
        normed = tokens.new_empty(B, 1 + K, D, dtype=dtype)  # CLS, tokens
        _norm(cls[:, None], layer.norm, out=normed[:, :1])
        _norm(tokens[:, None], layer.norm, out=normed[:, 1:])
        qkv = _product(normed, layer.qkv.weight)  # (B, 1+K, 3D)
        del normed
        q, k, v = (split_heads(t, heads) for t in qkv.chunk(3, dim=-1))
        attended = F.scaled_dot_product_attention(q[:, :, :1], k, v, seen)  # before any is turned
        cls = layer.complete(cls, attended)
        _turn(qkv[:, 1:], heads)
        q, k, v = qkv[:, None, 1:].chunk(3, dim=-1)
        attended = band.attend(q, k, v, heads=heads, reach=encoder.reach)
        del q, k, v, qkv
        tokens = complete(layer, tokens[:, None], attended)[0].squeeze(1)
    return encoder.finish(tokens, valid), encoder.norm(cls).squeeze(1)


def complete(
    layer: AttentionLayer, x: Tensor, attended: Tensor, also: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """`AttentionLayer.complete` of rows (B, N, W, D), weights in the type of ``attended``.

    Also gives the result's product with the weights ``also`` (E, D): (B, N, W, E).
    """
    from progmem.kernels import rows

    ahead = layer.feed_forward
    R, D = attended.numel() // attended.shape[-1], attended.shape[-1]
    made = attended.new_empty(R, D, dtype=torch.promote_types(x.dtype, attended.dtype))
    known = None if also is None else attended.new_empty(R, len(also))
    run = _Ahead(ahead, min(R, PIECE))
    total = made.new_empty(min(R, PIECE), D)
    norm = _normed(ahead.norm)
    for first in range(0, R, PIECE):
        part = attended.view(R, D)[first : first + PIECE]
        m = len(part)
        more = torch.mm(part, layer.out.weight.T, out=run.narrow[:m])
        rows.add_norm(
            x, more, layer.out.bias, norm, first=first, total=total[:m], out=run.normed[:m]
        )
        cast = run(total[:m], made[first : first + m], cast=also is not None)
        if also is not None and known is not None:
            torch.mm(cast, also.T, out=known[first : first + m])
    shape = attended.shape[:-1]
    return made.view(*shape, D), None if known is None else known.view(*shape, -1)


def feed_forward(ahead: FeedForward, x: Tensor) -> Tensor:
    """`FeedForward.forward` of tokens (B, K, D)."""
    given = x.flatten(0, -2)
    run = _Ahead(ahead, min(len(given), PIECE))
    made = torch.empty_like(given, dtype=torch.promote_types(x.dtype, run.wide.dtype))
    for first in range(0, len(given), PIECE):
        part = given[first : first + PIECE]
        _norm(part[None, None], ahead.norm, out=run.normed[None, : len(part)])
        run(part, made[first : first + PIECE])
    return made.view(x.shape)


class _Ahead:
    """A feed-forward layer's products, with room for a piece of the rows."""

    def __init__(self, ahead: FeedForward, rows: int) -> None:
        self.ahead, weight = ahead, ahead.widen.weight
        D = weight.shape[1]
        self.normed, self.narrow, self.cast = weight.new_empty(3, rows, D).unbind(0)
        self.wide = weight.new_empty(rows, 4 * D)

    def __call__(self, x: Tensor, out: Tensor, *, cast: bool = False) -> Tensor:
        """x + W2 gelu(W1 normed) into ``out`` (m, D); if ``cast``, also in the products' type."""
        from progmem.kernels import biased, rows

        m, widen, narrow = len(x), self.ahead.widen, self.ahead.narrow
        wide = torch.mm(self.normed[:m], widen.weight.T, out=self.wide[:m])
        biased.run_gelu_forward(wide, widen.bias, out=wide)
        more = torch.mm(wide, narrow.weight.T, out=self.narrow[:m])
        other = self.cast[:m] if cast and out.dtype != self.cast.dtype else None
        rows.add(x, more, narrow.bias, out=out, cast=other)
        return out if other is None else other


def _scan(
    slots: MemorySlots,
    layer: AttentionLayer,
    below: Tensor,
    k: Tensor,
    v: Tensor,
    turn: Turn,
    layout: "Layout",
    *,
    stride: int,
) -> Scanned:
    """`MemorySlots.scan`; keys of the carry are turned too, and heads are joined: (B, N, n, D)."""
    from progmem.kernels import carry
    from progmem.model.tape import weights_of

    B, N = layout.alive.shape
    reset = slots.ready()
    bar = slots.gate(below, reset)  # (B or 1, N or 1, n, D)
    _, bar_k, bar_v = (t.expand(B, N, -1, -1) for t in layer.project(bar, slots.segments[1]))
    weights = weights_of(slots, layer, reset, slots.segments[0], layer.qkv.weight.dtype)
    seen = carry.Seen(bar_k, bar_v, k, v, layout.in_window, *turn)
    made = carry.scan(
        weights, slots.start(B), seen, layout.alive,
        heads=slots.heads, stride=stride, eps=layer.norm.eps,
    )  # fmt: skip
    return Scanned(made.memory, (made.carry_k, made.carry_v), made.memory[:, -1].clone())


def _gated(gate: TokenGate, tokens: Tensor, signal: Tensor) -> Tensor:
    """`TokenGate.forward`, the two norms side by side from the start."""
    B, K, D = tokens.shape
    seen = tokens.new_empty(B, K, 2 * D, dtype=precision_of(gate.mix))
    for x, out in zip((tokens, signal), seen.chunk(2, dim=-1), strict=True):
        _norm(x[:, None], gate.norm, out=out)
    return mixed(_product(seen, gate.mix.weight), gate.mix.bias[None], tokens, signal)


def _norm(x: Tensor, norm: Norm, *, out: Tensor, segment: Tensor | None = None) -> None:
    from progmem.kernels import rows

    rows.norm(x, _normed(norm), out=out, segment=segment)


def _normed(norm: Norm) -> "Normed":
    from progmem.kernels.norm_rows import Normed

    return Normed(norm.weight, norm.bias, norm.eps)


def _product(x: Tensor, weight: Tensor) -> Tensor:
    made = torch.mm(x.flatten(0, -2), weight.T)
    return made.view(*x.shape[:-1], -1)


def _turn(qkv: Tensor, heads: int) -> Turn:
    """Turn queries and keys of (B, K, 3D) in place, each by its token's place in the series."""
    from progmem.kernels import rows

    D = qkv.shape[-1] // 3
    turn = turns(qkv[..., : D // heads])
    rows.turn(qkv[..., : 2 * D], *turn, heads=2 * heads)
    return turn
