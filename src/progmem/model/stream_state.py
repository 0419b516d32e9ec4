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
    if "model" not in state or "x" not in state or "horizon" not in state:
        raise InputError("this is not the state of a progmem Stream: take it from state_dict()")
    if not torch.equal(state["model"].cpu(), _fingerprint(model)):
        raise InputError(
            "the stream state belongs to a model of another config, dtype or weights; "
            "restore it with the model it was made with"
        )
    return state["x"].shape[0], int(state["horizon"])


def unpack(stream: "Stream", state: Mapping[str, Tensor]) -> None:
    """Put a checked ``state`` into a fresh stream of the same model."""
    expected = pack(stream).keys()
    if expected != state.keys():
        odd = ", ".join(sorted(expected ^ state.keys()))
        raise InputError(f"the stream state is damaged: missing or unknown entries {odd}")
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


def _fingerprint(model: "PMT") -> Tensor:
    """Eight numbers that tell models apart: config, dtype and the smallest weights."""
    digest = hashlib.sha256(json.dumps(model.cfg.to_dict(), sort_keys=True).encode())
    weights = (model.encoder.cls, model.encoder.norm.weight, model.stats.mean, model.stats.scale)
    for tensor in weights:
        digest.update(str(tensor.dtype).encode())
        digest.update(tensor.detach().cpu().double().numpy().tobytes())
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.int32).to(torch.int64)
