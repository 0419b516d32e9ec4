"""A stream's state as a flat mapping of tensors, to be stored and taken up in another process."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from progmem.errors import InputError
from progmem.model.block_stream import BlockState
from progmem.model.encoder import Keys

if TYPE_CHECKING:
    from progmem.model.pmt import PMT
    from progmem.model.stream import Stream

_COUNTERS = ("horizon", "samples", "tokens", "windows", "ended")


def pack(stream: "Stream") -> dict[str, Tensor]:
    """Every tensor and counter of ``stream`` under its name, and the model it belongs to."""
    state = {name: torch.tensor(int(getattr(stream, name))) for name in _COUNTERS}
    state["model"] = _fingerprint(stream.model)
    state["sequence"] = stream.sequence
    state["x"], state["observed"] = stream.backbone.x, stream.backbone.observed
    state["seen"] = torch.tensor(stream.backbone.seen)
    for b, block in enumerate(stream.backbone.blocks):
        for field in fields(BlockState):
            value = getattr(block.state, field.name)
            if value is not None:
                state[f"block.{b}.{field.name}"] = torch.as_tensor(value)
    for i, pair in enumerate(zip(stream.before, stream.recent, strict=True)):
        for kind, keys in zip(("before", "recent"), pair, strict=True):
            state |= {f"layer.{i}.{kind}.{n}": t for n, t in keys._asdict().items()}
    return {name: tensor.detach().clone().contiguous() for name, tensor in state.items()}


def check(model: "PMT", state: Mapping[str, Tensor]) -> tuple[int, int]:
    """Refuse a state that is not of this model; else its batch size and horizon."""
    known = isinstance(state, Mapping) and {"model", "x", "horizon"} <= state.keys()
    if not known or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise InputError("this is not the state of a progmem Stream: take it from state_dict()")
    if not torch.equal(state["model"].cpu(), _fingerprint(model)):
        raise InputError(
            "the stream state belongs to a model of another config, dtype or weights; "
            "restore it with the model it was made with"
        )
    return state["x"].shape[0], int(state["horizon"])


def unpack(stream: "Stream", state: Mapping[str, Tensor]) -> None:
    """Put a checked ``state`` into a fresh stream of the same model."""
    expected = pack(stream)
    if expected.keys() != state.keys():
        odd = ", ".join(sorted(expected.keys() ^ state.keys()))
        raise InputError(f"the stream state is damaged: missing or unknown entries {odd}")
    for name, tensor in expected.items():
        fits = tensor.dtype == state[name].dtype and _fixed(name, tensor) == _fixed(
            name, state[name]
        )
        if not fits:
            raise InputError(
                f"the stream state is damaged: {name} has shape {tuple(state[name].shape)}"
            )
    device = stream.backbone.x.device
    tensors = {name: tensor.to(device).clone() for name, tensor in state.items()}
    for name in _COUNTERS:
        setattr(stream, name, int(state[name]))
    stream.ended = bool(stream.ended)
    stream.sequence = tensors["sequence"]
    stream.backbone.x, stream.backbone.observed = tensors["x"], tensors["observed"]
    stream.backbone.seen = int(state["seen"])
    for b, block in enumerate(stream.backbone.blocks):
        for field in fields(BlockState):
            name = f"block.{b}.{field.name}"
            if name in tensors:
                value = int(state[name]) if field.type is int else tensors[name]
                setattr(block.state, field.name, value)
    for i in range(len(stream.before)):
        stream.before[i], stream.recent[i] = (
            Keys(*(tensors[f"layer.{i}.{kind}.{n}"] for n in Keys._fields))
            for kind in ("before", "recent")
        )


def _fixed(name: str, tensor: Tensor) -> list[int]:
    """The part of a shape that does not depend on how much a stream holds."""
    shape = list(tensor.shape)
    if name in ("x", "observed") or name.startswith("block."):
        held = 0 if name.endswith(".filled") else 1
        if not name.endswith(".memory"):
            del shape[held : held + 1]
    return shape


def _fingerprint(model: "PMT") -> Tensor:
    """Eight numbers that tell models apart: config, dtype and every weight."""
    digest = hashlib.sha256(json.dumps(model.cfg.to_dict(), sort_keys=True).encode())
    for tensor in model.state_dict().values():
        digest.update(str(tensor.dtype).encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.int32).to(torch.int64)
