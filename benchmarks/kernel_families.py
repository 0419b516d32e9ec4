# ruff: noqa: E501, RUF059, SIM115
# mypy: ignore-errors
"""What each family of kernels is worth: the training step at HAR's shape, and `encode`.

    python -m benchmarks.kernel_families      # writes results/kernel_families/<device>.json

Two measurements, all variants in one run:
- step: 256 rows x 2 views, K = 31, W = 6, S = 3, two slots, `base`, bf16, all objectives
- encode: 8 series of 100,000 samples, patch 16/8, six blocks, W = .1K, one slot, bf16 autocast
Variants: plain torch launched operation by operation (eager), the same as a CUDA graph, compiled by
`torch.compile`, compiled and as a graph, what a run does (ours), and that with one family of
kernels at a time replaced by plain torch. The compiled variants run in a process of their own,
since compiling takes minutes; a lock keeps the timings of the two processes apart.
"""

import argparse
import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import timing
from benchmarks.compute_vectorised import geometry
from benchmarks.training_step import SETTINGS, made_rows
from progmem import kernels
from progmem.data.rows import Rows
from progmem.model import attention, encoder, lean, scan, twins
from progmem.model.aggregator import OverlapAggregator
from progmem.model.geometry import align_copies
from progmem.model.inputs import ChannelStats
from progmem.model.pmt import PMT
from progmem.report import record
from progmem.settings import RunConfig, read_config
from progmem.training import learner as learner_module
from progmem.training.engine import freeze_unreached
from progmem.training.learner import Learner, parameter_groups
from progmem.training.recorded import RecordedUpdate
from progmem.training.setup import initial_model, make_fabric, model_for
from progmem.training.step import Step
from progmem.training.update import Update, make_optimizer

Patches = list[tuple[Any, str, Any]]
STEPS, WARM = 10, 5


def plain_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float, segment: Tensor | None,
               dtype: torch.dtype) -> Tensor:  # fmt: skip
    y = F.layer_norm(x, weight.shape, weight.to(x.dtype), bias.to(x.dtype), eps)
    return (y if segment is None else y + segment).to(dtype)


def plain_through(x: Tensor, *args: Any, **kw: Any) -> tuple[Tensor, Tensor]:
    return x, plain_norm(x, *args, **kw)


def plain_add_norm(x: Tensor, more: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, *,
                   eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:  # fmt: skip
    total = x + more + shift
    return total, plain_norm(total, weight, bias, eps=eps, segment=None, dtype=dtype)


def plain_gelu(h: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(h + bias.to(h.dtype))


def plain_add(x: Tensor, more: Tensor, bias: Tensor, valid: Tensor | None = None) -> Tensor:
    total = x + more + bias
    return total if valid is None else torch.where(valid[..., None], total, 0.0)


def plain_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x, weight, bias.to(x.dtype))


def plain_mixed(z: Tensor, more: Tensor, a: Tensor, b: Tensor) -> Tensor:
    g = torch.sigmoid(z + more)
    return g * a + (1 - g) * b


def plain_gated(tokens: Tensor, signal: Tensor, layer: Any, weight: Tensor, bias: Tensor) -> Tensor:
    from progmem.kernels import mix, norm

    seen = [norm.norm(x, *layer[:2], eps=layer.eps, segment=None, dtype=weight.dtype)
            for x in (tokens, signal)]  # fmt: skip
    return mix.mixed(F.linear(torch.cat(seen, -1), weight), bias[None], tokens, signal)


def plain_pool(self: Any, rows: Tensor, exists: Tensor, projected: Tensor | None = None) -> Tensor:
    return self.of_copies(align_copies(rows, self.cfg, exists.shape[1]), exists)


def plain_gelu_of_product(x: Tensor, weight: Tensor, bias: Tensor, *, wide: Tensor, out: Tensor
                          ) -> None:  # fmt: skip
    from progmem.kernels import biased

    torch.mm(x, weight.T, out=wide)
    biased.run_gelu_forward(wide, bias, out=out)


def plain_gelu_backward(x: Tensor, weight: Tensor, bias: Tensor, *, wide: Tensor, out: Tensor
                        ) -> None:  # fmt: skip
    from progmem.kernels import biased

    biased.run_gelu_backward(wide, bias, torch.mm(x, weight), out=out)


def plain_sums(x: Tensor) -> Tensor:
    return x.sum(0, dtype=torch.float32)


def plain_scan_sums(norms: Any, by_slot: Any, rows: Any, wide: Tensor, slots: int) -> Any:
    from progmem.kernels.scan_sums import Summed

    found = []
    for dy, x, moments in norms:
        N = len(dy)
        unit = (x[:N] - moments[:N, 0, :, None]) * moments[:N, 1, :, None]
        found += [(dy * unit).sum((0, 1)), dy.float().sum((0, 1))]
    slot = [t.float().unflatten(1, (-1, slots)).sum((0, 1)) for t in by_slot]
    return Summed(tuple(found), (slot[0], slot[1]), tuple(t.sum((0, 1)) for t in rows),
                  wide.sum((0, 1), dtype=torch.float32))  # fmt: skip


def lean_scan(slots: Any, layer: Any, below: Tensor, k: Tensor, v: Tensor, turn: Any, layout: Any,
              *, stride: int) -> Any:  # fmt: skip
    """The plain loop: keys turned back to places in their window, products by torch."""
    from progmem.model.attention import merge_heads, split_heads
    from progmem.model.rotary import Turn, turned

    B, N = k.shape[:2]
    at = Turn(*(t[: N * stride : stride].contiguous() for t in turn))
    heads = split_heads(k, slots.heads)  # (B, N, H, W, d)
    k = turned(heads.transpose(1, 3), Turn(at.cos, -at.sin)).transpose(1, 3)
    with mock.patch.object(scan.MemorySlots, "by_hand", lambda *a, **kw: False):
        made = slots.scan(layer, slots.start(B), below=below, k=k, v=split_heads(v, slots.heads),
                          valid=layout.in_window, alive=layout.alive)  # fmt: skip
    own = turned(made.carry[0].transpose(1, 3), at).transpose(1, 3)
    return made._replace(carry=(merge_heads(own), merge_heads(made.carry[1])))


def lean_band(q: Tensor, k: Tensor, v: Tensor, first: Any = None, *, heads: int,
              reach: int | None = None) -> Tensor:  # fmt: skip
    from progmem.model.attention import attend_plainly, merge_heads, split_heads
    from progmem.model.encoder import band_mask

    if reach is None:
        q, k, v = (split_heads(t, heads) for t in (q, k, v))
        own = None if first is None else tuple(split_heads(t, heads) for t in first)
        return merge_heads(attend_plainly(q, k, v, None, first=own, causal=True))  # type: ignore[arg-type]
    B, _, T, D = q.shape
    there = torch.ones(B, T, dtype=torch.bool, device=q.device)
    mask = band_mask(F.pad(there, (reach, 0)), reach)
    P, c = mask.shape[1:3]
    short = P * c - T
    q = F.pad(q[:, 0], (0, 0, 0, short)).view(B, P, c, D)
    k, v = (F.pad(t[:, 0], (0, 0, reach, short)).unfold(1, reach + c, c).mT for t in (k, v))
    q, k, v = (split_heads(t, heads) for t in (q, k, v))
    out = attend_plainly(q, k, v, mask[:, :, None], first=None, causal=False)
    return merge_heads(out).flatten(1, 2)[:, None, :T]


def lean_complete(layer: Any, x: Tensor, attended: Tensor, also: Tensor | None = None
                  ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    out = layer.complete(x, attention.split_heads(attended, 1))
    return out, None if also is None else F.linear(out.to(also.dtype), also)


def everywhere(name: str, new: Any) -> Patches:
    """Patches of a function wherever it was imported to."""
    return [(module, name, new) for key, module in list(sys.modules.items())
            if key.startswith("progmem.") and hasattr(module, name)]  # fmt: skip


def families() -> dict[str, Patches]:
    """How each family is replaced by plain torch; everything that can be is imported first."""
    from progmem.kernels import (
        band as band_kernel,
    )
    from progmem.kernels import (
        biased,
        few_queries,
        mix,
        norm,
        overlap_backward,
        overlap_means,
        overlap_pool,
        unit,
        widen,
        windows,
    )
    from progmem.losses import contrast as losses_contrast
    from progmem.losses import hgcl, pcl
    from progmem.model import by_hand, gate_by_hand, tape_backward  # noqa: F401

    assert overlap_pool and overlap_means and overlap_backward
    no = lambda *a, **kw: False  # noqa: E731
    window: Patches = [(scan.MemorySlots, "by_hand", no)]
    band: Patches = [(encoder.NeighbourhoodEncoder, "by_hand", no)]
    attend: Patches = [(attention, "_attend_at_once", lambda q, k, v, mask, first, causal:
                        attention.attend_plainly(q, k, v, mask, first=first, causal=causal))]  # fmt: skip
    plain = losses_contrast.repulsion_plainly
    return {
        "window attention": window,
        "neighbourhood attention": band,
        "all attention": window + band + attend,
        "norm": [(norm, "norm", plain_norm), (norm, "through", plain_through),
                 (norm, "add_norm", plain_add_norm)],
        "bias, gelu, add": [(biased, "gelu", plain_gelu), (biased, "add", plain_add),
                            (biased, "linear", plain_linear)],
        "token gate": [(gate_by_hand, "gated", plain_gated)],
        "gated mix": [(gate_by_hand, "gated", plain_gated), (mix, "mixed", plain_mixed)],
        "overlap pool": [(OverlapAggregator, "by_kernels", plain_pool)],
        "l2 normalise": [(unit, "unit", lambda x: F.normalize(x, dim=-1))],
        "sampled contrast": [(m, "repulsion", plain) for m in (hgcl, pcl)],
        "unfold": [(windows, "unfold", lambda x, w, s: x.unfold(1, w, s).movedim(-1, 2))],
        "slot attention": [(few_queries, "MOST", 0)],
        "matmul + gelu": [(widen, "gelu_of_product", plain_gelu_of_product),
                          (widen, "gelu_backward_of_product", plain_gelu_backward)],
        "scan sums": [(tape_backward, "scan_sums", plain_scan_sums)],
        "column sums": everywhere("column_sums", plain_sums),
        "gradients added together": [(twins, "USES", 1)],
        "cast at once": everywhere("for_autocast", lambda module, x: module),
        "long windows": [(m, "takes", no) for m in (lean,)],
        "long: scan": [(lean, "_scan", lean_scan)],
        "long: band": [(band_kernel, "attend", lean_band)],
        "long: rows in pieces": [(lean, "complete", lean_complete),
                                 (lean, "feed_forward", lambda ahead, x: ahead(x))],
    }  # fmt: skip


STEP = ("window attention", "neighbourhood attention", "all attention", "norm", "bias, gelu, add",
        "token gate", "gated mix", "overlap pool", "l2 normalise", "sampled contrast", "unfold",
        "slot attention", "matmul + gelu", "scan sums", "column sums", "gradients added together",
        "cast at once")  # fmt: skip
ENCODE = ("norm", "bias, gelu, add", "gated mix", "overlap pool", "long windows", "long: scan",
          "long: band", "long: rows in pieces")  # fmt: skip


@contextlib.contextmanager
def without(patches: Patches) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for where, name, new in patches:
            stack.enter_context(mock.patch.object(where, name, new))
        yield


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the lock that keeps timings of two processes apart."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def begin(rows: Rows, cfg: RunConfig, *, graph: bool, compiled: bool) -> Callable[[int], Any]:
    """One update of a training, by its number."""
    stats, train = ChannelStats(rows.channels), cfg.train
    rows.set_statistics(stats)
    fabric = make_fabric(cfg)
    model = Learner(initial_model(model_for(rows, cfg), stats, train.seed), cfg.loss)
    model.to(fabric.device)
    step = Step(model, rows, cfg, train.batch_size, 1000, fabric.device)
    few = Step(model, rows, cfg, 2, 1000, fabric.device)
    freeze_unreached(model, lambda: few(0)[0])
    optimizer = make_optimizer(parameter_groups(model, 0.05), train.lr, fabric.device)
    wrapped, optimizer = fabric.setup(model, optimizer)
    step.forward = wrapped
    if compiled:
        plain_forward, plain_losses = step.forward, step.losses
        step.forward = torch.compile(plain_forward)
        step.losses = torch.compile(plain_losses)  # type: ignore[method-assign]
    update = Update(step, wrapped, optimizer, fabric, train)
    return RecordedUpdate(update) if graph else update


def time_step(chosen: argparse.Namespace, *, graph: bool, compiled: bool = False,
              plain: bool = False, patches: Patches | None = None) -> dict[str, Any]:  # fmt: skip
    device = chosen.device
    cfg = read_config(
        None,
        [
            *SETTINGS,
            f"model.size={chosen.size}",
            f"train.batch_size={chosen.batch}",
            f"train.device={device}",
            f"train.precision={'bf16' if device == 'cuda' else '32'}",
        ],
    )
    torch.compiler.reset()
    with without(patches or []), kernels.plain_torch() if plain else contextlib.nullcontext():
        advance = begin(
            made_rows(2048, cfg), cfg, graph=graph and device == "cuda", compiled=compiled
        )
        losses = [advance(n).read()["loss"] for n in range(WARM)]
        numbers = iter(range(WARM, 10**6))

        def stretch() -> None:
            last = None
            for _ in range(STEPS):
                outcome = advance(next(numbers))
                if last is not None:
                    last.read()
                last = outcome

        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        with alone(chosen.lock):
            seconds = (
                timing.median_seconds(stretch, device, repeats=chosen.repeats, warmup=1) / STEPS
            )
        peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None
    return {"ms": seconds * 1e3, "peak_mb": peak, "losses": losses}


def time_encode(chosen: argparse.Namespace, *, compiled: bool = False, plain: bool = False,
                patches: Patches | None = None) -> dict[str, Any]:  # fmt: skip
    device = chosen.device
    torch.manual_seed(0)
    cfg = geometry(chosen.samples, chosen.dim)
    model = PMT(cfg).eval().to(device)
    x = torch.randn(8, chosen.samples, 1, device=device)
    torch.compiler.reset()
    run = torch.compile(model) if compiled else model
    with (without(patches), kernels.plain_torch() if plain else contextlib.nullcontext(), torch.no_grad(),
          timing.autocast(device)):  # fmt: skip
        run(x)
        call = (lambda: run(x)) if compiled else (lambda: model.encode(x))
        with alone(chosen.lock):
            row = timing.measure(call, device, repeats=chosen.repeats)
        if device == "cuda":
            replay = timing.replayed(lambda: run(x), device)
            with alone(chosen.lock):
                row["graph_ms"] = (
                    timing.median_seconds(replay, device, repeats=chosen.repeats) * 1e3
                )
        row["ms"] = row.pop("seconds") * 1e3
        row["sum"] = float(run(x).sequence.float().abs().sum())
    return row


def tried(name: str, call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    began = time.time()
    try:
        row = call()
    except Exception as error:
        row = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    row = {"variant": name, **row, "took": time.time() - began}
    print({k: v for k, v in row.items() if k != "losses"}, flush=True)
    return row


def measure(chosen: argparse.Namespace) -> dict[str, Any]:
    step: list[dict[str, Any]] = []
    encode: list[dict[str, Any]] = []
    if chosen.compiled:
        step.append(
            tried(
                "torch.compile",
                lambda: time_step(chosen, graph=False, compiled=True, plain=True, patches=COMPILED),
            )
        )
        step.append(
            tried(
                "torch.compile + graph",
                lambda: time_step(chosen, graph=True, compiled=True, plain=True, patches=COMPILED),
            )
        )
        print("ROW", json.dumps(["step", step[-1]]), flush=True)
        print("ROW", json.dumps(["step", step[-2]]), flush=True)
        encode.append(
            tried("torch.compile", lambda: time_encode(chosen, compiled=True, plain=True))
        )
        print("ROW", json.dumps(["encode", encode[-1]]), flush=True)
        return {"step": step, "encode": encode}
    known = families()
    step.append(tried("ours", lambda: time_step(chosen, graph=True)))
    encode.append(tried("ours", lambda: time_encode(chosen)))
    step.append(tried("eager", lambda: time_step(chosen, graph=False, plain=True)))
    step.append(tried("graph", lambda: time_step(chosen, graph=True, plain=True)))
    encode.append(tried("eager", lambda: time_encode(chosen, plain=True)))
    for name in STEP:
        step.append(
            tried(f"without {name}", partial(time_step, chosen, graph=True, patches=known[name]))
        )
    for name in ENCODE:
        encode.append(tried(f"without {name}", partial(time_encode, chosen, patches=known[name])))
    step.append(tried("ours again", lambda: time_step(chosen, graph=True)))
    encode.append(tried("ours again", lambda: time_encode(chosen)))
    return {"step": step, "encode": encode}


COMPILED: Patches = [(learner_module, "for_autocast", lambda module, x: module)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    timing.add_arguments(parser)
    parser.add_argument("--size", default="base")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=320)
    parser.add_argument("--limit", type=int, default=480, help="seconds for the compiled variants")
    parser.add_argument("--compiled", action="store_true", help="measure those, print them as json")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--lock", type=Path, default=Path("/tmp/progmem-timing.lock"))
    chosen = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    if len(cores) > 4:  # compiling must not slow down launches in the other process
        os.sched_setaffinity(0, cores[half:] if chosen.compiled else cores[:half])
    if chosen.compiled:
        measure(chosen)
        return
    other = None
    if not chosen.no_compile:
        command = [sys.executable, "-m", "benchmarks.kernel_families", "--compiled", *sys.argv[1:]]
        log = open("/tmp/compiled.log", "w+")
        other = subprocess.Popen(command, stdout=log, text=True, start_new_session=True)
        os.sched_setaffinity(other.pid, cores) if half <= 2 else os.sched_setaffinity(
            other.pid, cores[half:]
        )
    began = time.time()
    found = measure(chosen)
    if other is not None:
        try:
            other.wait(timeout=max(1, chosen.limit - (time.time() - began)))
        except subprocess.TimeoutExpired:
            other.kill()
        out = Path("/tmp/compiled.log").read_text()
        print(out[-3000:])
        for line in out.splitlines():
            if line.startswith("ROW "):
                key, row = json.loads(line[4:])
                found[key].append(row)
    result = {
        **record.environment(chosen.device, chosen.commit),
        "repeats": chosen.repeats,
        **found,
    }
    path = record.save("kernel_families", chosen.device, result, folder=chosen.out)
    print(f"written: {path}")
    for key, rows in found.items():
        ours = rows[0].get("ms", float("nan"))
        for row in rows:
            graph = f"  graph {row['graph_ms']:.2f}" if "graph_ms" in row else ""
            print(
                f"{key:7} {row['variant']:36} {row.get('ms', float('nan')):8.2f} ms  {row.get('ms', float('nan')) / ours:6.3f}x"
                f"  {row.get('peak_mb') or 0:9.0f} MB{graph}  {row.get('error', '')[:150]}"
            )


if __name__ == "__main__":
    main()
