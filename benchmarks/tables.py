"""The tables of the README, made from results/; a test fails when they disagree.

python -m benchmarks.tables
"""

import json
from collections.abc import Callable
from typing import Any

from benchmarks.record import RESULTS


def demo_table(result: dict[str, Any]) -> str:
    """What the demonstration reaches, as it prints it."""
    return "\n".join("    " + line for line in result["printed"])


def backbone_table(result: dict[str, Any]) -> str:
    """Time and peak memory of the backbone over those of full attention, by tokens."""
    whole = [row for row in result["rows"] if row["role"] == "attention"]
    lines = ["| tokens | time | peak memory |", "|---|---|---|"]
    for ours, full in zip(whole[::2], whole[1::2], strict=True):
        tokens = (ours["samples"] - result["config"]["patch"]) // result["config"][
            "patch_stride"
        ] + 1
        time, memory = (ours[key] / full[key] for key in ("seconds", "peak_mb"))
        lines.append(f"| {tokens:,} | {time:.2f}x | {memory:.2f}x |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "demo/sample": demo_table,
    "backbone/cpu": backbone_table,
}


def render(name: str) -> str:
    return TABLES[name](json.loads((RESULTS / f"{name}.json").read_text()))


if __name__ == "__main__":
    for name in TABLES:
        print(f"{name}\n\n{render(name)}\n")
