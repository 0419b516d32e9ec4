"""What the command ``probe cue`` does: how well a model's state remembers a cue."""

from pathlib import Path
from typing import Any

from progmem.commands.pair import Pair, Say
from progmem.data.datasets import load_labelled
from progmem.files import check_result_file
from progmem.probes.cue import SEEDS, probe_cue
from progmem.report.tables import cue_table
from progmem.training.run_folder import check_unseen


def cue_set(
    model_folder: Path,
    name: str,
    out: Path,
    *,
    data_dir: Path | None = None,
    split: str = "official",
    say: Say = print,
) -> dict[str, Any]:
    """Probe a model and its untrained twin with cues in the test rows of a set.

    The scores go to the json file ``out``. No label of the set is read.
    """
    check_result_file(out)
    data = load_labelled(name, data_dir, split=split)
    check_unseen(model_folder, name, split)
    pair = Pair(model_folder)
    series = data.X_test.transpose(0, 2, 1)  # (R, L, C)
    rows = []
    for kind, encoder in pair.encoders:
        say(f"{name}, {kind}: {len(series)} series")
        found = probe_cue(encoder, series, recordings=data.recording_test)
        rows.append({"encoder": kind, "set": name, "split": split} | found)
    result = pair.write(out, rows, cue_seeds=list(SEEDS))
    say(f"\n{cue_table([result])}\n\nwritten: {out}")
    return result
