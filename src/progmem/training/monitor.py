"""What a run shows and keeps of itself: a progress bar, metrics.jsonl, TensorBoard."""

import importlib.util
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SHOWN = ("loss", "icl", "pcl", "hgcl", "accuracy")


class Monitor:
    """Writes every step to metrics.jsonl and every few to TensorBoard and the screen."""

    def __init__(self, folder: Path, *, first: int, total: int, every: int) -> None:
        self.first, self.total, self.every = first, total, every
        self.began = time.perf_counter()
        self.rows = 0
        self.file = (folder / "metrics.jsonl").open("a")
        self.board = _tensorboard(folder)
        self.bar = _bar(first, total)

    def step(self, step: int, values: Mapping[str, float], rows: int) -> None:
        """Note what step number ``step`` (from 1) gave for ``rows`` series."""
        self.rows += rows
        self.file.write(json.dumps({"step": step, **values}) + "\n")
        self.file.flush()
        rate = self.rows / (time.perf_counter() - self.began)
        text = "  ".join(f"{name} {values[name]:.3f}" for name in SHOWN if name in values)
        if self.bar is not None:
            self.bar.update(0, completed=step, description=f"{text}  {rate:.0f} series/s")
        if step % self.every == 0 or step == self.total:
            if self.board is not None:
                self.board.log_metrics(dict(values), step)
            if self.bar is None:
                pace = (time.perf_counter() - self.began) / (step - self.first)
                left = pace * (self.total - step)
                print(f"step {step}/{self.total}  {text}  {rate:.0f} series/s  {left:.0f} s left")

    def close(self) -> None:
        self.file.close()
        if self.board is not None:
            self.board.finalize("success")
        if self.bar is not None:
            self.bar.stop()


def health(sequence: Tensor) -> dict[str, float]:
    """Spread of sequence vectors (B, D): mean feature sd, effective rank; 0 and 1 on collapse."""
    centred = (sequence - sequence.mean(0)).double()
    share = torch.linalg.svdvals(centred) ** 2
    share = share / share.sum().clamp(min=1e-30)
    rank = torch.exp(-(share * share.clamp(min=1e-30).log()).sum())
    return {"feature_sd": float(centred.std(0).mean()), "effective_rank": float(rank)}


def _tensorboard(folder: Path) -> Any:
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from lightning.fabric.loggers.tensorboard import TensorBoardLogger

    return TensorBoardLogger(folder, name="tensorboard", version="")


def _bar(first: int, total: int) -> Any:
    if importlib.util.find_spec("rich") is None or not sys.stdout.isatty():
        return None
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, TextColumn("{task.description}"))
    bar.add_task("", total=total, completed=first)
    bar.start()
    return bar
