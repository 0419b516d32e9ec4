"""From a user's files and a few labels to predictions: pretrained if need be, compared, kept."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote

import numpy as np
from sklearn.utils.extmath import softmax

from progmem import artifact
from progmem.config import read_config
from progmem.data.labels import (
    check_labels,
    drop_missing_labels,
    labelled_series,
    origins_of,
)
from progmem.data.options import BY_RULE, ReadOptions
from progmem.data.reader import read_with
from progmem.data.recordings import Recording, check_order, columns_of
from progmem.errors import InputError
from progmem.explore.tables import stretch_table
from progmem.explore.time_axis import TimeAxis
from progmem.files import check_output, unfinished
from progmem.missing import tell_of_missing
from progmem.model.saving import AnyEncoder, load, weights_sha256
from progmem.names import to_cell
from progmem.probes.own_data import POOLING, LabelProbe, Prediction, compare_on_labels
from progmem.progress import Log
from progmem.provenance import check_labels_unseen, history_of, seen_of
from progmem.series import Series
from progmem.training.classifier import SequenceClassifier
from progmem.training.run_folder import history_in, read_as_trained, run_of


def classify_files(
    data: Path,
    out: Path | None = None,
    *,
    model: Path | None = None,
    labels: Path | None = None,
    probe: Path | None = None,
    predict: Path | None = None,
    pooling: str | None = None,
    options: ReadOptions = BY_RULE,
    allow_seen_labels: bool = False,
    log: Log | None = print,
) -> Prediction | None:
    """Fit a probe on the series of ``data`` that have labels, predict, and say how good it is.

    Predicted are the series of ``predict``, by default all of ``data``. They go to the .csv file
    ``out``, and the fitted probe is kept beside it; without ``out`` nothing is predicted. The
    accuracy is estimated on the labelled series, beside that of the untrained encoder, of raw
    values and of MiniRocket.

    Args:
        model: the folder of a model. By default one is trained without labels on ``data``, into a
            folder beside ``out``; the same call again goes on with it.
        labels: the file of the labels; by default those that ``data`` itself holds.
        probe: a kept probe, or the folder of a finetuned run, in place of ``labels``: nothing is
            fitted, and the series of ``data`` are predicted.
        pooling: one of `POOLINGS`, by default `POOLING`.
        options: how the files of recordings are read.
        allow_seen_labels: whether a model may have been trained with these labels. Its scores are
            marked then; by default it is refused.
    """
    _check(data, out, labels=labels, probe=probe, predict=predict, pooling=pooling, model=model)
    told = log
    if model is None and probe is not None:
        model = _model_of(probe)
    elif model is None:
        model, told = _pretrained(data, out, labels, options, log), None  # of what it has read
    encoder, run = load(model, device="auto"), run_of(model)
    read = read_as_trained(data, run, options, encoder.info, log=told)
    recordings: Sequence[Recording] = read
    y = None
    if probe is None:
        recordings, y = labelled_series(read, data, labels, limit=options.limit)
    targets, whole = recordings, read
    if predict is not None:
        targets = whole = read_as_trained(predict, run, options, encoder.info, log=log)
    names = [r.name for r in targets]
    if predict is not None or told is not None:  # the training told of what it has read
        tell_of_missing([r.values for r in targets], names, columns_of(targets))
    Series([r.values for r in targets], None, encoder.cfg, names)  # refused before it is fitted
    if probe is not None:
        assert out is not None
        prediction = _apply(probe, targets, model, encoder, log)
        _write(out, targets, targets, prediction)
        if log is not None:
            log(
                _ending(
                    out,
                    len(names),
                    f"progmem finetune {quote(str(data))} --labels ... --from {quote(str(run))}",
                )
            )
        return prediction
    check_order(str(data), columns_of(recordings), targets)
    columns = columns_of(recordings)
    assert y is not None
    known = [recordings[i] for i in np.flatnonzero(drop_missing_labels(y)[0])]
    series = [recording.values for recording in known]
    encoder.history = history_in(run, encoder)
    seen = seen_of(history_of(encoder), known)
    check_labels_unseen(seen.labels, "labelled series", allow=allow_seen_labels)
    fitted = LabelProbe(encoder, pooling=pooling or POOLING, columns=columns, log=log)
    fitted.fit([r.values for r in recordings], y)
    if log is not None:
        log(f"{len(fitted.y)} labelled series, {len(fitted.head.classes)} classes")
    predicted: Prediction | None = None
    if out is not None:
        kept = out.with_suffix(".safetensors")
        predicted = fitted.predict([r.values for r in targets])
        _write(out, targets, whole, predicted, keep=lambda: fitted.save(kept))
    if log is not None:  # last, since it may take the longest, and is only told
        found = compare_on_labels(
            fitted, series, recordings=origins_of(known), seen=seen,
            allow_seen_labels=allow_seen_labels,
        )  # fmt: skip
        log("\n".join(found.lines()))
        if out is None:
            log("nothing was written; give -o predictions.csv to keep predictions")
        else:
            flags = replace(options, label=None).flags()  # no label is known of what comes later
            files = f"--probe {quote(str(kept))} --model {quote(str(model))}"
            later = f"progmem classify NEW{flags} {files} -o later.csv"
            log(_ending(out, len(names), later, kept=kept))
    return predicted


def _check(
    data: Path,
    out: Path | None,
    *,
    labels: Path | None,
    probe: Path | None,
    predict: Path | None,
    pooling: str | None,
    model: Path | None,
) -> None:
    """Refuse what cannot end well, before anything is read or trained."""
    if labels is not None and probe is not None:
        raise InputError("give --labels to fit a probe, or --probe to use a fitted one, not both")
    if probe is not None:
        if out is None:
            raise InputError("--probe needs -o: the .csv file for the predictions")
        if predict is not None:
            raise InputError("--predict goes with --labels; with --probe, DATA is predicted")
        if pooling is not None:
            raise InputError("--pooling goes with --labels; a fitted probe has its own")
    elif out is None and model is None:
        raise InputError("give -o: the .csv file for the predictions, beside which a model is put")
    if out is None and predict is not None:
        raise InputError("--predict needs -o: the .csv file for the predictions")
    if out is not None:
        if out.suffix != ".csv":
            raise InputError(f"-o must name the .csv file to write, got {out}")
        check_output(out, data, labels, predict)
        if probe is None:
            artifact.check_replaceable(out.with_suffix(".safetensors"), "label probe")


def run_beside(file: Path) -> Path:
    """The folder of the run that is trained where no model is given."""
    return file.with_name(f"{file.stem}-run")


def _model_of(probe: Path) -> Path:
    """The model that a probe was fitted on, where that lies beside it."""
    model = (probe if probe.is_dir() else run_beside(probe)) / "model"
    if not model.is_dir():
        raise InputError(f"--probe needs --model: there is no model in {model}")
    return model


def _pretrained(
    data: Path, out: Path | None, labels: Path | None, options: ReadOptions, log: Log | None
) -> Path:
    """A model trained without labels on ``data`` by the default recipe, beside ``out``."""
    from progmem.training.pretrain import pretrain

    assert out is not None
    cfg, run = read_config(None, []), run_beside(out)
    _, y = labelled_series(read_with(data, options, log=log), data, labels, limit=options.limit)
    known = drop_missing_labels(y)[1]  # what does not fit is refused before training
    check_labels(known, len(known))
    if log is not None:
        log(f"no --model is given: training one on {data} without labels, into {run}")
    pretrain(data, run, cfg, options=options, log=log)
    return run / "model"


def _apply(
    probe: Path, recordings: Sequence[Recording], folder: Path, model: AnyEncoder, log: Log | None
) -> Prediction:
    """What a kept probe, or the classifier of a finetuned run, says of recordings."""
    series = [r.values for r in recordings]
    if not probe.is_dir():
        kept = LabelProbe.load(probe, model)
        kept.log = log
        check_order(str(probe), kept.columns, recordings)
        return kept.predict(series)
    classifier = SequenceClassifier.load(probe, device=next(model.parameters()).device)
    if weights_sha256(classifier.encoder) != weights_sha256(model):
        raise InputError(f"{folder} is not the network of {probe}; give its model/")
    likely = softmax(classifier.scores(series))
    return Prediction.of_probabilities(np.array(classifier.classes), likely)


def _write(
    out: Path,
    targets: Sequence[Recording],
    whole: Sequence[Recording],
    prediction: Prediction,
    *,
    keep: Callable[[], None] | None = None,
) -> None:
    """One row a series or piece of one: where it lies, its likeliest label, each class's share.

    Pieces are of the ``whole`` recordings. What ``keep`` writes beside it is of the same call,
    however many there are at a time.
    """
    each = [to_cell(f"probability of {label}") for label in prediction.classes]
    rows = [
        (one.origin or one.name, one.start, one.start + len(one.values), label, *likely)
        for one, label, *likely in zip(
            targets, prediction.label, prediction.probability, *prediction.likely.T, strict=True
        )
    ]
    axes = {recording.name: TimeAxis(recording) for recording in whole}
    table = stretch_table(axes, rows, ("label", "probability", *each))
    with unfinished(out) as new:
        if keep is not None:
            keep()
        table.to_csv(new, index=False, float_format="%.4f")


def _ending(out: Path, count: int, later: str, *, kept: Path | None = None) -> str:
    """One line: what was written, and what a user would do next."""
    files = f"{out} ({count} predictions)" + (f", {kept} (the fitted head)" if kept else "")
    what = "for series that come later" if kept else "if labels grow many"
    return f"written: {files}; {what}: {later}"
