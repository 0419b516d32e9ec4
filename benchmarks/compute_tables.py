"""Tables of the compute benchmarks: ours and, marked as such, the paper's (an A100, FP16).

Seconds and bytes are shown for a GPU, with its name; for a CPU only what does not depend on how
fast it is.
"""

from collections.abc import Callable
from typing import Any

from benchmarks.paper import (
    AGGREGATOR_STREAMING,
    AGGREGATOR_VECTORISED,
    STREAMING,
    VECTORISED,
)
from progmem.report.tables import markdown

Result = dict[str, Any]
PAPERS_RATE = 96_000  # Hz, the most it prints


def stream_table(results: list[Result]) -> str:
    """A push of one window against full attention over the sequence; long streams; one CPU core."""
    return _by_device(results, _stream_part)


def vectorised_table(results: list[Result]) -> str:
    """Whole series at once: four models at each batch size, then growth with length."""
    return _by_device(results, _vectorised_part)


def aggregator_table(results: list[Result]) -> str:
    """The aggregator's multiply-adds and its share of the time of a step and of a block."""
    return _by_device(results, _aggregator_part)


def training_table(results: list[Result]) -> str:
    """A whole training step by variant, how far apart their losses go, and the largest kernels."""
    return _by_device(results, _training_part)


def recipe_step_table(results: list[Result]) -> str:
    """A training step of each recipe, over one of the paper's; times on a GPU only."""
    lines = []
    for result in results:
        base = result["rows"][0]["seconds"]
        for row in result["rows"]:
            shown = f"{1e3 * row['seconds']:.1f} ms" if "NVIDIA" in result["device"] else "-"
            lines.append([result["device"], row["recipe"], shown, f"{row['seconds'] / base:.2f}x"])
    return markdown(["device", "recipe", "step", "over the paper's"], lines)


def families_table(results: list[Result]) -> str:
    """A training step and `encode` by variant: without a family of kernels, compiled, plain."""
    return "\n\n".join(
        f"{result['device']}, commit {result['commit'][:7]}\n\n{_families_part(result)}"
        for result in results
    )


def before_and_after_table(results: list[Result]) -> str:
    """What a refactoring cost: this tree against an older one."""
    return _by_device(results, _before_and_after_part)


def numerics_table(results: list[Result]) -> str:
    """Relative errors of a first training step against float64, by kind."""
    return _by_device(results, _numerics_part)


def _families_part(result: Result) -> str:
    absolute = ["ms", "peak MB"] if _on_gpu(result) else []
    parts = []
    for kind in [kind for kind in ("step", "encode") if kind in result]:
        # what is launched one operation after the other takes as long as the host needs for it
        key = "ms" if result[kind][0].get("graph_ms") is None else "graph_ms"
        ours = result[kind][0][key]
        lines = []
        for row in result[kind]:
            if "ms" not in row:
                lines.append([row["variant"], "does not run", *["-"] * len(absolute), "-"])
                continue
            found = [f"{row['ms']:.1f}", f"{row['peak_mb']:,.0f}"] if absolute else []
            graph = "-" if row.get("graph_ms") is None else f"{row['graph_ms']:.1f}"
            shown = graph if absolute else "-"
            lines.append([row["variant"], f"{row[key] / ours:.2f}x", *found, shown])
        parts.append(markdown([kind, "time / ours", *absolute, "ms as a graph"], lines))
    return "\n\n".join(parts)


def _before_and_after_part(result: Result) -> str:
    lines = []
    for row in result["rows"]:
        interval = " to ".join(f"{end:.3f}" for end in row.get("interval", ())) or "-"
        bound = row.get("bound", result.get("bound", "-"))
        lines.append([row["measure"], f"{row['ratio']:.3f}x", interval, str(bound)])
    title = f"this tree ({result['commit'][:7]}) / {result['base']}"
    return markdown(["measure", title, "95 % interval", "bound"], lines)


def _by_device(results: list[Result], part: Callable[[Result], str]) -> str:
    return "\n\n".join(f"{result['device']}\n\n{part(result)}" for result in results)


def _on_gpu(result: Result) -> bool:
    return not result["device"].endswith("CPU")


def _change(ours: float | None, other: float | None) -> str:
    return "-" if not ours or not other else f"{100 * (ours / other - 1):+.0f} %"


def _times(ours: float | None, other: float | None) -> str:
    return "-" if not ours or not other else f"{ours / other:.2f}x"


def _stream_part(result: Result) -> str:
    lines = []
    for row in result["rows"]:
        ours, full, cached = row["ours"], row["full"], row["cached"]
        name = f"{row['samples']:,} → {row['tokens']:,}"
        paper = STREAMING.get(row["samples"]) if result["config"]["dim"] == 320 else None
        flops = _change(row["macs"], row["macs_full"])
        memory = _change(ours["peak_mb"], full["peak_mb"])
        if paper is not None:
            flops += f" ({paper.flops_change:+d} %)"
            memory += f" ({paper.memory_change:+d} %)"
        if _on_gpu(result):
            cells = [
                f"{1e3 * ours['seconds']:.2f}",
                f"{ours['sequence_seconds']:.4f}",
                f"{full['seconds']:.4f}",
                f"{ours['rate']:,.0f}",
            ]
            if paper is not None:
                theirs = (paper.window_ms, paper.sequence_s, paper.full_s, f"{paper.hertz:,}")
                cells = [f"{a} ({b})" for a, b in zip(cells, theirs, strict=True)]
            cells += [flops, memory, f"{1e3 * cached['seconds']:.2f}"]
        else:
            cells = [
                f"{ours['seconds'] / full['seconds']:.3f}x",
                f"{ours['sequence_seconds'] / full['seconds']:.2f}x",
                f"{ours['rate'] / PAPERS_RATE:.2f}x",
                flops,
                f"{ours['seconds'] / cached['seconds']:.2f}x",
            ]
        lines.append([name, *cells])
    header = ["window / full", "sequence / full", "rate / 96 kHz", "FLOPs", "window / cached"]
    if _on_gpu(result):
        header = ["window ms", "sequence s", "full attention s", "max Hz", "FLOPs", "peak memory",
                  "cached, last window ms"]  # fmt: skip
    table = markdown(["samples → tokens", *header], lines)
    return "\n".join([table, "", *_stream_notes(result)])


def _stream_notes(result: Result) -> list[str]:
    notes = ["- in brackets: the paper's"] if result["config"]["dim"] == 320 else []
    for long in result["long_stream"]:
        notes.append(
            f"- {long['size']}: a push after {long['late_samples']:,} samples takes "
            f"{long['late'] / long['early']:.2f}x one after {long['early_samples']:,}"
        )
    best = max(row["rate"] for row in result["one_core"])
    notes.append(f"- one CPU core: at best {best / PAPERS_RATE:.2f}x 96 kHz sustained")
    for hour in result["hour"]:
        notes.append(
            f"- one CPU core, {hour['size']}: {hour['seconds']} s of {hour['channels']} channels "
            f"at {hour['rate']} Hz in {1 / hour['real_time']:.4f} of real time"
        )
    return notes


def _vectorised_part(result: Result) -> str:
    return "\n\n".join([*(_models(result, batch) for batch in result["batches"]), _growth(result)])


def _models(result: Result, batch: Result) -> str:
    """Four models on one batch, as launched and as a CUDA graph, against fused full attention."""
    by_name = {row["model"]: row for row in batch["rows"]}
    base = by_name["fused"]
    known = (batch["batch"], batch["samples"], result["config"]["dim"]) == (32, 100_000, 320)
    lines = []
    for name, row in by_name.items():
        cells = [f"{row['params'] / 1e6:.1f}", f"{row['macs'] / 1e9:.2f}"]
        graph = row["recorded_seconds"]
        if _on_gpu(result):
            cells += [f"{row['peak_mb']:,.0f}", f"{1e3 * row['seconds']:,.1f}"]
            cells.append("-" if graph is None else f"{1e3 * graph:,.1f}")
            cells.append(f"{row['tokens'] / row['seconds']:,.0f}")
        cells.append(_times(row["seconds"], base["seconds"]))
        if _on_gpu(result):
            cells.append(_times(graph, base["recorded_seconds"]))
        lines.append([name, *cells, _times(row["peak_mb"], base["peak_mb"])])
        if known:
            paper, fused = VECTORISED[name], VECTORISED["fused"]
            theirs = [f"{paper.million_params}", f"{paper.gflops}"]
            if _on_gpu(result):
                theirs += [f"{paper.mb:,}", f"{paper.ms:,}", "-", f"{paper.tokens_per_second:,}"]
            theirs.append(_times(paper.ms, fused.ms))
            if _on_gpu(result):
                theirs.append("-")
            lines.append([f"the paper's {name}", *theirs, _times(paper.mb, fused.mb)])
    header = ["model", "M params", "GFLOPs", "time / fused", "memory / fused"]
    if _on_gpu(result):
        header = ["model", "M params", "GFLOPs", "peak MB", "ms", "ms as a graph", "tokens/s",
                  "time / fused", "graph / fused", "memory / fused"]  # fmt: skip
    title = f"{batch['batch']} x {batch['samples']:,} samples"
    return f"{title}\n\n{markdown(header, lines)}"


def _growth(result: Result) -> str:
    lines = []
    last: Result | None = None
    for row in result["growth"]:
        grown = "-"
        if last is not None:
            longer = row["samples"] / last["samples"]
            grown = f"{row['seconds'] / last['seconds'] / longer:.2f}"
        absolute = [f"{row['seconds']:.3f}", f"{row['peak_mb']:,.0f}"] if _on_gpu(result) else []
        lines.append([f"{row['samples']:,}", *absolute, grown])
        last = row
    absolute = ["s", "peak MB"] if _on_gpu(result) else []
    return markdown(["samples", *absolute, "growth over the row above (1 is linear)"], lines)


def _aggregator_part(result: Result) -> str:
    known = result["config"]["dim"] == 320
    streaming = []
    for row in result["streaming"]:
        seconds = row["seconds"]
        cells = [
            f"{row['macs'] / 1e9:.2f}",
            f"{100 * seconds['aggregator'] / seconds['push']:.1f}",
        ]
        paper = AGGREGATOR_STREAMING.get(row["window"]) if known else None
        if paper is not None:
            cells = [f"{ours} ({theirs})" for ours, theirs in zip(cells, paper, strict=True)]
        streaming.append([str(row["window"]), str(row["copies"]), *cells])
    vectorised = []
    for row in result["vectorised"]:
        seconds = row["seconds"]
        gflops = f"{row['macs'] / 1e9:.1f}"
        if known and row["tokens"] in AGGREGATOR_VECTORISED:
            gflops += f" ({AGGREGATOR_VECTORISED[row['tokens']]})"
        parts = ("aggregator", "feed_forward", "window_feed_forward")
        shares = [f"{100 * seconds[part] / seconds['block']:.1f}" for part in parts]
        per_token = f"{row['macs'] / row['tokens'] / 1e6:.3f}"
        vectorised.append([f"{row['tokens']:,}", f"{row['window']:,}", gflops, per_token, *shares])
    header = ["tokens", "W", "GFLOPs", "MFLOPs a token", "aggregator % of the block",
              "outer feed-forward %", "windows' feed-forward %"]  # fmt: skip
    return "\n\n".join([
        markdown(["W, on a stream", "copies", "GFLOPs a step", "% of the step's time"], streaming),
        markdown(header, vectorised),
        *(["in brackets: the paper's"] if known else []),
    ])  # fmt: skip


def _training_part(result: Result) -> str:
    first, shown = result["rows"][0], result["rows"][min(1, len(result["rows"]) - 1)]
    lines = []
    for row in result["rows"]:
        cells = [f"{row['seconds'] / first['seconds']:.2f}x", f"{row['profile']['count']:,.0f}"]
        if _on_gpu(result):
            absolute = (1e3 * row["seconds"], row["profile"]["ms"])
            cells += [f"{value:,.1f}" for value in absolute]
        cells += [
            f"{row['largest_difference']:.1e}",
            {True: "yes", False: "no", None: ""}[row.get("same_twice")],
        ]
        lines.append([f"{row['variant']}, {row['precision']}", *cells])
    absolute_names = ["ms", "ms in kernels"] if _on_gpu(result) else []
    header = ["step", "time", "kernels", *absolute_names,
              f"loss apart over {result['steps']} steps", "same twice"]  # fmt: skip
    spent = [
        [
            f"`{kernel['name'][:60].replace('|', ' ')}`",
            f"{100 * kernel['ms'] / shown['profile']['ms']:.1f}",
            f"{kernel['count']:,.0f}",
        ]
        for kernel in shown["profile"]["top"][:20]
    ]
    title = f"where the time of {shown['variant']}, {shown['precision']} goes"
    kernels = markdown(["kernel", "%", "a step"], spent)
    return f"{markdown(header, lines)}\n\n{title}\n\n{kernels}"


def _numerics_part(result: Result) -> str:
    kinds = list(result["rows"][0]["errors"])
    lines = [
        [f"{row['path']}, {row['precision']}", *(f"{row['errors'][kind]:.1e}" for kind in kinds)]
        for row in result["rows"]
    ]
    return markdown(["off float64 by", *kinds], lines)
