"""The demonstration's numbers, kept: python -m benchmarks.demo writes results/demo/sample.json."""

import tempfile
from pathlib import Path

from progmem.demo import DRAWS, LABELS_PER_CLASS, SETTINGS, demo, table_lines
from progmem.report import record


def main() -> None:
    with tempfile.TemporaryDirectory() as parent:
        scores = demo(Path(parent) / "demo")
    kept = {f"{name}, {count} labels": score.as_lists() for (name, count), score in scores.items()}
    facts = {
        "config": SETTINGS,
        "labels": LABELS_PER_CLASS,
        "seeds": [0],
        "label_draws": list(DRAWS),
    }
    result = {**facts, **record.environment(), "scores": kept, "printed": table_lines(scores)}
    print(f"written: {record.save('demo', 'sample', result)}")


if __name__ == "__main__":
    main()
