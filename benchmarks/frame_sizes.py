"""How large the encoders in PMT's frame are, beside PMT.

    python -m benchmarks.frame_sizes      # writes results/frame_sizes/parameters.json

The geometry is that of rows of 500 samples in one channel.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from progmem.baselines import ENCODERS, for_length
from progmem.config import SIZES
from progmem.report import record
from progmem.report.tables import markdown

ROW = {"length": 500, "channels": 1}
FRAME = tuple(name for name, method in ENCODERS.items() if method.in_frame)


def frame_sizes_table(results: list[dict[str, Any]]) -> str:
    """Parameters, and how many times those of PMT of the same size."""
    (result,) = results
    found = {(row["encoder"], row["size"]): row["parameters"] for row in result["rows"]}
    lines = []
    for name in dict.fromkeys(encoder for encoder, _ in found):
        cells = [
            f"{found[name, size]:,} ({found[name, size] / found['pmt', size]:.2f}x)"
            for size in dict.fromkeys(size for _, size in found)
        ]
        lines.append([name, *cells])
    return markdown(["encoder", *dict.fromkeys(size for _, size in found)], lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    chosen = parser.parse_args()
    rows = []
    for size in SIZES:
        for name in FRAME:
            cfg = for_length(name, ROW["length"], {"channels": ROW["channels"], "size": size})
            with torch.device("meta"):
                network = ENCODERS[name].network(cfg)
            count = sum(p.numel() for p in network.parameters())
            rows.append({"encoder": name, "size": size, "parameters": count})
    result = {"config": ROW, "seeds": [], **record.environment(), "rows": rows}
    path = record.save("frame_sizes", "parameters", result, folder=chosen.out)
    print(f"written: {path}\n\n{frame_sizes_table([result])}")


if __name__ == "__main__":
    main()
