"""What the promises of docs/reliability.md hold over many trials.

    python -m benchmarks.soak                               # or make soak; half an hour of a CPU
    python -m benchmarks.soak flips --flips 500 --seed 3    # other trials of one part

Each part writes results/soak/<part>-<seed>.json; the table adds up what several seeds have found.

- **flips**: one bit of a kept file is flipped, half of the time in its first 4,096 bytes, and the
  file is loaded as a user loads it. It must be refused, named and passed over, or loaded with a
  warning that it is not verified; or what is loaded must be the same to the bit.
- **crafted**: files made to harm who reads them; see crafted_files.py and soak_crafted.py. Each is
  refused in one line or read, without running anything, within bounds of memory and time.
- **calls**: encoders, estimators and the reader are called with odd arrays: other axes, dtypes,
  containers, NaN and infinite values. They must answer with finite numbers or refuse.
- **races**: two processes write one place, in every other race one of them is killed; see
  soak_writers.py. Nothing may be lost.
- **stream**: a stream of samples with gaps is pushed in chunks. Memory is the process's resident
  set after the first tenth and at the end; latency is the 99th percentile of a push in both tenths.
"""

import argparse
import hashlib
import pickle
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

import progmem
from benchmarks.soak_crafted import MOST_MB, MOST_SECONDS, count_crafted
from benchmarks.soak_writers import count_races
from progmem import explore
from progmem.config import read_config, read_finetune_config
from progmem.data.labels import LabelledRecordings
from progmem.data.recordings import Recording
from progmem.embed import embed
from progmem.errors import ArtifactError, ConfigError, InputError, ModelFolderError
from progmem.explore.session import Session
from progmem.files import SUMS
from progmem.probes.own_data import LabelProbe
from progmem.report import record
from progmem.report.tables import markdown
from progmem.training import run_folder
from progmem.training.checkpoint import newest_checkpoint
from progmem.training.classifier import SequenceClassifier
from progmem.training.finetune import finetune
from progmem.training.pretrain import pretrain

COUNTS = {"flips": 2000, "crafted": 310, "calls": 2000, "races": 100, "stream": 10_000_000}
BAD = ("silent", "executed", "crashed", "large", "slow", "unclean", "lost")
REFUSED = (ArtifactError, ConfigError, InputError, ModelFolderError)
FIRST = 4096  # bytes, in which half of the flips fall: the header and the note
TINY = [
    "model.dim=16", "model.heads=2", "model.blocks=1", "train.batch_size=8", "train.device=cpu",
]  # fmt: skip


class Kept(NamedTuple):
    """A file that progmem wrote, and how what it holds is loaded."""

    path: Path
    load: Callable[[], Any]  # what was loaded, as it is compared


def kept_files(folder: Path) -> dict[str, Kept]:
    """A small file of every kind that progmem reads again."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 48, 2)).astype(np.float32)
    y = np.arange(12) % 2
    recordings = [Recording(str(i), values) for i, values in enumerate(x)]
    run, tuned = folder / "run", folder / "tuned"
    settings = [*TINY, "train.steps=2", "train.checkpoint_every=1"]
    model = pretrain(recordings, run, read_config(None, settings), log=None)
    labelled = LabelledRecordings(recordings, y, ("a", "b"), source={"name": "made"})
    tune = read_finetune_config(None, [*TINY, "train.epochs=1"])
    finetune(labelled, tuned, tune, log=None)
    probe = LabelProbe(model).fit(x, y)
    probe.save(folder / "probe.safetensors")
    encoder = progmem.PMTEncoder(size="tiny", steps=1).fit(x.transpose(0, 2, 1))
    encoder.save(folder / "encoder")
    classifier = progmem.PMTClassifier(size="tiny", steps=1).fit(x.transpose(0, 2, 1), y)
    classifier.save(folder / "classifier")
    hours = np.sin(np.arange(400) / 4)[:, None] + rng.normal(0, 0.1, (400, 1))
    forecaster = progmem.PMTForecaster().fit(hours)
    forecaster.predict(4)
    forecaster.save(folder / "forecaster")
    stream = progmem.Stream(model)
    stream.push(torch.from_numpy(x[:1]))
    stream.save(folder / "stream.safetensors")
    record.write(folder / "result.json", {"rows": [{"score": [0.5, 0.25]}], "seeds": [0]})
    explore.index(model, recordings, folder / "index")
    with Session(folder / "session") as session:
        session.name("0", 0, 20, "a")
        session.name("0", 10, 30, "b")
    embed(model, recordings, folder / "embeddings", log=None)

    def checkpoint() -> Any:
        """The checkpoint of the last step; another one was passed over, which was said."""
        found = newest_checkpoint(run / "checkpoints", log=_refuse)
        assert found is not None
        return found.tensors, found.fingerprint, found.step

    def weights(folder: Path) -> Any:
        found = progmem.load(folder)
        return found.state_dict(), found.cfg, found.info, _plain(found.history)

    def index() -> Any:
        found = explore.open_index(folder / "index")
        values = (
            found.all_vectors, found.channel_values, found.all_points, found.axes._asdict(),
            found.starts,
        )  # fmt: skip
        return values, found.names, found.lengths, found.window, found.channels, found.calendars

    def labels() -> Any:
        with Session(folder / "session") as session:
            return session.labels, session.changes

    newest = max((run / "checkpoints").glob("*.safetensors"))
    files = {
        "model": Kept(run / "model/model.safetensors", lambda: weights(run / "model")),
        "checkpoint": Kept(newest, checkpoint),
        "settings of a run": Kept(run / "config.yaml", lambda: run_folder.read_settings(run)),
        "source of a run": Kept(tuned / "source.json", lambda: run_folder.read_source(tuned)),
        "classifier head": Kept(
            tuned / "head.safetensors",
            lambda: SequenceClassifier.load(tuned).scores(list(x)),
        ),
        "label probe": Kept(
            folder / "probe.safetensors",
            lambda: LabelProbe.load(folder / "probe.safetensors", model).predict(x),
        ),
        "encoder": Kept(
            folder / "encoder/encoder.safetensors",
            lambda: progmem.PMTEncoder.load(folder / "encoder").get_params(),
        ),
        "stream": Kept(
            folder / "stream.safetensors",
            lambda: progmem.Stream.load(model, folder / "stream.safetensors").state_dict(),
        ),
        "session": Kept(folder / "session/session.safetensors", labels),
        "result of a run": Kept(tuned / "result.json", lambda: record.read(tuned / "result.json")),
        "result": Kept(folder / "result.json", lambda: record.read(folder / "result.json")),
    }
    for path in sorted((folder / "classifier").rglob("*.safetensors")):
        files[f"PMTClassifier: {path.name}"] = Kept(
            path,
            lambda: progmem.PMTClassifier.load(folder / "classifier").predict_proba(
                x.transpose(0, 2, 1)
            ),
        )
    for path in sorted((folder / "forecaster").rglob("*.safetensors")):
        files[f"PMTForecaster: {path.name}"] = Kept(
            path, lambda: progmem.PMTForecaster.load(folder / "forecaster").predict(4, hours)
        )
    for path in sorted((folder / "index").iterdir()):
        files[f"index: {path.name}"] = Kept(path, index)
    for name in ("tokens.npy", "all.npy", "token_spans.npy", "index.csv", "series.json", SUMS):
        files[f"embeddings: {name}"] = Kept(
            folder / "embeddings" / name, lambda: checked_files(folder / "embeddings")
        )
    return files


def checked_files(folder: Path) -> dict[str, bytes]:
    """What is in a folder with digests, as `sha256sum --check` checks it."""
    found = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != SUMS}
    lines = [f"{hashlib.sha256(data).hexdigest()}  {name}" for name, data in found.items()]
    if sorted(lines) != sorted((folder / SUMS).read_text(errors="replace").splitlines()):
        raise ArtifactError(f"{folder} holds other files than {SUMS} says")
    return found


def count_flips(count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """For each kind of file, how its flips ended; the silent ones must be none."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        files = kept_files(Path(folder))
        found = {name: {"refused": 0, "same": 0, "silent": 0} for name in files}
        before = {name: digest(kept.load()) for name, kept in files.items()}
        for i in range(count):
            name = list(files)[i % len(files)]
            path, load = files[name]
            good = path.read_bytes()
            bits = 8 * (min(FIRST, len(good)) if rng.random() < 0.5 else len(good))
            bit = int(rng.integers(bits))
            bad = bytearray(good)
            bad[bit // 8] ^= 1 << bit % 8
            path.write_bytes(bad)
            found[name][_outcome(load, before[name])] += 1
            path.write_bytes(good)
        return [{"part": "flipped bits", "what": n, "ended": ends} for n, ends in found.items()]


def _outcome(load: Callable[[], Any], before: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return "same" if digest(load()) == before else "silent"
    except (*REFUSED, Warning):
        return "refused"


def _refuse(text: str) -> None:
    raise ArtifactError(text)


def digest(loaded: Any) -> str:
    """A digest of arrays, tensors and plain values, however they are nested."""
    return hashlib.sha256(pickle.dumps(_plain(loaded))).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _plain(value.numpy())
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return repr(value)


def count_odd_calls(count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """For each way in, how calls with odd arguments ended; none may be unclean.

    A call is answered with finite numbers (NaN where a token is missing), or refused by an error
    of progmem; anything else is unclean.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(12, 2, 48)).astype(np.float32)
    encoder = progmem.PMTEncoder(size="tiny", steps=1).fit(x)
    classifier = progmem.PMTClassifier(size="tiny", steps=1).fit(x, np.arange(12) % 2)
    model: Any = encoder.model_
    forecaster = progmem.PMTForecaster().fit(x[0].T.repeat(8, axis=0))
    forecaster.predict(2)
    calls: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {
        "PMT.encode": ((3, 48, 2), lambda odd: [t for t in model.encode(odd) if t is not None]),
        "Stream.push": ((1, 48, 2), lambda odd: progmem.Stream(model).push(odd).tokens),
        "PMTEncoder.transform": ((3, 2, 48), encoder.transform),
        "PMTClassifier.predict_proba": ((3, 2, 48), classifier.predict_proba),
        "PMTForecaster.predict": ((200, 2), lambda odd: forecaster.predict(2, odd)),
        "progmem.read": (
            (3, 48, 2),
            lambda odd: [r.values.shape for r in progmem.read(odd)],
        ),  # which may hold inf
    }
    found = {name: {"answered": 0, "refused": 0, "unclean": 0} for name in calls}
    for i in range(count):
        name = list(calls)[i % len(calls)]
        right, call = calls[name]
        found[name][_answer(call, odd_series(rng, right))] += 1
    return [{"part": "odd calls", "what": n, "ended": ends} for n, ends in found.items()]


def _answer(call: Callable[[Any], Any], odd: Any) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = call(odd)
    except REFUSED:
        return "refused"
    except Exception as error:  # whatever else there may be
        print(f"unclean: {type(error).__name__}: {error} for {type(odd)} {np.shape(odd)[:4]}")
        return "unclean"
    parts = answer if isinstance(answer, list | tuple) else [answer]
    arrays = [np.asarray(part, dtype=np.float64) for part in parts]
    return "unclean" if any(np.isinf(array).any() for array in arrays) else "answered"


KINDS = ("f2", "f4", "f8", ">f4", "i1", "i2", "<i8", "u1", "?", "c8", "O", "U3", "M8[s]")


def odd_series(rng: np.random.Generator, right: tuple[int, ...]) -> Any:
    """What somebody may take for series of the ``right`` shape, most of it wrong in some way."""
    shape = right
    if rng.random() < 0.4:
        channels = int(rng.choice([1, 2, 3]))
        others = [(3, 48, channels), (3, channels, 48), (48, channels), (48,), (1,), ()]
        shape = others[rng.integers(len(others))]
    if rng.random() < 0.1:
        shape = tuple(int(n) for n in rng.integers(0, 5, rng.integers(0, 5)))
    values = rng.normal(size=shape) * 10.0 ** rng.integers(-30, 30 if rng.random() < 0.1 else 3)
    for special in (np.nan, np.inf, -np.inf):
        if rng.random() < 0.07:
            values = np.where(rng.random(shape) < 0.2, special, values)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = KINDS[rng.integers(len(KINDS))] if rng.random() < 0.5 else "f4"
        array = np.asarray(values).astype(kind) if kind != "M8[s]" else np.zeros(shape, kind)
    wrap = rng.integers(12)
    if wrap == 0 and array.ndim:
        return array[::-1]  # not contiguous
    if wrap == 1:
        array = np.array(array)
        array.flags.writeable = False
        return array
    if wrap == 2:
        masked: Any = np.ma.array  # which numpy has without types
        return masked(array, mask=rng.random(array.shape) < 0.1)
    if wrap == 3 and array.ndim:
        return list(array)
    if wrap == 4:
        return array.tolist()
    if wrap == 5 and array.ndim == 2:
        return pd.DataFrame(array)
    if wrap in (6, 7) and array.dtype.kind in "fiub" and array.dtype.isnative:
        tensor = torch.tensor(array)
        return (
            tensor.to_sparse()
            if wrap == 6 and tensor.dim()
            else tensor.requires_grad_(tensor.is_floating_point())
        )
    if wrap == 8 and array.ndim == 3 and len(array):
        return [array[0], array[-1][: int(rng.integers(1, 9))]]  # of unequal length
    if wrap == 9:
        return [None, "x", {}, {"a": array}, 1, iter([array]), b"x"][rng.integers(7)]
    return array


def push_many(samples: int, *, seed: int = 0, chunk: int = 4096) -> list[dict[str, Any]]:
    """Memory and latency of a stream of so many samples, at its first and at its last tenth."""
    cfg = progmem.ModelConfig(channels=2, size="tiny", patch=64, patch_stride=32)
    stream = progmem.Stream(progmem.PMT(cfg))
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(1, chunk, 2, generator=rng)
    x[:, : chunk // 10, 0] = torch.nan
    pushes = samples // chunk
    seconds, memory = np.empty(pushes), np.empty(pushes)
    for i in range(pushes):
        began = time.perf_counter()
        stream.push(x)
        seconds[i], memory[i] = time.perf_counter() - began, _resident_mb()
    tenth = max(1, pushes // 10)
    first, last = (np.quantile(part, 0.99) for part in (seconds[:tenth], seconds[-tenth:]))
    grown, ratio = float(memory[-1] - memory[tenth - 1]), float(last / first)
    return [{"part": "stream", "what": f"{pushes * chunk:,} samples", "grown_mb": grown,
             "p99_ratio": ratio}]  # fmt: skip


def _resident_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


PARTS: dict[str, Callable[..., list[dict[str, Any]]]] = {
    "flips": count_flips,
    "crafted": count_crafted,
    "calls": count_odd_calls,
    "races": count_races,
    "stream": push_many,
}


def soak_table(results: list[dict[str, Any]]) -> str:
    """How trials ended, part by part; what must not happen stands last."""
    parts = [result["config"]["part"] for result in results]
    found: dict[str, dict[str, Any]] = {}
    for part, result in sorted(
        zip(parts, results, strict=True), key=lambda p: [*PARTS].index(p[0])
    ):
        for row in result["rows"]:
            known = found.setdefault(f"{part} {row['what']}", {})
            for name, value in row.items():
                known[name] = _added(known[name], value) if name in known else value
    lines = []
    for row in found.values():
        if row["part"] == "stream":
            grown = f"grown by {row['grown_mb']:.1f} MB, p99 latency {row['p99_ratio']:.2f}x"
            lines.append([row["part"], row["what"], "1", grown, "-"])
            continue
        ended = {end: count for end, count in row["ended"].items() if end not in BAD}
        bad = [f"{count} {end}" for end, count in row["ended"].items() if end in BAD]
        text = ", ".join(f"{count} {end}" for end, count in ended.items() if count)
        if "most_mb" in row:
            text += f"; at most {row['most_mb']:.0f} MB, {row['most_seconds']:.1f} s"
        lines.append(
            [row["part"], row["what"], str(sum(row["ended"].values())), text, ", ".join(bad)]
        )
    return markdown(["part", "of what", "trials", "ended", "must be 0"], lines)


def _added(known: Any, value: Any) -> Any:
    """Counts are added up; of memory, time and growth the largest counts."""
    if isinstance(value, dict):
        return {end: known[end] + count for end, count in value.items()}
    return value if isinstance(value, str) else max(known, value)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="by default all")
    for part, count in COUNTS.items():
        parser.add_argument(f"--{part}", type=int, default=count, metavar="COUNT")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for part in chosen.parts or PARTS:
        config = {"part": part, "count": getattr(chosen, part)}
        if part == "crafted":
            config |= {"most_mb": MOST_MB, "most_seconds": MOST_SECONDS}
        rows = PARTS[part](config["count"], seed=chosen.seed)
        result = {"config": config, "seeds": [chosen.seed], **record.environment(), "rows": rows}
        path = record.save("soak", f"{part}-{chosen.seed}", result, folder=chosen.out)
        print(f"written: {path}\n")
        print(soak_table([result]))


if __name__ == "__main__":
    main()
