"""Algorithm 1 and the aggregator's equations as plain loops: slow, literal, for one series.

Nothing is batched or padded here and positions are absolute token numbers, so agreement with the
library checks its padding, masks, layouts and relative positions too. Only the weights are the
library's. Every function works on one series: samples (L, C), tokens (K, D), memory (n, D);
R are the rows of one attention, H heads, d = D / H.
"""

import math

import torch
import torch.nn.functional as F


def encode(model, x):
    """(tokens, memory, sequence, eos, token_mask, window_mask) of samples (L, C), NaN missing."""
    cfg = model.cfg
    signal, valid = tokenize(model, x)
    K = len(signal)
    count = math.ceil if cfg.windows == "cover" else math.floor
    N = max(1, count((K - cfg.window) / cfg.stride) + 1)
    tokens = signal
    memory = [model.blocks[0].slots.reset] * N if cfg.slots else None  # M_{w,0} = M_r
    for b, block in enumerate(model.blocks):
        outs, memory, gated = pma(cfg, block, b, tokens, signal, valid, memory, N)
        tokens = []
        for t in range(K):
            copies = {
                (t - w * cfg.stride) // cfg.stride: outs[w][t] for w in range(N) if t in outs[w]
            }
            pooled = overlap_pool(cfg, block, copies) if copies else gated[t]  # in no window
            pooled = feed_forward(block.feed_forward, pooled)
            tokens.append(pooled if valid[t] else torch.zeros(cfg.dim))
    tokens, sequence = neighbourhood(cfg, model.encoder, tokens, valid)
    nonempty = [any(valid[t] for t in window(cfg, w, K)) for w in range(N)]
    eos = memory[-1].mean(0) if cfg.slots else None
    return (
        tokens,
        torch.stack(memory) if cfg.slots else None,
        sequence,
        eos,
        torch.tensor(valid),
        torch.tensor(nonempty),
    )


def tokenize(model, x):
    conv, cfg = model.tokenizer.conv, model.cfg
    tokens, valid = [], []
    start = 0
    while start + cfg.patch <= len(x):
        patch = x[start : start + cfg.patch]
        valid.append(bool((~patch.isnan()).any()))
        token = (conv.weight * patch.nan_to_num(nan=0.0).T).sum((1, 2)) + conv.bias
        tokens.append(token if valid[-1] else torch.zeros_like(token))
        start += cfg.patch_stride
    return tokens, valid


def window(cfg, w, K):
    return range(w * cfg.stride, min(w * cfg.stride + cfg.window, K))


def pma(cfg, block, b, tokens, signal, valid, below, N):
    """W^out of every window, as {token: row}, the memory of every window, and W-bar."""
    gated = [token_gate(block, b, t, s) for t, s in zip(tokens, signal, strict=True)]
    carry = block.slots.reset if cfg.slots else None  # M_{0,b} = M_r
    outs, memory = [], []
    for w in range(N):
        here = window(cfg, w, len(tokens))
        rows = {("token", t): gated[t] for t in here}
        if cfg.slots:
            seen = memory_gate(cfg, block, b, carry, True) if cfg.gate_carry else carry
            bar = memory_gate(cfg, block, b, below[w], b > 0)
            rows |= {("carry", i): seen[i] for i in range(cfg.slots)}
            rows |= {("bar", i): bar[i] for i in range(cfg.slots)}
        new = self_attention(cfg, block, rows, valid, left_edge=w * cfg.stride)
        outs.append({t: new["token", t] for t in here})
        if cfg.slots:
            if any(valid[t] for t in here):
                kind = "carry" if cfg.readout == "carry" else "bar"
                carry = torch.stack([new[kind, i] for i in range(cfg.slots)])
            memory.append(carry)
    return outs, memory, gated


def token_gate(block, b, token, signal):
    if b == 0:
        return token
    gate = block.token_gate
    g = torch.sigmoid(gate.mix(torch.cat([norm(gate.norm, token), norm(gate.norm, signal)])))
    return g * token + (1 - g) * signal


def memory_gate(cfg, block, b, memory, mixes):
    gate, reset = block.slots.gate, block.slots.reset
    rows = []
    for i in range(cfg.slots):
        a, r = norm(gate.norm, memory[i]), norm(gate.norm, reset[i])
        g = torch.sigmoid(gate.mix(torch.cat([a, r]))) if mixes else 1.0
        rows.append(g * a + (1 - g) * r)
    return torch.stack(rows)


def self_attention(cfg, block, rows, valid, left_edge):
    """One pre-norm layer over [carry | M-bar | W-bar] with the asymmetric mask."""
    layer = block.layer
    names = list(rows)
    x = torch.stack([rows[name] for name in names])  # (R, D)
    h = norm(layer.norm, x)
    if cfg.slots:
        segment = {"token": block.segment}
        segment["carry"], segment["bar"] = block.slots.segments
        h = h + torch.stack([segment[kind] for kind, _ in names])

    def may_look(query, key):
        if key[0] == "token" and not valid[key[1]] and key != query:
            return False
        if query[0] != "token":
            return True
        return key[0] == "carry" or (key[0] == "token" and key[1] <= query[1])

    mask = torch.tensor([[may_look(query, key) for key in names] for query in names])
    positions = [i if kind == "token" else left_edge for kind, i in names]
    new = attention_sublayers(cfg, layer, x, h, mask, positions)
    return dict(zip(names, new, strict=True))


def attention_sublayers(cfg, layer, x, h, mask, positions):
    """Rows x (R, D) after attention among their normalised selves h, and feed-forward."""
    q, k, v = (h @ layer.qkv.weight.T).split(cfg.dim, dim=1)
    q, k = rope(cfg, q, positions), rope(cfg, k, positions)  # (H, R, d)
    v = v.unflatten(1, (cfg.heads, -1)).transpose(0, 1)
    score = q @ k.mT / math.sqrt(q.shape[2])
    weight = score.masked_fill(~mask, -math.inf).softmax(2)  # (H, R, R)
    mixed = (weight @ v).transpose(0, 1).flatten(1)
    return feed_forward(layer.feed_forward, x + layer.out(mixed))


def rope(cfg, x, positions):
    """Rotary positions, as multiplication of complex numbers: (R, D) -> (H, R, d)."""
    halves = x.unflatten(1, (cfg.heads, 2, -1))  # (R, H, 2, d/2)
    d = 2 * halves.shape[3]
    frequency = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    phase = torch.tensor(positions, dtype=torch.float64)[:, None] * frequency
    unit = torch.polar(torch.ones_like(phase), phase)[:, None]
    rotated = torch.complex(halves[:, :, 0], halves[:, :, 1]) * unit
    return torch.cat([rotated.real, rotated.imag], dim=2).transpose(0, 1)


def feed_forward(ff, row):
    return row + ff.fc2(F.gelu(ff.fc1(norm(ff.norm, row))))


def norm(layer, x):
    centred = x - x.mean(-1, keepdim=True)
    scale = (centred.pow(2).mean(-1, keepdim=True) + layer.eps).sqrt()
    return centred / scale * layer.weight + layer.bias


def overlap_pool(cfg, block, copies):
    """The aggregator on a token's copies {r: row}."""
    agg = block.aggregator
    ranks = sorted(copies)
    rows = [copies[r] for r in ranks]
    skip = sum(rows) / len(rows)  # S_t
    values = [agg.value(row).view(cfg.heads, -1) for row in rows]
    if cfg.overlap == 1:
        mixed = values[0].flatten()
    else:
        zero = torch.zeros_like(skip)
        padded = [zero, *rows, zero]
        conv = [sum(agg.taps[i] * padded[r + i] for i in range(3)) for r in range(len(rows))]
        q = agg.query(sum(conv) / len(conv)).view(cfg.heads, -1)
        keys = torch.stack([agg.key(row).view(cfg.heads, -1) for row in rows])  # (O, H, d)
        score = (q * keys).sum(2) / math.sqrt(q.shape[1])
        score = score + torch.stack([agg.bias[:, r] for r in ranks])
        mixed = (score.softmax(0)[..., None] * torch.stack(values)).sum(0).flatten()
    mixed = mixed / math.sqrt(cfg.overlap)
    centred = mixed - mixed.mean()
    attended = agg.gamma * centred / (centred.pow(2).mean() + agg.norm.eps).sqrt()  # A_t
    s = torch.sigmoid(agg.skip_gate)
    return (1 - s) * skip + s * attended


def neighbourhood(cfg, encoder, tokens, valid):
    """Token t sees t-n..t; CLS, without position, sees itself and every token."""
    x, cls = torch.stack(tokens), encoder.cls
    K = len(x)
    mask = torch.tensor(
        [[t == j or (valid[j] and t - cfg.window <= j < t) for j in range(K)] for t in range(K)]
    )
    for layer in encoder.layers:
        seen = torch.stack([cls, *(x[t] for t in range(K) if valid[t])])
        h = norm(layer.norm, seen)
        first_row_sees_all = torch.ones(len(h), len(h), dtype=torch.bool)
        cls = attention_sublayers(cfg, layer, seen, h, first_row_sees_all, [0] * len(h))[0]
        x = attention_sublayers(cfg, layer, x, norm(layer.norm, x), mask, list(range(K)))
    there = torch.tensor(valid)[:, None]
    return norm(encoder.norm, x) * there, norm(encoder.norm, cls)
