"""A saved model and its untrained twin, scored side by side, and the json file that says so."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from progmem.model.saving import gpu_or_cpu, load
from progmem.probes.classify import untrained_twin
from progmem.report import record
from progmem.training.run_folder import read_settings, read_source, run_of

Say = Callable[[str], None]


class Pair:
    """The two encoders of a probe; the twin is drawn with the seed of the model's run."""

    def __init__(self, folder: Path) -> None:
        self._began = time.perf_counter()
        self._device = gpu_or_cpu()
        run = run_of(folder)
        settings = read_settings(run)
        self._seeds = [settings["train"]["seed"]] if settings else None  # None: not a run's model
        self.model = load(folder, device=self._device)
        source = read_source(run)
        self._config = {"model": self.model.cfg.to_dict(), "source": source, "run": settings}
        twin = untrained_twin(self.model, self._seeds[0] if self._seeds else 0)
        self.encoders = (("trained", self.model), ("untrained", twin))

    def write(self, out: Path, rows: list[dict[str, Any]], **facts: Any) -> dict[str, Any]:
        """The result of both encoders' ``rows``, with ``facts`` of the probe, kept in ``out``."""
        result = {
            "config": self._config,
            "seeds": self._seeds,
            **record.environment(self._device),
            "seconds": time.perf_counter() - self._began,
            **facts,
            "rows": rows,
        }
        record.write(out, result)
        return result
