"""Streaming against full attention, as the paper's streaming table has it, and beyond it.

    python -m benchmarks.compute_stream        # writes results/compute_stream/<device>.json

What is compared, D = 320, patch 16/8, one slot, S = .1K, W = 2S (the paper: W = .2K, rounded down,
S = W/2, which for odd W would make a third copy of some tokens):
- ours: one `Stream.push` of one stride of samples through a one-block PMT. It holds more than the
  paper times (one PMA block): normalisation, tokenizer, one encoder layer and CLS are in it.
- full: one full-attention layer over the whole sequence at once, as in the paper.
- cached: the same layer made causal, on a stream with all past keys and values kept; its last push.
A sequence takes windows x one push. The sustained rate leaves 20 % head-room. On a GPU models and
inputs are bf16, on a CPU float32. FLOPs are multiply-adds, counted as the paper counts them, and
as they are really done (one PMT block, encoder left out).

Then: the time of a push early and late in a stream; the sustained rate on one CPU core; and
an hour of three channels at 100 Hz on one CPU core, taken in a second at a time.
"""

import argparse
import statistics
import time
from functools import partial
from typing import Any

import torch

import progmem
from benchmarks import timing
from benchmarks.full_attention import CachedAttention, encode_causally
from progmem.baselines.vanilla import VanillaTransformer

PATCH, PATCH_STRIDE = 16, 8
SAMPLES = tuple(2**power for power in range(9, 18))  # 512 .. 131,072, the paper's nine rows
HEADROOM = 0.2
HOUR = {"rate": 100, "channels": 3, "seconds": 3600}


def geometry(samples: int, dim: int, *, printed: bool = False) -> progmem.ModelConfig:
    """One block for sequences of ``samples``; ``printed``: windows exactly as in the paper."""
    tokens = (samples - PATCH) // PATCH_STRIDE + 1
    window = tokens // 5 if printed else 2 * (tokens // 10)
    return progmem.ModelConfig(
        channels=1, dim=dim, heads=8, blocks=1, slots=1, encoder_layers=1, patch=PATCH,
        patch_stride=PATCH_STRIDE, window=window, stride=window // 2,
        windows="floor" if printed else "cover",
    )  # fmt: skip


def check(dim: int, device: str) -> None:
    """Nothing is timed unless streams give what whole series give."""
    torch.manual_seed(0)
    cfg = geometry(1024, dim)
    x = torch.randn(1, 1024, 1, device=device, dtype=torch.float64)
    model = progmem.PMT(cfg).to(device).double()
    stream = progmem.Stream(model)
    size = cfg.stride * PATCH_STRIDE
    parts = [stream.push(x[:, i : i + size]) for i in range(0, x.shape[1], size)]
    tokens = torch.cat([*(part.tokens for part in parts), stream.finish().tokens], dim=1)
    torch.testing.assert_close(tokens, model.encode(x).tokens, rtol=0, atol=1e-10)

    full = VanillaTransformer(cfg).to(device).double()
    K = tokens.shape[1]
    cut, starts = CachedAttention(full, 1, K), range(0, K, cfg.stride)
    pieces = [cut.push(_samples_of(x, i, min(i + cfg.stride, K))) for i in starts]
    torch.testing.assert_close(torch.cat(pieces, dim=1), encode_causally(full, x))


def _samples_of(x: torch.Tensor, first: int, last: int) -> torch.Tensor:
    """The samples of tokens ``first`` to ``last``, the last not included."""
    return x[:, first * PATCH_STRIDE : (last - 1) * PATCH_STRIDE + PATCH]


def measure_row(samples: int, *, dim: int, device: str, repeats: int) -> dict[str, Any]:
    """One row of the table."""
    torch.manual_seed(0)
    cfg = geometry(samples, dim)
    tokens = (samples - PATCH) // PATCH_STRIDE + 1
    row: dict[str, Any] = {"samples": samples, "tokens": tokens, "window": cfg.window}
    row |= {"stride": cfg.stride, "windows": -(-(tokens - cfg.window) // cfg.stride) + 1}
    row |= _counted(samples, dim)
    row["ours"] = measure_push(cfg, device, repeats=repeats)
    row["ours"]["sequence_seconds"] = row["windows"] * row["ours"]["seconds"]
    dtype = dtype_on(device)
    full = VanillaTransformer(cfg).eval().to(device, dtype)
    x = torch.randn(1, samples, 1, device=device, dtype=dtype)
    with torch.inference_mode():
        row["full"] = timing.measure(lambda: full(x), device, repeats=repeats)
    cached = CachedAttention(full, 1, tokens)
    cached.push(_samples_of(x, 0, tokens - cfg.stride))
    last = _samples_of(x, tokens - cfg.stride, tokens)

    def push() -> None:
        cached.seen = tokens - cfg.stride
        cached.push(last)

    row["cached"] = timing.measure(push, device, repeats=repeats)
    return row


def measure_push(cfg: progmem.ModelConfig, device: str, *, repeats: int) -> dict[str, Any]:
    """A push of one stride of samples into a stream that has filled its windows."""
    model = progmem.PMT(cfg).eval().to(device, dtype_on(device))
    stream = progmem.Stream(model)
    chunk = torch.randn(1, cfg.stride * cfg.patch_stride, cfg.channels)
    for _ in range(2 * cfg.overlap + 2):
        stream.push(chunk)
    found = timing.measure(lambda: stream.push(chunk), device, repeats=repeats)
    return found | {"rate": (1 - HEADROOM) * chunk.shape[1] / found["seconds"]}


def dtype_on(device: str) -> torch.dtype:
    return torch.bfloat16 if device == "cuda" else torch.float32


def _counted(samples: int, dim: int) -> dict[str, int]:
    """Multiply-adds: the paper's count of both sides, and what our block really does."""
    as_printed, cfg = geometry(samples, dim, printed=True), geometry(samples, dim)
    K = (samples - PATCH) // PATCH_STRIDE + 1
    done = progmem.count_macs(cfg, samples)
    return {
        "macs": progmem.count_macs(as_printed, samples, convention="paper")["windows"],
        "macs_full": 12 * dim * dim * K + 2 * K * K * dim,
        "macs_done": done["total"] - done["encoder"],
    }


def measure_long_stream(samples: int, *, size: str, device: str, repeats: int) -> dict[str, Any]:
    """Median time of a push of one stride into a young stream and into one of ``samples`` samples.

    Pushes into the two take turns, so that whatever else the machine does meets both.
    """
    torch.manual_seed(0)
    cfg = progmem.ModelConfig(channels=HOUR["channels"], size=size)
    model = progmem.PMT(cfg).eval().to(device)
    filled = (4096 + cfg.window) * cfg.patch_stride  # the horizon's ring is full from then on
    streams = {"early": progmem.Stream(model), "late": progmem.Stream(model)}
    for name, stream in streams.items():
        goal = filled if name == "early" else samples
        while stream.samples < goal:  # in larger chunks, to get there
            stream.push(torch.randn(1, min(2**15, goal - stream.samples), cfg.channels))
    result: dict[str, Any] = {f"{name}_samples": s.samples for name, s in streams.items()}
    chunk = torch.randn(1, cfg.stride * cfg.patch_stride, cfg.channels)
    seconds: dict[str, list[float]] = {name: [] for name in streams}
    for i in range(5 + repeats):
        for name, stream in streams.items():
            took = timing.seconds_of(partial(stream.push, chunk), device)
            if i >= 5:
                seconds[name].append(took)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    return {"size": size, **result, **medians}


def measure_hour(seconds: int, *, size: str) -> dict[str, Any]:
    """How much faster than real time ``seconds`` of three channels at 100 Hz are streamed."""
    torch.manual_seed(0)
    rate, channels = HOUR["rate"], HOUR["channels"]
    cfg = progmem.ModelConfig(channels=channels, size=size)
    stream = progmem.Stream(progmem.PMT(cfg).eval())
    x = torch.randn(1, seconds * rate, channels)
    start = time.perf_counter()
    for first in range(0, x.shape[1], rate):
        stream.push(x[:, first : first + rate])
    stream.finish()
    took = time.perf_counter() - start
    return {"size": size, **HOUR, "seconds": seconds, "took": took, "real_time": seconds / took}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    timing.add_arguments(parser)
    parser.add_argument("--samples", type=int, nargs="+", default=SAMPLES)
    parser.add_argument("--dim", type=int, default=320)
    parser.add_argument("--long", type=int, default=1_000_000, help="samples of the long stream")
    parser.add_argument("--hour", type=int, default=HOUR["seconds"], help="seconds, on one core")
    parser.add_argument("--sizes", nargs="+", default=["small", "base"], help="of the last two")
    chosen = parser.parse_args()
    check(chosen.dim, chosen.device)
    timed = {"device": chosen.device, "repeats": chosen.repeats}
    rows = []
    for samples in chosen.samples:
        rows.append(measure_row(samples, dim=chosen.dim, **timed))
        print(f"{samples:,} samples done", flush=True)
    long = [measure_long_stream(chosen.long, size=size, **timed) for size in chosen.sizes]
    with timing.one_core():
        core = [
            {"samples": samples}
            | measure_push(geometry(samples, chosen.dim), "cpu", repeats=min(5, chosen.repeats))
            for samples in chosen.samples
        ]
        hour = [measure_hour(chosen.hour, size=size) for size in chosen.sizes]
    facts = {"config": {"dim": chosen.dim, "headroom": HEADROOM}, "seeds": [0], "rows": rows}
    result = {**facts, "long_stream": long, "one_core": core, "hour": hour}
    timing.keep("compute_stream", chosen, result)


if __name__ == "__main__":
    main()
