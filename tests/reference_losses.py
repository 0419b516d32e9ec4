"""The objectives as the paper prints them: loops over anchors, one exponential at a time."""

import math

import torch


def cosine(a, b):
    return (a @ b) / (a.norm() * b.norm())


def icl(z1, z2, tau, overlap):
    """Eq. 5, both directions averaged; rows that share samples are no negatives."""
    B, views = len(z1), (z1, z2)
    total = 0.0
    for v in (0, 1):
        for i in range(B):
            positive = cosine(views[v][i], views[1 - v][i]) / tau
            scores = [positive]
            scores += [
                cosine(views[v][i], views[u][j]) / tau
                for u in (0, 1)
                for j in range(B)
                if not overlap[i, j]
            ]
            total = total + torch.logsumexp(torch.stack(scores), 0) - positive
    return total / (2 * B)


def pcl_direction(anchor, key, valid, key_valid, entry, allowed, tau):
    """Eq. 3 for one direction: slots (B, N, n, D), negatives by index into the key view."""
    B, N, n, D = anchor.shape
    pool = key.reshape(-1, D)
    losses = []
    for i in range(B):
        negatives = [
            int(e)
            for e, ok in zip(entry[i], allowed[i], strict=True)
            if ok and key_valid[int(e) // (N * n), int(e) // n % N]
        ]
        for w in range(N):
            for s in range(n):
                if not (valid[i, w] and key_valid[i, w]) or not negatives:
                    continue
                a = anchor[i, w, s]
                positive = cosine(a, key[i, w, s]) / tau
                scores = [positive] + [cosine(a, pool[e]) / tau for e in negatives]
                losses.append(torch.logsumexp(torch.stack(scores), 0) - positive)
    return torch.stack(losses).mean()


def bucket(s_p, neighbours, negatives, tau, form):
    """The bucket form of the appendix; ``neighbours`` are pairs (q, s) without the positive."""
    T = sum((q * s for q, s in neighbours), torch.zeros(()).double())
    push = sum(torch.exp(s / tau) for s in negatives)
    if form == "printed":
        top = torch.exp(s_p / tau)
        return -torch.log(top / (top + torch.exp(T / tau) + push))
    mass = sum(q for q, _ in neighbours)
    top = torch.exp(s_p / tau)
    if mass >= 1e-6:
        top = top + torch.exp(T / mass / tau)
    return -torch.log(top / (top + push))


def hgcl_tokens(z1, z2, windows, valid1, valid2, entry, allowed, W, S, sigma, tau, form):
    """Token level for one direction, positives by position: every token in each of its windows."""
    B, K, D = z1.shape
    pool, pool_valid = z2.reshape(-1, D), valid2.reshape(-1)
    N = max(1, math.ceil((K - W) / S) + 1)
    losses = []
    for i in range(B):
        chosen = [int(e) for e, ok in zip(entry[i], allowed[i], strict=True) if ok]
        chosen = [e for e in chosen if pool_valid[e]]
        for w in range(N):
            window = range(w * S, min(w * S + W, K)) if windows[i, w] else []
            for k in window:
                if not (valid1[i, k] and valid2[i, k]) or not chosen:
                    continue
                near = [
                    (math.exp(-((k - j) ** 2) / (2 * sigma**2)), cosine(z1[i, k], z2[i, j]))
                    for j in window
                    if j != k and valid2[i, j]
                ]
                # candidates past the last token of a short window do not exist
                negatives = [cosine(z1[i, k], pool[e]) for e in chosen]
                losses.append(bucket(cosine(z1[i, k], z2[i, k]), near, negatives, tau, form))
    return torch.stack(losses).mean()


def hgcl_windows(m1, m2, valid1, valid2, entry, allowed, S, sigma, tau, form):
    """Window level for one direction, on window means (B, N, D)."""
    B, N, D = m1.shape
    pool, pool_valid = m2.reshape(-1, D), valid2.reshape(-1)
    losses = []
    for i in range(B):
        chosen = [int(e) for e, ok in zip(entry[i], allowed[i], strict=True) if ok]
        chosen = [e for e in chosen if pool_valid[e]]
        for u in range(N):
            if not (valid1[i, u] and valid2[i, u]) or not chosen:
                continue
            near = [
                (math.exp(-(((u - v) * S) ** 2) / (2 * sigma**2)), cosine(m1[i, u], m2[i, v]))
                for v in range(N)
                if v != u and valid2[i, v]
            ]
            negatives = [cosine(m1[i, u], pool[e]) for e in chosen]
            losses.append(bucket(cosine(m1[i, u], m2[i, u]), near, negatives, tau, form))
    return torch.stack(losses).mean()


def window_mean(z, valid, W, S):
    B, K, D = z.shape
    N = max(1, math.ceil((K - W) / S) + 1)
    means = torch.zeros(B, N, D).double()
    for i in range(B):
        for w in range(N):
            inside = [k for k in range(w * S, min(w * S + W, K)) if valid[i, k]]
            if inside:
                means[i, w] = sum(z[i, k] / z[i, k].norm() for k in inside) / len(inside)
    return means
