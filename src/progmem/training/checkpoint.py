"""Checkpoints that survive kill -9, full disks and flipped bits.

A checkpoint is one artifact, named by its step: weights, the optimiser's moments, and a note with
the step and the fingerprint of the run, which must not change when it is resumed.
"""

from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from progmem import artifact, legacy
from progmem.artifact import noted
from progmem.errors import ArtifactError, ConfigError
from progmem.files import make_folder
from progmem.model.saving import with_feature_stats

KEEP = 3
_GOOD: set[tuple[Path, int, int]] = set()  # what this process has written, or read as whole


class Checkpoint(NamedTuple):
    """The content of a checkpoint."""

    step: int
    tensors: dict[str, Tensor]
    fingerprint: dict[str, Any]


def save_checkpoint(
    folder: Path,
    step: int,
    learner: nn.Module,
    optimizer: torch.optim.Optimizer,
    fingerprint: Mapping[str, Any],
) -> None:
    """Write the state after ``step`` steps, then drop all but the newest few that are good."""
    make_folder(folder)
    tensors = {f"learner.{n}": t for n, t in learner.state_dict().items()}
    for name, parameter in learner.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{name}.{key}"] = value
    path = folder / _name(step)
    # "facts" is what 0.1.0 called the fingerprint
    artifact.write(path, "checkpoint", tensors, {"step": step, "facts": dict(fingerprint)})
    path.with_suffix(".json").unlink(missing_ok=True)  # the note of one that 0.1.0 wrote
    _GOOD.add(_stamp(path))
    # checkpoints of later steps were skipped as damaged: they must not replace good ones
    existing = _checkpoints(folder)
    good = (other for other in reversed(existing) if other.name <= path.name and _is_good(other))
    for other in {*existing} - {*islice(good, KEEP)}:
        other.with_suffix(".json").unlink(missing_ok=True)
        other.unlink(missing_ok=True)


def newest_checkpoint(folder: Path, *, log: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that is whole; damaged ones are named and passed over."""
    for path in reversed(_checkpoints(folder)):
        try:
            return _read(path)
        except ArtifactError as error:
            log(f"a checkpoint is damaged and passed over: {error}")
    return None


def restore(checkpoint: Checkpoint, learner: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put weights and moments back where they were."""
    expected = learner.state_dict()
    weights = with_feature_stats(_with_prefix("learner.", checkpoint.tensors), expected)
    unfit = f"the checkpoint of step {checkpoint.step} is not of this run"
    states = {
        name: _with_prefix(f"optimizer.{name}.", checkpoint.tensors)
        for name, _ in learner.named_parameters()
    }
    try:
        artifact.check_tensors(weights, expected, unfit)
        for name, parameter in learner.named_parameters():
            for key, value in states[name].items():
                if value.shape not in ((), parameter.shape):
                    raise ArtifactError(f"{unfit}: {key} of {name} has shape {tuple(value.shape)}")
    except ArtifactError as error:
        raise ConfigError(f"{error}; give another folder with -o") from error
    learner.load_state_dict(weights)
    for name, parameter in learner.named_parameters():
        if states[name]:
            optimizer.state[parameter] = {
                key: value.to(parameter.device).clone() for key, value in states[name].items()
            }


def _name(step: int) -> str:
    return f"step-{step:08d}.safetensors"


def _checkpoints(folder: Path) -> list[Path]:
    """All there are, the oldest first."""
    return sorted(folder.glob("step-*.safetensors"))


def _read(path: Path) -> Checkpoint:
    found = legacy.read_checkpoint(path) or artifact.read(path, "checkpoint")
    step = noted(found.note, "step", int, path)
    fingerprint = noted(found.note, "facts", dict, path)
    if path.name != _name(step):
        raise ArtifactError(f"{path} is the checkpoint of step {step}")
    _GOOD.add(_stamp(path))
    return Checkpoint(step, found.tensors, fingerprint)


def _is_good(path: Path) -> bool:
    """Whether a checkpoint is whole; one that this process knows is not read again."""
    if _stamp(path) not in _GOOD:
        try:
            _read(path)
        except ArtifactError:
            return False
    return True


def _stamp(path: Path) -> tuple[Path, int, int]:
    found = path.stat()
    return path.absolute(), found.st_ino, found.st_mtime_ns


def _with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with ``prefix``, under what follows it."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
