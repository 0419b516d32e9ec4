"""Whole series at once: full attention, written out and fused, against PMA and PMT.

    python -m benchmarks.compute_vectorised    # writes results/compute_vectorised/<device>.json

100,000 samples, patch 16/8, D = 320, 6 blocks or layers, S = .05K, W = 2S, one slot; forward,
no gradient, bf16 autocast on a GPU. The paper's tokens a second times its latency give 32 series;
8 is the batch that PMT is held against full attention of the same depth with.
- vanilla: full attention with all scores of a series in memory, series one after the other
- fused:   the same weights through torch's fused attention
- PMA:     tokenizer and PMA blocks
- PMT:     the whole model, two neighbourhood layers and CLS included
Each is timed as it is launched, and all but the first also as a replayed CUDA graph: what is left
when the host need not launch anything.
FLOPs are multiply-adds of one series, counted as done (PMT, PMA) or as the paper counts (full).

Then series of growing length through `encode`, W fixed: the time must grow linearly.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import progmem
from benchmarks import timing
from benchmarks.full_attention import encode_written_out
from progmem.baselines.vanilla import VanillaTransformer
from progmem.geometry import count_tokens

GROWTH = (10_000, 100_000, 1_000_000)
GROWTH_WINDOW = 128


class NoEncoder(nn.Module):
    """In place of the neighbourhood encoder, so that a PMT ends with its PMA blocks."""

    def forward(self, tokens: Tensor, valid: Tensor, *, gaps: bool) -> tuple[Tensor, Tensor]:
        return tokens, tokens[:, -1]


def geometry(samples: int, dim: int, *, window: int | None = None) -> progmem.ModelConfig:
    """Six blocks over series of ``samples``; without ``window``, W is .1K and even."""
    tokens = (samples - 16) // 8 + 1
    stride = tokens // 20 if window is None else window // 2
    return progmem.ModelConfig(
        channels=1, dim=dim, heads=8, blocks=6, slots=1, encoder_layers=2, patch=16,
        patch_stride=8, window=2 * stride, stride=stride,
    )  # fmt: skip


def make_pma(cfg: progmem.ModelConfig) -> progmem.PMT:
    model = progmem.PMT(cfg)
    model.encoder = NoEncoder()  # type: ignore[assignment]
    return model


MODELS: dict[str, Callable[[progmem.ModelConfig], Any]] = {
    "vanilla": VanillaTransformer,
    "fused": VanillaTransformer,
    "PMA": make_pma,
    "PMT": progmem.PMT,
}
RECORDED = ("fused", "PMA", "PMT")


def forward(name: str, model: Any, x: Tensor) -> Callable[[], Any]:
    return (lambda: encode_written_out(model, x)) if name == "vanilla" else (lambda: model(x))


@torch.no_grad()
def check(dim: int, device: str) -> None:
    """Nothing is timed unless the forms that are compared are the same functions."""
    torch.manual_seed(0)
    cfg = geometry(2_000, dim)
    x = torch.randn(2, 2_000, 1, device=device, dtype=torch.float64)
    full = VanillaTransformer(cfg).to(device).double()
    tokens, sequence = encode_written_out(full, x)
    torch.testing.assert_close(tokens, full(x).tokens, rtol=0, atol=1e-10)
    torch.testing.assert_close(sequence, full(x).sequence, rtol=0, atol=1e-10)

    model, pma = (make(cfg).eval().to(device) for make in (progmem.PMT, make_pma))
    pma.load_state_dict(model.state_dict(), strict=False)
    precise = model.double()(x)
    memory = pma.double()(x).memory
    torch.testing.assert_close(memory, precise.memory, rtol=0, atol=1e-10)
    torch.testing.assert_close(model.encode(x).tokens, precise.tokens, rtol=0, atol=1e-10)
    with timing.autocast(device):
        fast = model.float()(x.float())
    bound = 0.05 if device == "cuda" else 1e-4  # relative: bf16 keeps 8 bits
    error = (fast.tokens - precise.tokens).norm() / precise.tokens.norm()
    assert float(error) < bound, f"off by {float(error):.2e} from float64"


def measure_model(
    name: str, cfg: progmem.ModelConfig, batch: int, samples: int, *, device: str, repeats: int
) -> dict[str, Any]:
    torch.manual_seed(0)
    model = MODELS[name](cfg).eval().to(device)
    x = torch.randn(batch, samples, 1, device=device)
    row: dict[str, Any] = {"model": name, "params": sum(p.numel() for p in model.parameters())}
    row |= {"macs": count(name, cfg, samples), "tokens": batch * count_tokens(cfg, samples)}
    call = forward(name, model, x)
    with torch.no_grad(), timing.autocast(device):
        row |= timing.measure(call, device, repeats=repeats)
        row["recorded_seconds"] = None
        if device == "cuda" and name in RECORDED:
            replay = timing.replayed(call, device)
            row["recorded_seconds"] = timing.median_seconds(replay, device, repeats=repeats)
    return row


def count(name: str, cfg: progmem.ModelConfig, samples: int) -> int:
    """Multiply-adds of one series."""
    if name in ("PMA", "PMT"):
        done = progmem.count_macs(cfg, samples)
        return done["total"] - (done["encoder"] if name == "PMA" else 0)
    K, D = count_tokens(cfg, samples), cfg.dim
    return cfg.blocks * (12 * D * D * K + 2 * K * K * D)


def measure_growth(samples: int, *, dim: int, device: str, repeats: int) -> dict[str, Any]:
    """One series of ``samples`` through `encode`, which cuts long ones into chunks by itself."""
    torch.manual_seed(0)
    model = progmem.PMT(geometry(samples, dim, window=GROWTH_WINDOW)).to(device)
    x = torch.randn(1, samples, 1, device=device)
    with timing.autocast(device):
        model.encode(x[:, : samples // 10])
        seconds = timing.median_seconds(lambda: model.encode(x), device, repeats=repeats, warmup=0)
        return {
            "samples": samples,
            "seconds": seconds,
            "peak_mb": timing.peak_mb(lambda: model.encode(x), device),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    timing.add_arguments(parser)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 8])
    parser.add_argument("--dim", type=int, default=320)
    parser.add_argument("--growth", type=int, nargs="*", default=GROWTH)
    chosen = parser.parse_args()
    check(chosen.dim, chosen.device)
    cfg = geometry(chosen.samples, chosen.dim)
    timed = {"device": chosen.device, "repeats": chosen.repeats}
    batches: list[dict[str, Any]] = []
    for batch in chosen.batches:
        batches.append({"batch": batch, "samples": chosen.samples, "rows": []})
        for name in MODELS:
            row = measure_model(name, cfg, batch, chosen.samples, **timed)
            batches[-1]["rows"].append(row)
            print(f"{name}, {batch} series done", flush=True)
    few = {"device": chosen.device, "repeats": min(3, chosen.repeats)}
    growth = [measure_growth(samples, dim=chosen.dim, **few) for samples in chosen.growth]
    result = {"config": cfg.to_dict(), "seeds": [0], "batches": batches, "growth": growth}
    timing.keep("compute_vectorised", chosen, result)


if __name__ == "__main__":
    main()
