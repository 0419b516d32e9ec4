"""Time and memory of the backbone on the CPU: against full attention, and as series grow.

    python -m benchmarks.backbone            # a few minutes; writes results/backbone/cpu.json

Every row runs in a process of its own, so that one row's peak memory is not another's. Numbers
are compared within one run and printed as ratios; seconds are kept in the json only.
"""

import argparse
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

import progmem
from progmem.baselines import build
from progmem.report import record

CONFIG: dict[str, Any] = {
    "channels": 1, "size": "tiny", "window": 32, "stride": 16, "patch": 8, "patch_stride": 2
}  # fmt: skip
TOKENS = (1_000, 10_000, 100_000)
SAMPLES = (10_000, 100_000, 1_000_000)
CHUNK = 8_192
MODELS: dict[str, Any] = {name: partial(build, name) for name in ("pmt", "vanilla")}


def measure(model: str, samples: int, chunk: int | None) -> dict[str, float]:
    """Seconds of one encode after a short warm-up, and by how much it raised the peak memory."""
    torch.manual_seed(0)
    encoder = MODELS[model](progmem.ModelConfig.from_dict(CONFIG))
    x = torch.randn(1, samples, 1)
    settings = {} if chunk is None else {"chunk": chunk}
    encoder.encode(x[:, :50], **settings)
    before = reset_peak_memory()
    start = time.perf_counter()
    z = encoder.encode(x, **settings)
    seconds = time.perf_counter() - start
    returned = sum(t.numel() * t.element_size() for t in z if t is not None)
    return {"seconds": seconds, "peak_mb": peak_memory() - before, "returned_mb": returned / 2**20}


def reset_peak_memory() -> float:
    """Let the peak start again from here (Linux); what is held now, in MB."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_memory()


def peak_memory() -> float:
    """Most memory this process held, in MB; getrusage would count the parent's too."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measure_apart(model: str, samples: int, chunk: int | None = None) -> dict[str, Any]:
    """`measure` in a fresh process."""
    arguments = [model, str(samples), str(chunk or 0)]
    command = [sys.executable, "-m", "benchmarks.backbone", "--row", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    row: dict[str, Any] = {"model": model, "samples": samples, "chunk": chunk}
    return row | json.loads(done.stdout)


def check() -> None:
    """Nothing is timed unless chunked and whole encoding agree."""
    model = progmem.PMT(progmem.ModelConfig.from_dict(CONFIG))
    x = torch.randn(1, 5_000, 1)
    whole, chunked = model.encode(x), model.encode(x, chunk=999)
    torch.testing.assert_close(chunked.tokens, whole.tokens, rtol=0, atol=1e-5)
    torch.testing.assert_close(chunked.memory, whole.memory, rtol=0, atol=1e-5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", nargs=3, metavar=("MODEL", "SAMPLES", "CHUNK"))
    row = parser.parse_args().row
    if row is not None:
        print(json.dumps(measure(row[0], int(row[1]), int(row[2]) or None)))
        return
    check()
    patch, stride = CONFIG["patch"], CONFIG["patch_stride"]
    rows = []
    print("against full attention of the same depth\ntokens    time  peak memory")
    for tokens in TOKENS:
        samples = (tokens - 1) * stride + patch
        ours, full = (measure_apart(model, samples) for model in MODELS)
        rows += [ours | {"role": "attention"}, full | {"role": "attention"}]
        ratios = (ours[key] / full[key] for key in ("seconds", "peak_mb"))
        print(f"{tokens:7,}" + "".join(f"  {ratio:5.2f}x" for ratio in ratios), flush=True)
    print(
        "\ngrowth, per tenfold length (1.0 is linear)\nsamples     whole  chunked  beyond returned"
    )
    last: dict[int | None, dict[str, Any]] = {}
    for samples in SAMPLES:
        print(f"{samples:9,}", end="")
        for chunk in (None, CHUNK):
            new = measure_apart("pmt", samples, chunk)
            growth = new["seconds"] / last[chunk]["seconds"] / 10 if last.get(chunk) else None
            print(f"  {growth:5.2f}" if growth else "      -", end="")
            last[chunk] = new
            rows.append(new | {"role": "growth"})
        beyond = rows[-1]["peak_mb"] - rows[-1]["returned_mb"]
        print(f"   {beyond:8.1f} MB", flush=True)
    result = {"config": CONFIG, "seeds": [0], **record.environment(), "rows": rows}
    print(f"\nwritten: {record.save('backbone', 'cpu', result)}")


if __name__ == "__main__":
    main()
