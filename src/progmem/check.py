"""What the files of a user hold, and what training on them would be, before anything is trained."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import torch

from progmem.config import RunConfig
from progmem.data.labels import drop_missing_labels
from progmem.data.options import BY_RULE, ReadOptions
from progmem.data.quality import Quality, inspect
from progmem.data.recordings import Recording, Recordings, remarks
from progmem.data.source import open_source
from progmem.data.windows import TrainingWindows, cut_alone
from progmem.errors import ConfigError, InputError, RepairableError
from progmem.names import first_few
from progmem.progress import Log, duration
from progmem.series import ChannelStats
from progmem.training import randomness
from progmem.training.defaults import fill_defaults
from progmem.training.distributed import choose_device, make_fabric
from progmem.training.out_of_memory import explain_oom
from progmem.training.pretrain import initial_model, make_pretrainer, model_for


def check(
    source: str | Path,
    options: ReadOptions = BY_RULE,
    *,
    data_dir: Path | None = None,
    log: Log | None = None,
) -> dict[str, Any]:
    """What was read as what, what is odd about it, and what training would see and take.

    Gaps and duplicates that an option of reading repairs are told of, and repaired to go on.
    """
    found, options, unreadable = _read(source, data_dir, options, log)
    recordings = found if isinstance(found, Recordings) else Recordings(tuple(found))
    quality = inspect(recordings, log=log)
    lengths = [len(values) for values in recordings.values]
    labels = recordings.labels
    return {
        "source": str(source),
        "recordings": len(recordings),
        "samples": {"least": min(lengths), "median": int(np.median(lengths)),
                    "most": max(lengths), "all": sum(lengths)},
        "channels": [
            channel._asdict() | {"odd": [odd._asdict() for odd in channel.odd]}
            for channel in quality.channels
        ],
        "rates": sorted({r.rate for r in recordings if r.rate is not None}),
        "labels": None if labels is None else len(np.unique(drop_missing_labels(labels)[1])),
        "notes": list(recordings.notes),
        "skipped": list(recordings.skipped),
        "warnings": [*unreadable, *_warnings(recordings, quality)],
        "options": options.to_dict(),
        "series": [
            {"name": r.name, "samples": len(r.values), "rate": r.rate, **_dates(r),
             "missing": missing, "longest_gap": gap, "constant": list(constant)}
            for r, missing, gap, constant in zip(
                recordings, quality.missing, quality.longest_gap, quality.constant, strict=True)
        ],
        "training": _training(recordings, log),
    }  # fmt: skip


def _read(
    source: str | Path, data_dir: Path | None, options: ReadOptions, log: Log | None
) -> tuple[Sequence[Recording], ReadOptions, list[str]]:
    """The recordings, the options that were needed to read them, and why, a sentence each."""
    why: list[str] = []
    while True:
        try:
            found, _ = open_source(
                source, data_dir, "official", covariates=False, options=options, log=log
            )
            return found, options, why
        except RepairableError as error:
            if getattr(options, error.option):
                raise
            repaired: dict[str, Any] = {error.option: True}
            options = replace(options, **repaired)
            why.append(f"refused without --{error.option.replace('_', '-')}: {error}")


def _dates(recording: Recording) -> dict[str, str | None]:
    if recording.calendar is None:
        return {"start": None, "end": None}
    first, last = recording.calendar.at(np.array([0, len(recording.values) - 1]))
    return {"start": str(first), "end": str(last)}


def _warnings(recordings: Recordings, quality: Quality) -> list[str]:
    """What a person should look at, a sentence each."""
    names, lines = recordings.names, []
    for channel in quality.channels:
        for odd in channel.odd:
            run = f", up to {odd.longest} in a row" if odd.longest > 1 else ""
            far = ", far from all others" if odd.far else ""
            lines.append(
                f"{channel.name} is {odd.value:g} in {odd.samples} samples{run}{far}: if that "
                f"means missing, read with --missing={odd.value:g}"
            )
    still = [channel.name for channel in quality.channels if channel.constant]
    if still:
        lines.append(f"channels that never vary: {first_few(still)}")
    here = [n for n, one in zip(names, quality.constant, strict=True) if set(one) - set(still)]
    if here:
        lines.append(f"recordings in which a channel does not vary: {first_few(here)}")
    empty = [
        r.name
        for r, missing in zip(recordings, quality.missing, strict=True)
        if missing == len(r.values)
    ]
    if empty:
        lines.append(f"recordings without an observed value: {first_few(empty)}")
    infinite = [n for n, count in zip(names, quality.infinite, strict=True) if count]
    if infinite:
        lines.append(
            f"recordings with infinite values, which training refuses: {first_few(infinite)}"
        )
    gaps = [n for n, gap in zip(names, quality.longest_gap, strict=True) if gap]
    if gaps:
        longest = max(quality.longest_gap)
        lines.append(f"recordings with gaps of up to {longest} samples: {first_few(gaps)}")
    for group in quality.copies:
        lines.append(f"recordings with the same samples: {first_few(group)}")
    rates = sorted({r.rate for r in recordings if r.rate is not None})
    if len(rates) > 1:
        lines.append(
            f"recordings have several rates, from {rates[0]:g} to {rates[-1]:g} samples a second: "
            "resample them to one"
        )
    return lines


def _training(recordings: Recordings, log: Log | None) -> dict[str, Any]:
    """The rows that training would see, its model and the time it would take here."""
    cfg = RunConfig()
    try:
        rows = TrainingWindows(recordings, cut_alone(recordings, cfg.data))
        device = choose_device(cfg)
        cfg = fill_defaults(
            cfg, int(rows.length.median()), device=device, begun={},
            values=int(rows.length.sum()) * rows.channels,
        )  # fmt: skip
        model_cfg = model_for(rows, cfg)
        stats = ChannelStats(rows.channels)
        rows.set_statistics(stats, log=log)
    except (InputError, ConfigError) as error:
        return {"refused": str(error)}
    steps = randomness.total_steps(len(rows), cfg.train)
    assert cfg.train.batch_size is not None  # defaults are filled in
    if log is not None:
        log("timing a training step ...")
    some = rows.cut(torch.arange(min(cfg.train.batch_size, len(rows))))
    few = TrainingWindows([Recording(str(i), np.array(x)) for i, x in enumerate(some)], cfg.data)
    with torch.random.fork_rng():
        model = initial_model(model_cfg, stats, cfg.train.seed, name=cfg.encoder["name"])
        trainer = make_pretrainer(model, few, cfg, make_fabric(cfg), total=steps, capture=False)
        with explain_oom(trainer.fabric.device):
            trainer.step(0)  # the first is slower
            began = time.perf_counter()
            trainer.step(1)
        seconds = time.perf_counter() - began
    return {
        "rows": len(rows), "samples": int(rows.length.median()), "size": model_cfg.size,
        "device": device, "batch_size": cfg.train.batch_size, "steps": steps,
        "seconds": round(steps * seconds, 1),
    }  # fmt: skip


def check_lines(found: dict[str, Any]) -> list[str]:
    """What `check` found, for a person."""
    samples, series = found["samples"], found["series"]
    length = f"{samples['least']} to {samples['most']}"
    length = str(samples["most"]) if samples["least"] == samples["most"] else length
    lines = [f"recordings: {found['recordings']}, samples: {length} ({samples['all']} in all)"]
    if found["rates"]:
        lines.append(f"rate: {', '.join(map(_rate, found['rates']))}")
    dated = [one for one in series if one["start"] is not None]
    if dated:
        first, last = min(one["start"] for one in dated), max(one["end"] for one in dated)
        lines.append(f"dates: {first} to {last}, {len(dated)} of {len(series)} recordings")
    if found["labels"] is not None:
        lines.append(f"labels: {found['labels']} classes")
    lines += ["", f"{'channel':<24}{'unit':<8}{'lowest':>12}{'highest':>12}{'missing':>9}"]
    for channel in found["channels"][:40]:
        name, unit = channel["name"][:23], channel["unit"][:7]
        low, high = (
            "-" if channel[key] is None else f"{channel[key]:.5g}" for key in ("low", "high")
        )
        lines.append(f"{name:<24}{unit:<8}{low:>12}{high:>12}{channel['missing']:>9.1%}")
    if len(found["channels"]) > 40:
        lines.append(f"and {len(found['channels']) - 40} more channels")
    lines += ["", *remarks(found["notes"], found["skipped"])]
    lines += [f"look at: {warning}" for warning in found["warnings"]]
    if not found["warnings"]:
        lines.append("nothing looks odd")
    training = found["training"]
    if "refused" in training:
        lines.append(f"training would refuse this: {training['refused']}")
    else:
        lines.append(
            f"training would see {training['rows']} rows of {training['samples']} samples and make "
            f"{training['steps']} steps of a {training['size']} model, about "
            f"{duration(max(1, training['seconds']))} on this {training['device']}"
        )
        flags = ReadOptions(**found["options"]).flags()
        lines.append(f"next: progmem pretrain {quote(found['source'])}{flags} -o run")
    return lines


def _rate(rate: float) -> str:
    return f"{rate:g} samples a second" if rate >= 1 else f"a sample every {1 / rate:g} s"
