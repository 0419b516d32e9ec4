"""The stacks of the matched architectures as plain loops over one series, like reference.py.

Every function works on one series: tokens (K, D), of which ``valid`` (K,) are there; H heads,
d = D / H. Only the weights are the library's.
"""

import math

import torch
from reference import feed_forward, norm, rope


def transformer_xl(cfg, stack, tokens, valid):
    """Tokens after all layers, segment after segment, with a cache of the segment before."""
    K, W = len(tokens), cfg.window
    cache = [[] for _ in stack.layers]  # of each layer: (number, row) of the segment before
    out = []
    for start in range(0, K, W):
        numbers = range(start, min(start + W, K))
        rows = {i: tokens[i] for i in numbers}
        for layer, distance, before in zip(stack.layers, stack.distances, cache, strict=True):
            known = {i: row.detach() for i, row in before} | rows
            before[:] = rows.items()
            rows = {i: _relative_layer(cfg, stack, layer, distance, i, known, valid) for i in rows}
        out += [rows[i] for i in numbers]
    return torch.stack(out)


def _relative_layer(cfg, stack, layer, distance, i, known, valid):
    keys = [j for j in known if j == i or (j < i and valid[j])]
    d = cfg.dim // cfg.heads
    projected = {j: layer.qkv.weight @ norm(layer.norm, known[j]) for j in keys}
    q = projected[i][: cfg.dim].view(cfg.heads, d)
    by_distance = {j: distance.weight @ sinusoid(i - j, cfg.dim) for j in keys}
    mixed = []
    for h in range(cfg.heads):
        scores, values = [], []
        for j in keys:
            k, v = (projected[j][p * cfg.dim + h * d :][:d] for p in (1, 2))
            r = by_distance[j][h * d : (h + 1) * d]
            u, bias = stack.content_bias[h, 0], stack.distance_bias[h, 0]
            scores.append(((q[h] + u) @ k + (q[h] + bias) @ r) / math.sqrt(d))
            values.append(v)
        weight = torch.stack(scores).softmax(0)
        mixed.append(sum(w * v for w, v in zip(weight, values, strict=True)))
    return feed_forward(layer.feed_forward, known[i] + layer.out(torch.cat(mixed)))


def sinusoid(distance, dim):
    phase = [distance * 10000.0 ** (-2 * p / dim) for p in range(dim // 2)]
    values = [math.sin(x) for x in phase] + [math.cos(x) for x in phase]
    return torch.tensor(values, dtype=torch.float64)


def windowed(cfg, stack, tokens, valid):
    """Tokens, the states after each window, and the last row of the last window with a token."""
    K, n = len(tokens), cfg.slots
    N = max(1, math.ceil((K - cfg.window) / cfg.stride) + 1)
    state = list(stack.state) if n else []
    copies = [[] for _ in range(K)]
    states, last = [], torch.zeros(cfg.dim)
    for w in range(N):
        here = range(w * cfg.stride, min(w * cfg.stride + cfg.window, K))
        rows = [*state, *(tokens[t] for t in here)]
        there = [True] * n + [valid[t] for t in here]
        places = [0] * n + list(range(len(here)))
        for layer in stack.layers:
            rows = _window_layer(cfg, layer, torch.stack(rows), there, places, n)
        rows = [norm(stack.norm, row) for row in rows]
        for row, t in zip(rows[n:], here, strict=True):
            copies[t].append(row)
            last = row if valid[t] else last
        state = rows[:n] if any(there[n:]) else state
        states.append(state)
    out = torch.stack([sum(rows) / len(rows) for rows in copies])
    return out, torch.stack([torch.stack(s) for s in states]) if n else None, last


def _window_layer(cfg, layer, x, there, places, n):
    q, k, v = (norm(layer.norm, x) @ layer.qkv.weight.T).split(cfg.dim, dim=1)
    q, k = rope(cfg, q, places), rope(cfg, k, places)  # (H, T, d)
    v = v.unflatten(1, (cfg.heads, -1)).transpose(0, 1)
    new = []
    for i in range(len(x)):
        seen = [j for j in range(len(x)) if j == i or (there[j] and (i < n or j < i or j < n))]
        weight = (q[:, i, None] @ k[:, seen].mT / math.sqrt(q.shape[2])).softmax(2)
        mixed = (weight @ v[:, seen])[:, 0].flatten()
        new.append(feed_forward(layer.feed_forward, x[i] + layer.out(mixed)))
    return new


def mlstm(q, k, v, i, f):
    """The cell of one head, (K, d) each and gates (K,), as the sums that its recurrence unrolls to.

    h_t = sum_s a_ts (q_t k_s) v_s / max(|sum_s a_ts q_t k_s|, 1), scaled keys,
    a_ts = exp(i_s) prod_{s < r <= t} sigmoid(f_r)
    """
    K, d = q.shape
    forget = torch.sigmoid(f)
    rows = []
    for t in range(K):
        weights = [torch.exp(i[s]) * forget[s + 1 : t + 1].prod() for s in range(t + 1)]
        scores = [w * (q[t] @ k[s]) / math.sqrt(d) for s, w in enumerate(weights)]
        total = sum(s * v[j] for j, s in enumerate(scores))
        rows.append(total / max(abs(sum(scores)), torch.tensor(1.0)))
    return torch.stack(rows)
