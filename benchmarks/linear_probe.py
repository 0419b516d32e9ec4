"""Linear read-outs of frozen baselines with all labels, beside their untrained networks.

    python -m benchmarks.linear_probe --data-dir DIR      # results/linear_probe/<row>.json

Each row is a set, an encoder and a training seed: trained without labels by its published settings
(``--settings`` changes them, for the encoders named), then frozen. A logistic regression sees all
labels of the training rows, and the test rows once; nothing is chosen by them. Its features are the
tokens of a series one after the other, as published for the methods on the CNN of TS-TCC, and the
sequence vector, which is their mean. A training that was broken off goes on.

Shapes: R series, L samples, C channels, K tokens, D width.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.baselines import settings
from benchmarks.side_by_side import add_arguments, run_rows, training_folder
from progmem.baselines import ENCODERS, sections
from progmem.baselines.cnn import CNN
from progmem.config import read_config
from progmem.data.datasets import LABELLED, load_labelled
from progmem.encoding import Encoder
from progmem.model.saving import gpu_or_cpu, weights_sha256
from progmem.pooling import encode_batches
from progmem.probes.classify import classify, untrained_copy
from progmem.report import record
from progmem.report.tables import markdown, mean_and_sd
from progmem.training.pretrain import pretrain

ON_CNN = tuple(name for name, method in ENCODERS.items() if method.network is CNN)
SETS = ("HAR", "Epilepsy")
PUBLISHED = {  # accuracy in %, table 2 of the paper of TS-TCC
    "HAR": {"tstcc": 90.37, "cpc": 83.85, "simclr": 80.97, "sslecg": 65.34},
    "Epilepsy": {"tstcc": 97.23, "cpc": 96.61, "simclr": 96.05, "sslecg": 93.72},
}
FEATURES = {"all tokens": "tokens", "sequence": "sequence"}  # and the level each is made of


def features_of(encoder: Encoder, x: np.ndarray) -> dict[str, np.ndarray]:
    """Features of series (R, C, L), each (R, its number), by name."""
    parts: dict[str, list[np.ndarray]] = {name: [] for name in FEATURES}
    for z, _ in encode_batches(encoder, x.transpose(0, 2, 1)):
        for name, level in FEATURES.items():
            parts[name].append(getattr(z, level).flatten(1).float().cpu().numpy())
    return {name: np.concatenate(found) for name, found in parts.items()}


def measure(row: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """Train one row, or go on with it, and score it."""
    name, encoder, seed = row.split("-")
    given = [*settings(encoder, name), f"train.seed={seed}", f"train.device={chosen.device}"]
    cfg = read_config(None, [*given, *chosen.settings])
    run = training_folder(chosen.work, row, cfg.to_dict(), chosen.commit)
    model = pretrain(name, run, cfg, data_dir=chosen.data_dir, log=None).to(chosen.device)
    before, data, rows = weights_sha256(model), load_labelled(name, chosen.data_dir), []
    for weights, network in (("trained", model), ("untrained", untrained_copy(model))):
        train, test = (features_of(network, x) for x in (data.X_train, data.X_test))
        for kind in FEATURES:
            scores = classify(
                train[kind], data.y_train, test[kind], data.y_test, label_share=1.0, seeds=[0],
                head="logistic",
            )  # fmt: skip
            rows.append({"set": name, "encoder": encoder, "weights": weights, "features": kind,
                         "size": train[kind].shape[1], "scores": scores.as_lists()})  # fmt: skip
    assert weights_sha256(model) == before, "a probe must not train the encoder"
    facts = {"config": {**cfg.to_dict(), **sections(encoder, model.cfg)}, "seeds": [int(seed)]}
    result = {**facts, **record.environment(chosen.device, chosen.commit), "rows": rows}
    record.save("linear_probe", row, result, folder=chosen.out)
    return {"accuracy": [one["scores"]["accuracy"] for one in rows]}


def linear_probe_table(results: list[dict[str, Any]]) -> str:
    """Accuracy in %, mean ± sd over training seeds, by features and weights."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for result in results:
        train, first = result["config"]["train"], result["rows"][0]
        length = next(f"{train[key]} {key}" for key in ("epochs", "steps") if key in train)
        place = first["set"], first["encoder"], length, result["device"]
        groups.setdefault(place, []).extend(result["rows"])
    columns = [(kind, weights) for kind in FEATURES for weights in ("trained", "untrained")]
    lines = []
    for (name, encoder, *facts), rows in groups.items():
        cells = [
            mean_and_sd(100 * np.concatenate([
                row["scores"]["accuracy"] for row in rows
                if (row["features"], row["weights"]) == column
            ]), 1)
            for column in columns
        ]  # fmt: skip
        printed = PUBLISHED.get(name, {}).get(encoder)
        lines.append([name, encoder, *facts, *cells, "-" if printed is None else f"{printed:.1f}"])
    heads = [", ".join(column) for column in columns]
    return markdown(["set", "encoder", "training", "device", *heads, "published"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=LABELLED)
    parser.add_argument("--encoders", nargs="+", default=list(ON_CNN), choices=ON_CNN)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--device", choices=("cpu", "cuda"), default=gpu_or_cpu())
    parser.add_argument("--settings", nargs="*", default=[], metavar="section.key=value")
    add_arguments(parser, "linear_probe")
    chosen = parser.parse_args()
    if chosen.row is not None:
        print(json.dumps(measure(chosen.row, chosen)), flush=True)
        return
    more = ["--device", chosen.device, "--settings", *chosen.settings]
    more += ["--work", str(chosen.work), "--out", str(chosen.out)]
    rows = [f"{n}-{e}-{s}" for n in chosen.sets for e in chosen.encoders for s in chosen.seeds]
    run_rows("benchmarks.linear_probe", rows, chosen, more)
    paths = [chosen.out / "linear_probe" / f"{row}.json" for row in rows]
    print(linear_probe_table([record.read(path) for path in paths]))


if __name__ == "__main__":
    main()
