"""How large a PMT is and how much it multiplies, by part.

Letters: K tokens, N windows, W window, O copies, n slots, D width, C channels.
"""

import torch

from progmem.config import ModelConfig, is_whole
from progmem.errors import ConfigError
from progmem.geometry import count_tokens, count_windows, covered_tokens
from progmem.model.pmt import PMT


def count_params(cfg: ModelConfig) -> dict[str, int]:
    """Trainable numbers of the tokenizer, the PMA blocks, the encoder, and in total.

    Example:
        >>> import progmem
        >>> progmem.count_params(progmem.ModelConfig(channels=9, size="tiny"))
        {'tokenizer': 4672, 'blocks': 213232, 'encoder': 99776, 'total': 317680}
    """
    with torch.device("meta"):
        model = PMT(cfg)
    parts = {"tokenizer": model.tokenizer, "blocks": model.blocks, "encoder": model.encoder}
    counts = {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}
    return {**counts, "total": sum(counts.values())}


def count_macs(cfg: ModelConfig, length: int, *, convention: str = "ours") -> dict[str, int]:
    """Multiply-adds of one series of ``length`` samples, by part and in total.

    ``"ours"`` counts the products that `PMT.forward` really does. ``"paper"`` counts what the
    paper's compute tables count: per block and window one layer over W + 2n rows with full
    attention, and per token the aggregator; no gates, outer feed-forward, tokenizer or encoder.

    Example:
        >>> import progmem
        >>> cfg = progmem.ModelConfig(channels=9, size="tiny")
        >>> progmem.count_macs(cfg, length=1000, convention="paper")
        {'windows': 128245760, 'aggregator': 18957568, 'total': 147203328}
    """
    if not is_whole(length) or length < cfg.patch:
        raise ConfigError(
            f"length must be a whole number from {cfg.patch} (model.patch) up, got {length!r}"
        )
    K = count_tokens(cfg, length)
    N = count_windows(cfg, K)
    if convention == "paper":
        parts = _as_the_paper_counts(cfg, K, N)
    elif convention == "ours":
        parts = _as_we_compute(cfg, K, N)
    else:
        raise ConfigError(f"convention must be one of ours, paper, got {convention!r}")
    return {**parts, "total": sum(parts.values())}


def _as_the_paper_counts(cfg: ModelConfig, K: int, N: int) -> dict[str, int]:
    D, T = cfg.dim, cfg.window + 2 * cfg.slots
    return {
        "windows": cfg.blocks * N * (12 * D * D * T + 2 * T * T * D),
        "aggregator": cfg.blocks * K * _aggregator_per_token(cfg),
    }


def _as_we_compute(cfg: ModelConfig, K: int, N: int) -> dict[str, int]:
    D, W, n, B = cfg.dim, cfg.window, cfg.slots, cfg.blocks
    T = max(K, covered_tokens(cfg, N))  # tokens of the blocks: the last window is filled up
    below = 1 + N * (B - 1)  # the first block's memory below is the same for all windows
    gated = below - 1 + cfg.gate_carry + cfg.gate_carry * B * N  # memories that a gate meets
    resets = B - 1 + cfg.gate_carry  # the reset state's part, once a scan
    gates = 2 * D * D * (B - 1) * T + D * D * n * (gated + resets)
    carry = 12 * D * D + 2 * (2 * n + W) * D  # a slot's projections, attention, feed-forward
    rows = (
        9 * D * D * W + 2 * (n + W) ** 2 * D
    )  # of a window, beside q, k, v; a triangle is squared
    return {
        "tokenizer": K * cfg.channels * cfg.patch * D,
        "gates": gates,
        "memory": n * (B * N * carry + 3 * D * D * below),
        "windows": B * (3 * D * D * T + N * rows),
        "aggregator": B * T * _aggregator_per_token(cfg),
        "feed_forward": B * T * 8 * D * D,
        "encoder": cfg.encoder_layers * (_band(cfg, K) + 12 * D * D * (K + 1) + 2 * (K + 1) * D),
    }


def _aggregator_per_token(cfg: ModelConfig) -> int:
    D, O = cfg.dim, cfg.overlap
    if O == 1:
        return D * D
    projections = 2 * O * D * D  # keys and values of the copies
    query = 2 * D * max(1, D // 4)
    return projections + query + 3 * O * D + 2 * O * D  # taps; scores and average


def _band(cfg: ModelConfig, K: int) -> int:
    """Attention of the neighbourhood encoder: pieces of c queries with W + c keys each."""
    piece = min(cfg.window, K)
    pieces = -(-K // piece)
    return 2 * pieces * piece * (cfg.window + piece) * cfg.dim
