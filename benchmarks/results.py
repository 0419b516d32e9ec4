"""Tables of everything in results/: of the benchmarks here and of the library's commands.

python -m benchmarks.results            # writes docs/results.md and the tables of other pages
python -m benchmarks.results pilot      # shows one
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.baselines_tables import baselines_table, peers_cnn_table, peers_table
from benchmarks.busy_machine import busy_machine_table
from benchmarks.compute_tables import (
    aggregator_table,
    before_and_after_table,
    families_table,
    numerics_table,
    recipe_step_table,
    stream_table,
    training_table,
    vectorised_table,
)
from benchmarks.explore import explore_table
from benchmarks.explore_page import explore_page_table
from benchmarks.explore_speed import explore_speed_table
from benchmarks.few_labels_tables import (
    cpu_time_table,
    few_labels_table,
    recipe_parts_table,
    small_sets_table,
)
from benchmarks.frame_sizes import frame_sizes_table
from benchmarks.large_data import large_data_table
from benchmarks.linear_probe import linear_probe_table
from benchmarks.noise import noise_table
from benchmarks.own_forecast import own_forecast_table
from benchmarks.own_labels import own_labels_table
from benchmarks.soak import soak_table
from progmem.report import tables
from progmem.report.record import RESULTS
from progmem.report.tables import (
    classification_table,
    cue_table,
    finetune_table,
    forecast_table,
    markdown,
)

Result = dict[str, Any]
ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/results.md"


def demo_table(results: list[Result]) -> str:
    """What the demonstration reaches, as it prints it."""
    return "\n".join("    " + line for line in results[0]["printed"])


def backbone_table(results: list[Result]) -> str:
    """Time and peak memory of the backbone over those of full attention, by tokens."""
    result = results[0]
    whole = [row for row in result["rows"] if row["role"] == "attention"]
    patch, stride = result["config"]["patch"], result["config"]["patch_stride"]
    lines = []
    for ours, full in zip(whole[::2], whole[1::2], strict=True):
        tokens = (ours["samples"] - patch) // stride + 1
        time, memory = (ours[key] / full[key] for key in ("seconds", "peak_mb"))
        lines.append([f"{tokens:,}", f"{time:.2f}x", f"{memory:.2f}x"])
    return markdown(["tokens", "time", "peak memory"], lines)


TABLES: dict[str, Callable[..., str]] = {  # in the order of the page
    "demo": demo_table,
    "backbone": backbone_table,
    "pilot": classification_table,
    "classify": classification_table,
    "tune": classification_table,
    "end_to_end": classification_table,
    "few_labels": few_labels_table,
    "few_labels_validation": few_labels_table,
    "recipe_parts": recipe_parts_table,
    "small_sets": small_sets_table,
    "cpu_time": cpu_time_table,
    "compute_stream": stream_table,
    "compute_vectorised": vectorised_table,
    "compute_aggregator": aggregator_table,
    "recipe_step": recipe_step_table,
    "training_step": training_table,
    "kernel_families": families_table,
    "before_and_after": before_and_after_table,
    "busy_machine": busy_machine_table,
    "numerics": numerics_table,
    "forecast": forecast_table,
    "forecast_harness": forecast_table,
    "own_forecast": own_forecast_table,
    "own_labels": own_labels_table,
    "large_data": large_data_table,
    "frame_sizes": frame_sizes_table,
    "baselines": baselines_table,
    "peers": peers_table,
    "peers_cnn": peers_cnn_table,
    "linear_probe": linear_probe_table,
    "cue": cue_table,
    "cue_small": cue_table,
    "finetune": finetune_table,
    "soak": soak_table,
    "noise": noise_table,
    "explore": explore_table,
    "explore_speed": explore_speed_table,
    "explore_page": explore_page_table,
}
render = partial(tables.render, tables=TABLES)
render_all = partial(tables.render_all, tables=TABLES)


def write_page(page: Path, folder: Path) -> None:
    """Put every table below what ``page`` says before its first one."""
    introduction = page.read_text().partition("\n## ")[0]
    page.write_text(f"{introduction.rstrip()}\n\n{render_all(folder)}\n")


def fill_page(page: Path, folder: Path) -> str:
    """The text of ``page`` with its tables as results/ has them."""

    def table(name: str) -> str:
        return (
            pages.PAGE_TABLES[name](folder) if name in pages.PAGE_TABLES else render(name, folder)
        )

    return pages.fill(page.read_text(), table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "experiment", nargs="?", choices=TABLES, help="one experiment to show; by default all"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--pooling", default="sequence", help="of classification tables")
    parser.add_argument("--head", default="linear", help="of classification tables")
    chosen = parser.parse_args()
    if chosen.experiment is None:
        write_page(PAGE, chosen.results)
        for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
            page.write_text(fill_page(page, chosen.results))
        print(f"written: {PAGE} and the tables of the other pages")
        return
    options = {"pooling": chosen.pooling, "head": chosen.head}
    print(render(chosen.experiment, chosen.results, **options))


if __name__ == "__main__":
    main()
