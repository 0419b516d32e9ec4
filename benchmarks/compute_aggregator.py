"""What the overlap aggregator costs: multiply-adds a token, and its share of the time of a block.

    python -m benchmarks.compute_aggregator    # writes results/compute_aggregator/<device>.json

As the paper does, parts are timed in isolation, on the inputs that they get inside a block, the
windows' feed-forward layer on the rows that it gives there (D = 320, patch 16/8, S = W/2, one slot,
one series; bf16 on a GPU):
- streaming: the aggregator over the S tokens that a push makes final, replayed without launches on
  a GPU, as a share of a whole `Stream.push` through a one-block PMT.
- vectorised: aggregator, outer feed-forward and the windows' feed-forward as shares of the block,
  all through torch's own kernels; the rest are gates, projections, the scan of the slots and
  attention.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import progmem
from benchmarks import timing
from benchmarks.compute_stream import dtype_on, measure_push
from progmem import ops
from progmem.model.block import PMABlock

WINDOWS = (1024, 2048, 4096)
TOKENS = (25_000, 50_000, 100_000)
PARTS: dict[str, Callable[[PMABlock], nn.Module]] = {
    "block": lambda block: block,
    "aggregator": lambda block: block.aggregator,
    "feed_forward": lambda block: block.feed_forward,
    "window_feed_forward": lambda block: block.layer.feed_forward,
}
Calls = list[tuple[tuple[Any, ...], dict[str, Any], Any]]  # inputs and output of each call


def geometry(window: int, dim: int) -> progmem.ModelConfig:
    return progmem.ModelConfig(
        channels=1, dim=dim, heads=8, blocks=1, slots=1, encoder_layers=1, patch=16,
        patch_stride=8, window=window, stride=window // 2,
    )  # fmt: skip


def samples_of(tokens: int, cfg: progmem.ModelConfig) -> int:
    return (tokens - 1) * cfg.patch_stride + cfg.patch


@torch.no_grad()
def calls_inside(model: progmem.PMT, x: Tensor) -> dict[str, Calls]:
    """What each part of the first block gets and gives while ``model`` runs on ``x``."""
    found: dict[str, Calls] = {name: [] for name in PARTS}
    hooks = []
    for name, part in PARTS.items():
        if name == "window_feed_forward":
            continue

        def note(
            _: nn.Module, inputs: Any, more: dict[str, Any], output: Any, name: str = name
        ) -> None:
            found[name].append((inputs, more, output))

        hooks.append(part(model.pma_blocks[0]).register_forward_hook(note, with_kwargs=True))
    model(x)
    for hook in hooks:
        hook.remove()
    # the rows that the aggregator gets have just left the windows' feed-forward layer
    rows = found["aggregator"][0][0][0]
    found["window_feed_forward"] = [((rows,), {}, None)]
    missing = [name for name, calls in found.items() if not calls]
    assert not missing, f"a block does not call its {', '.join(missing)}"
    return found


def again(model: progmem.PMT, name: str, calls: Calls) -> Callable[[], None]:
    """All calls of one part, in isolation."""
    part = PARTS[name](model.pma_blocks[0])

    def run() -> None:
        with torch.no_grad():
            for inputs, more, _ in calls:
                part(*inputs, **more)

    return run


@torch.no_grad()
def check(dim: int, device: str) -> None:
    """Nothing is timed unless a part in isolation gives what it gave inside the block."""
    torch.manual_seed(0)
    cfg = geometry(24, dim)
    model = progmem.PMT(cfg).eval().to(device).double()
    found = calls_inside(model, torch.randn(1, 1_000, 1, device=device, dtype=torch.float64))
    for name in ("aggregator", "feed_forward"):
        for inputs, more, output in found[name]:
            alone = PARTS[name](model.pma_blocks[0])(*inputs, **more)
            torch.testing.assert_close(alone, output, rtol=0, atol=1e-10)


def measure_streaming(window: int, *, dim: int, device: str, repeats: int) -> dict[str, Any]:
    torch.manual_seed(0)
    cfg = geometry(window, dim)
    push = measure_push(cfg, device, repeats=repeats)["seconds"]
    model = progmem.PMT(cfg).eval().to(device, dtype_on(device))
    copies = torch.randn(1, cfg.stride, cfg.overlap, dim, device=device, dtype=dtype_on(device))
    exists = torch.ones(1, cfg.stride, cfg.overlap, dtype=torch.bool, device=device)

    def alone() -> None:
        with torch.no_grad():
            model.pma_blocks[0].aggregator.of_copies(copies, exists)

    seconds = timing.median_seconds(timing.replayed(alone, device), device, repeats=repeats)
    macs = progmem.count_macs(cfg, samples_of(cfg.stride, cfg), convention="paper")["aggregator"]
    row = {"window": window, "stride": cfg.stride, "copies": cfg.overlap, "macs": macs}
    return row | {"seconds": {"push": push, "aggregator": seconds}}


def measure_vectorised(tokens: int, *, dim: int, device: str, repeats: int) -> dict[str, Any]:
    torch.manual_seed(0)
    cfg = geometry(2 * (tokens // 20), dim)
    model = progmem.PMT(cfg).eval().to(device, dtype_on(device))
    samples = samples_of(tokens, cfg)
    x = torch.randn(1, samples, 1, device=device, dtype=dtype_on(device))
    with ops.use_backend("plain"):
        seconds = {
            name: timing.median_seconds(again(model, name, calls), device, repeats=repeats)
            for name, calls in calls_inside(model, x).items()
        }
    macs = progmem.count_macs(cfg, samples, convention="paper")["aggregator"]
    return {"tokens": tokens, "window": cfg.window, "macs": macs, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    timing.add_arguments(parser)
    parser.add_argument("--windows", type=int, nargs="+", default=WINDOWS)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--dim", type=int, default=320)
    chosen = parser.parse_args()
    check(chosen.dim, chosen.device)
    timed = {"dim": chosen.dim, "device": chosen.device, "repeats": chosen.repeats}
    result = {
        "config": {"dim": chosen.dim},
        "seeds": [0],
        "streaming": [measure_streaming(window, **timed) for window in chosen.windows],
        "vectorised": [measure_vectorised(tokens, **timed) for tokens in chosen.tokens],
    }
    timing.keep("compute_aggregator", chosen, result)


if __name__ == "__main__":
    main()
