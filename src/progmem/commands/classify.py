"""What the command ``probe classify`` does: score a model on a set, or use a few own labels."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from progmem.commands.pair import Pair, Say
from progmem.config import Amount
from progmem.data.datasets import load_labelled
from progmem.data.labels import labels_for
from progmem.data.reader import Recording, check_order, columns_of
from progmem.errors import InputError
from progmem.files import check_output, check_result_file
from progmem.model.pmt import PMT
from progmem.model.saving import load, weights_sha256
from progmem.probes.classify import LABELS, SEEDS, probe_set
from progmem.probes.own_data import LabelProbe, Prediction
from progmem.report.tables import classification_table
from progmem.series import Series
from progmem.training.classifier import Classifier
from progmem.training.run_folder import check_unseen, read_as_trained, run_of, trained_on


def classify_set(
    model_folder: Path,
    name: str,
    out: Path,
    *,
    data_dir: Path | None = None,
    split: str = "official",
    labels: Sequence[Amount] = LABELS,
    say: Say = print,
) -> dict[str, Any]:
    """Probe a model and its untrained twin on a set; the scores go to the json file ``out``."""
    check_result_file(out)
    data = load_labelled(name, data_dir, split=split)
    check_unseen(model_folder, name, split)
    if any(
        seen.get("name") == name and seen["labels"] for seen in trained_on(run_of(model_folder))
    ):
        raise InputError(
            f"{model_folder} was trained on labels of {name}: a probe of few would know them all; "
            "its own scores are in result.json"
        )
    pair = Pair(model_folder)
    rows = []
    for kind, encoder in pair.encoders:
        say(f"{name}, {kind}: {len(data.y_train) + len(data.y_test)} series")
        rows.append({"encoder": kind} | probe_set(encoder, data, labels=labels))
    labelled, again = (row.pop("labelled_rows") for row in rows)
    assert labelled == again
    result = pair.write(out, rows, label_seeds=list(SEEDS), labelled_rows=labelled)
    what = "accuracy / macro-F1 in %, linear SVM on the sequence level, mean ± sd over label draws"
    say(f"\n{what}\n\n{classification_table([result])}\n\nwritten: {out}")
    return result


def label_series(
    model_folder: Path,
    *,
    x: Path | None,
    y: Path | None,
    probe_file: Path | None,
    new: Path | None,
    out: Path | None,
    pooling: str | None = None,
    say: Say = print,
) -> None:
    """Fit a probe on series and labels, or take up a kept one; predict the labels of others.

    A new probe is kept beside the predictions, or as ``out`` where nothing is predicted. A kept one
    may also be the folder of a run that was trained on labels.
    """
    if (x is None) != (y is None):
        raise InputError("--x and --labels go together: the series and their labels")
    if (x is None) == (probe_file is None):
        raise InputError("give a data set's name, --x and --labels, or --probe; one of the three")
    if probe_file is not None and new is None:
        raise InputError("--probe needs --predict: the series to label")
    if probe_file is not None and pooling is not None:
        raise InputError("--pooling is chosen with --x and --labels; a kept probe has its own")
    suffix = ".safetensors" if new is None else ".csv"
    if out is None or out.suffix != suffix:
        raise InputError(f"-o must name the {suffix} file to write, got {out}")
    check_output(out, x, y, new)
    model = load(model_folder, device="auto")
    run = run_of(model_folder)
    others = None if new is None else read_as_trained(new, run)
    if others is not None:
        names = [r.name for r in others]
        Series([r.values for r in others], None, model.cfg, names)  # refused before all else
    probe: LabelProbe | Classifier
    if probe_file is None:
        assert x is not None and y is not None
        known = read_as_trained(x, run)
        check_order(str(x), columns_of(known), others or [])
        probe = _fit(model, known, x, y, pooling or "sequence", say)
    elif probe_file.is_dir():
        probe = Classifier.load(probe_file, device=next(model.parameters()).device)
        if weights_sha256(probe.encoder) != weights_sha256(model):
            raise InputError(f"{model_folder} is not the network of {probe_file}; give its model/")
    else:
        probe = LabelProbe.load(probe_file, model)
        check_order(str(probe_file), probe.columns, others or [])
    found = None if others is None else _predict(probe, [r.values for r in others])
    if isinstance(probe, LabelProbe) and probe_file is None:
        probe.save(out.with_suffix(".safetensors"))
        say(f"the fitted probe: {out.with_suffix('.safetensors')}")
    if others is not None and found is not None:
        with out.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["series", "label", "margin"])
            for r, label, margin in zip(others, *found, strict=True):
                table.writerow([r.name, label, f"{margin:.4f}"])
        say(f"{len(others)} predictions: {out}")


def _predict(probe: LabelProbe | Classifier, series: list[np.ndarray]) -> Prediction:
    if isinstance(probe, LabelProbe):
        return probe.predict(series)
    return Prediction.of_scores(np.array(probe.classes), probe.scores(series))


def _fit(
    model: PMT, recordings: list[Recording], x: Path, y: Path, pooling: str, say: Say
) -> LabelProbe:
    labels = labels_for(recordings, x, y)
    probe = LabelProbe(model, pooling=pooling, columns=columns_of(recordings))
    probe.fit([r.values for r in recordings], labels)
    guess = probe.estimate()
    known = f"{len(probe.y)} labelled series, {len(probe.machine.classes)} classes"
    if guess is None:
        say(f"{known}; a class with one label leaves nothing to estimate the accuracy on")
    else:
        say(f"{known}; accuracy {100 * guess.mean():.1f} % (sd {100 * guess.std(ddof=1):.1f}), "
            f"each of {len(guess)} folds predicted from the others")  # fmt: skip
    return probe
