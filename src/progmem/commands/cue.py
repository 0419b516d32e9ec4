"""What the command ``probe cue`` does: how well a model's state remembers a cue."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from progmem.data.registry import load_labelled
from progmem.files import check_result_file
from progmem.model.saving import load
from progmem.probes.retention import SEEDS, probe_cue
from progmem.probes.untrained import untrained_twin
from progmem.report import record
from progmem.report.cue_table import cue_table
from progmem.training.run_folder import check_unseen, read_settings, read_source


def cue_set(
    model_folder: Path,
    name: str,
    out: Path,
    *,
    data_dir: Path | None = None,
    split: str = "official",
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Probe a model and its untrained twin with cues in the test rows of a set.

    The scores go to the json file ``out``. No label of the set is read.
    """
    check_result_file(out)
    began = time.perf_counter()
    data = load_labelled(name, data_dir, split=split)
    check_unseen(model_folder, name, split)
    run = model_folder.parent
    source, settings = read_source(run), read_settings(run)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load(model_folder, device=device)
    series = data.X_test.transpose(0, 2, 1)  # (R, L, C)
    rows = []
    seed = settings["train"]["seed"] if settings else 0
    twin = untrained_twin(model, seed)  # for a run's model: as that run began
    for kind, encoder in (("trained", model), ("untrained", twin)):
        say(f"{name}, {kind}: {len(series)} series")
        found = probe_cue(encoder, series, recordings=data.recording_test)
        rows.append({"encoder": kind, "set": name, "split": split} | found)
    result = {
        "config": {"model": model.cfg.to_dict(), "source": source, "run": settings},
        "seeds": [seed] if settings else None,  # None: not a run's model
        "cue_seeds": list(SEEDS),
        **record.environment(device),
        "seconds": time.perf_counter() - began,
        "rows": rows,
    }
    record.write(out, result)
    say(f"\n{cue_table([result])}\n\nwritten: {out}")
    return result
