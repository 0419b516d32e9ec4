"""Make the built-in sample from the smartwatch recordings that seglearn 1.2.5 ships.

    python scripts/make_sample.py watch.npz

watch.npz holds ``values`` (samples, 6), all recordings end to end, ``offsets``, ``y``, ``subject``,
``side``, ``classes`` and ``channels``. The sample keeps all of it, values as float16.
"""

import sys
from pathlib import Path

import numpy as np

TARGET = Path(__file__).parent.parent / "src/progmem/data/sample/watch.npz"


def main() -> None:
    with np.load(sys.argv[1], allow_pickle=False) as source:
        arrays = {name: source[name] for name in source.files}
    values = arrays["values"]
    arrays["values"] = values.astype(np.float16)
    worst = np.abs(arrays["values"].astype(np.float64) - values).max(0) / values.std(0)
    np.savez_compressed(TARGET, **arrays)
    print(
        f"{TARGET}: {TARGET.stat().st_size / 1e6:.2f} MB, rounded by at most {worst.max():.1e} sd"
    )


if __name__ == "__main__":
    main()
