"""The folder of a run: its lock, its config, what it was trained on, its metrics, and where memory
was too short, how its batches are divided from which step on.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from progmem import guard
from progmem.config import PMT as PMT_NAME
from progmem.config import (
    DataConfig,
    FinetuneConfig,
    RunConfig,
    check_mapping,
    is_whole,
    run_config,
)
from progmem.data.dates import has_calendar
from progmem.data.options import ReadOptions
from progmem.data.recordings import ChannelInfo, Recording, Recordings, check_order, columns_of
from progmem.data.source import open_files
from progmem.errors import ConfigError, InputError
from progmem.files import held, make_folder, to_json, write_file
from progmem.legacy import current_settings
from progmem.progress import Log
from progmem.provenance import NONE, History, TrainedOn

SEAL = b"# sha256 "  # begins the first line of a file of settings
SHA256 = 64  # digits
PARTS = "parts.json"
FREE = ("train.checkpoint_every", "train.log_every")  # what does not change the weights
CHANGED = "its sha256 is not that of what it holds; put it back, or begin another run with -o"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock ``folder`` for this run; refuse it if another run has locked it."""
    if folder.is_file():
        raise ConfigError(f"{folder} is a file; give a run a folder of its own")
    if folder.exists() and any(folder.iterdir()) and not (folder / ".lock").exists():
        raise ConfigError(f"{folder} holds other files; give a run a folder of its own")
    make_folder(folder)
    with ExitStack() as stack:
        try:
            stack.enter_context(held(folder / ".lock", folder, wait=0))
        except InputError as error:
            raise ConfigError(str(error)) from error
        yield


def settle_config(
    folder: Path,
    config: Mapping[str, Any],
    *,
    whole: Callable[[Mapping[str, Any]], RunConfig | FinetuneConfig] = run_config,
) -> None:
    """Write the config of a new run; a resumed run may become longer, or log and save otherwise.

    ``whole`` turns the values of a file into settings, with defaults for those it lacks.
    """
    path = folder / "config.yaml"
    if path.exists():
        kept = read_settings(folder)
        try:
            settings = whole(kept)
        except ConfigError as error:  # of pretrain in a folder of finetune, or the other way round
            raise ConfigError(
                f"{folder} is not a run of this kind: in its config.yaml is an {error}. "
                "Give another folder with -o"
            ) from error
        before = {**settings.to_dict(), **_encoder_sections(kept)}
        changed = {k: v for k, v in _flat(config).items() if _flat(before).get(k) != v}
        for name in FREE:
            changed.pop(name, None)
        missing = _flat(before).keys() - _flat(config).keys()
        for name in ("epochs", "steps"):
            begun, asked = before["train"].get(name), config["train"].get(name)
            if begun is not None and asked is not None and asked >= begun:
                changed.pop(f"train.{name}", None)
        if changed or missing:
            keys = ", ".join(sorted([*changed, *missing]))
            raise ConfigError(
                f"{folder} was begun with other settings: {keys} differ; only train.epochs or "
                f"train.steps may grow, and {' and '.join(FREE)} change. Give another folder with "
                "-o, or the settings of its config.yaml"
            )
    write_file(path, _sealed(yaml.safe_dump(dict(config), sort_keys=False).encode()))


def _encoder_sections(kept: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the settings of a run say of its encoder, with defaults for what they lack."""
    from progmem.baselines import sections, settled  # they need the training, which loads slowly

    encoder = dict(check_mapping(kept.get("encoder") or {}, "encoder"))
    name = encoder.pop("name", PMT_NAME)
    return sections(name, settled(name, {**(kept.get("model") or {}), **encoder}))


def settle_source(folder: Path, source: Mapping[str, Any], recordings: Sequence[Recording]) -> None:
    """Note what a new run is trained on (a file, or a data set and its split); it cannot change.

    What the files call the channels is noted too: others must have them in that order.
    """
    path, columns = folder / "source.json", columns_of(recordings)
    noted = {**source, "columns": list(columns)} if columns else dict(source)
    kept, named = read_source(folder), {"columns": list(columns)}  # older runs have noted none
    if path.exists() and {**named, **kept} != {**noted, **named}:
        begun, now = (_described(s) for s in (kept, noted))
        if begun == now:
            begun, now = (f"columns {', '.join(s.get('columns', []))}" for s in (kept, noted))
        raise ConfigError(f"{folder} was begun on {begun}, not on {now}; give another with -o")
    write_noted(path, noted)


def _described(source: Mapping[str, Any]) -> str:
    split = f" ({source['split']} split)" if "split" in source else ""
    after = f" after {_described(source['after'][0])}" if "after" in source else ""
    return str(source.get("name", "recordings without a name")) + split + after


def read_source(folder: Path) -> dict[str, Any]:
    """What the run in ``folder`` was trained on; nothing if that is not noted."""
    return read_noted(folder / "source.json")


def write_noted(path: Path, noted: Mapping[str, Any]) -> None:
    """Write a mapping with its digest, as json."""
    write_file(path, to_json({**noted, "sha256": _sha256(to_json(noted))}))


def read_noted(path: Path) -> dict[str, Any]:
    """What `write_noted` was given; nothing if there is no such file."""
    if not path.is_file():
        return {}
    try:
        noted = guard.load_json(path.read_bytes())
        if not isinstance(noted, dict):
            raise ValueError("it is no mapping")
        # the last entry is a digest, whatever a flipped bit has made of its name
        name, digest = ([*noted.items()] or [("", None)])[-1]
        if name == "sha256" or (isinstance(digest, str) and len(digest) == SHA256):
            del noted[name]
            if (name, digest) != ("sha256", _sha256(to_json(noted))):
                raise ValueError(CHANGED)
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {error}") from error
    return noted


def read_as_trained(
    path: Path, folder: Path, options: ReadOptions, info: ChannelInfo, *, log: Log | None
) -> Recordings:
    """Recordings read as those that a model was trained on: its calendar, columns in its order.

    ``log`` is told what was read as what.

    What the model itself knows (``info``) counts; one of an earlier version knows nothing, and the
    run in ``folder`` is asked.
    """
    calendar = info.has_calendar if info.columns else reads_calendar(folder)
    options = options.or_missing(info.missing)
    recordings = open_files(path, options, covariates=calendar, log=log)
    if log is not None:
        log("\n".join(recordings.lines()))
    check_columns(recordings, folder)
    check_order("the model", info.columns, recordings)
    return recordings


def reads_calendar(folder: Path) -> bool:
    """Whether the run in ``folder`` sees dated series with their time covariates."""
    columns = columns_before(folder)
    return has_calendar(columns) if columns else bool(data_settings(folder).covariates)


def check_columns(recordings: Sequence[Recording], folder: Path) -> None:
    """Refuse recordings with the columns of the run in ``folder`` in another order."""
    check_order(str(folder), columns_before(folder), recordings)


def columns_before(folder: Path) -> tuple[str, ...]:
    """What the files of the run in ``folder``, or of one it began with, call the channels."""
    runs = trained_on(folder)
    return tuple(next((run["columns"] for run in runs if "columns" in run), ()))


def run_of(model_folder: Path) -> Path:
    """The folder of the run that a model lies in."""
    plain = model_folder.name not in ("", "..")
    return (model_folder if plain else model_folder.resolve()).parent


def trained_on(folder: Path) -> list[dict[str, Any]]:
    """What the run in ``folder``, and before it those it began with, was trained on."""
    source: dict[str, Any] = read_source(folder)
    before = source.pop("after", [])
    return [{**source, "labels": "finetune" in read_settings(folder)}, *before]


def history_in(folder: Path, model: Any) -> History:
    """The trainings of ``model``, which was found in the run ``folder``.

    A model that 0.1.0 saved does not know them. Its run does, but for the series it saw.
    """
    if model.history is not None:
        return model.history
    return tuple(
        TrainedOn.of(NONE, run)._replace(with_labels=run["labels"]) for run in trained_on(folder)
    )[::-1]


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of the run in ``folder``; nothing if it is no run."""
    path = folder / "config.yaml"
    if not path.is_file():
        return {}
    try:
        settings = guard.load_yaml(_unsealed(path.read_bytes()))
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {error}") from error
    return current_settings(check_mapping(settings, str(path)))


def data_settings(folder: Path) -> DataConfig:
    """How the run in ``folder`` read its data; the defaults if it is no run."""
    return run_config({"data": read_settings(folder).get("data") or {}}).data


def read_parts(folder: Path) -> dict[int, int]:
    """Into how many parts batches were divided, by the step (from 0) that this began with."""
    path = folder / PARTS
    noted = check_mapping(read_noted(path).get("parts", {}), f"parts in {path}")
    if not all(str(s).isdigit() and is_whole(n) and n > 0 for s, n in noted.items()):
        raise ConfigError(f"{path} is damaged: it must say how many parts there are by steps")
    return {int(step): n for step, n in noted.items()}


def note_parts(folder: Path, parts: Mapping[int, int]) -> None:
    """Note what `read_parts` gives, so that each step is divided again as it was before."""
    write_noted(folder / PARTS, {"parts": {str(s): n for s, n in sorted(parts.items())}})


def cut_metrics(folder: Path, step: int) -> None:
    """Drop the metrics of steps after the checkpoint at ``step``, which will be repeated."""
    path = folder / "metrics.jsonl"
    kept = []
    if path.exists():
        for line in path.read_bytes().splitlines():
            try:
                if guard.load_json(line)["step"] <= step:
                    kept.append(line + b"\n")
            except (ValueError, KeyError, TypeError):
                continue  # a line cut short by a kill, or damaged
    write_file(path, b"".join(kept))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _sealed(data: bytes) -> bytes:
    """``data`` below a comment with its digest."""
    return SEAL + _sha256(data).encode() + b"\n" + data


def _unsealed(data: bytes) -> bytes:
    """What `_sealed` was given; files of earlier versions have no digest."""
    head = len(SEAL) + SHA256 + 1
    # one flipped bit leaves either the words or the digits
    begun = data.startswith(SEAL) or re.fullmatch(rb"[0-9a-f]{64}\n", data[len(SEAL) : head])
    if begun and data != _sealed(data[head:]):
        raise ValueError(CHANGED)
    return data


def _flat(nested: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{s}.{k}": v for s, section in nested.items() for k, v in section.items()}
