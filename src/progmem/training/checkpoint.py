"""Checkpoints that survive kill -9, full disks and flipped bits.

A checkpoint is two files: tensors (safetensors) and, written after them, a note (json) with their
sha256, the step and what must not change between runs. One without a fitting note does not count.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from progmem.files import to_json, write_file

KEEP = 3


class Checkpoint(NamedTuple):
    """A good checkpoint, read."""

    step: int
    tensors: dict[str, Tensor]
    facts: dict[str, Any]


def save_checkpoint(
    folder: Path,
    step: int,
    learner: nn.Module,
    optimizer: torch.optim.Optimizer,
    facts: Mapping[str, Any],
) -> None:
    """Write the state after ``step`` steps, then drop all but the newest few."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"learner.{n}": t for n, t in learner.state_dict().items()}
    for name, parameter in learner.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{name}.{key}"] = value
    data = save_tensors({n: t.detach().cpu().contiguous() for n, t in tensors.items()})
    stem = f"step-{step:08d}"
    write_file(folder / f"{stem}.safetensors", data)
    note = {"step": step, "sha256": hashlib.sha256(data).hexdigest(), "facts": dict(facts)}
    write_file(folder / f"{stem}.json", to_json(note))
    for old in sorted(folder.glob("step-*.json"))[:-KEEP]:
        old.unlink(missing_ok=True)  # the note first: tensors alone do not count
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def newest_checkpoint(folder: Path, *, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that is whole; damaged ones are named and passed over."""
    for note_path in sorted(folder.glob("step-*.json"), reverse=True):
        try:
            return _read(note_path)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            say(f"{note_path.with_suffix('.safetensors')} is damaged and passed over: {error}")
    return None


def _read(note_path: Path) -> Checkpoint:
    note = json.loads(note_path.read_bytes())
    data = note_path.with_suffix(".safetensors").read_bytes()
    if hashlib.sha256(data).hexdigest() != note["sha256"]:
        raise ValueError("its sha256 is not the one in its note")
    return Checkpoint(int(note["step"]), load_tensors(data), dict(note["facts"]))


def restore(checkpoint: Checkpoint, learner: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put weights and moments back where they were."""
    prefix = "learner."
    learner.load_state_dict(
        {n[len(prefix) :]: t for n, t in checkpoint.tensors.items() if n.startswith(prefix)}
    )
    for name, parameter in learner.named_parameters():
        prefix = f"optimizer.{name}."
        state = {
            n[len(prefix) :]: t.to(parameter.device).clone()
            for n, t in checkpoint.tensors.items()
            if n.startswith(prefix)
        }
        if state:
            optimizer.state[parameter] = state
