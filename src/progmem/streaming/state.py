"""A stream's state as a flat mapping of tensors, to be stored and restored in another process."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from progmem.detail import MOST_DILATION
from progmem.errors import InputError
from progmem.features import FeatureStats, FeatureSummary
from progmem.model.saving import encoding_tensors
from progmem.ops.neighbourhood_attention import Keys
from progmem.streaming.block_stream import BlockState
from progmem.streaming.ring import RingBuffer

if TYPE_CHECKING:
    from progmem.model.pmt import PMT
    from progmem.streaming.stream import Stream


_COUNTER_FIELDS = tuple(field.name for field in fields(BlockState) if field.type is int)
_TENSOR_FIELDS = tuple(field.name for field in fields(BlockState) if field.type is not int)
_SUMMARY = "summary."  # begins the names of what is held for features
_COUNTERS = ("horizon", "samples", "tokens", "windows", "ended")


def tensors(stream: "Stream") -> dict[str, Tensor]:
    """Every tensor that ``stream`` holds under its name in a saved state, not copied."""
    backbone, cls_rings = stream.backbone, stream.cls_rings
    held = {"sequence": stream.sequence, "next": cls_rings.next}
    held |= {"x": backbone.x, "observed": backbone.observed}
    for b, block in enumerate(backbone.blocks):
        for name in _TENSOR_FIELDS:
            value = getattr(block.state, name)
            if value is not None:
                held[f"block.{b}.{name}"] = value
    for i, (keys, ring) in enumerate(zip(stream.before, cls_rings.rings, strict=True)):
        held |= {f"layer.{i}.before.{n}": t for n, t in keys._asdict().items()}
        # "recent" is what 0.1.0 called the rings
        held |= {f"layer.{i}.recent.{n}": t for n, t in vars(ring).items()}
    return held


def counters(stream: "Stream") -> dict[str, int]:
    """Every number that ``stream`` counts, under its name."""
    count = {name: int(getattr(stream, name)) for name in _COUNTERS}
    count["seen"] = stream.backbone.seen
    for b, block in enumerate(stream.backbone.blocks):
        count |= {f"block.{b}.{name}": getattr(block.state, name) for name in _COUNTER_FIELDS}
    return count


def put_tensors(stream: "Stream", held: Mapping[str, Tensor]) -> None:
    """Make ``held`` what ``stream`` holds."""
    backbone, cls_rings = stream.backbone, stream.cls_rings
    stream.sequence, cls_rings.next = held["sequence"], held["next"]
    backbone.x, backbone.observed = held["x"], held["observed"]
    for b, block in enumerate(backbone.blocks):
        for name in _TENSOR_FIELDS:
            setattr(block.state, name, held.get(f"block.{b}.{name}"))
    for i in range(len(stream.before)):
        stream.before[i] = Keys(*(held[f"layer.{i}.before.{n}"] for n in Keys._fields))
        ring = (held[f"layer.{i}.recent.{f.name}"] for f in fields(RingBuffer))
        cls_rings.rings[i] = RingBuffer(*ring)


def put_counters(stream: "Stream", count: Mapping[str, int]) -> None:
    for name in _COUNTERS:
        setattr(stream, name, count[name])
    stream.ended = bool(stream.ended)
    stream.backbone.seen = count["seen"]
    for b, block in enumerate(stream.backbone.blocks):
        for name in _COUNTER_FIELDS:
            setattr(block.state, name, count[f"block.{b}.{name}"])


def _summary(stream: "Stream") -> dict[str, Tensor]:
    """What ``stream`` holds for its features, not copied; no graph reads or writes it."""
    held = {} if stream.summary is None else stream.summary.tensors()
    return {f"{_SUMMARY}{name}": tensor for name, tensor in held.items()}


def blank_summary(stream: "Stream", state: Mapping[str, Tensor]) -> FeatureSummary | None:
    """A summary of nothing, to be filled from ``state``; None if it has none.

    The statistics are those that the summary was begun with, whatever the model has now.
    """
    held = {n.removeprefix(_SUMMARY): t for n, t in state.items() if n.startswith(_SUMMARY)}
    if not held:
        return None
    cfg, sequence = stream.model.cfg, stream.sequence
    for name, blank in FeatureStats.blank(cfg.dim, cfg.channels).tensors().items():
        found = held.get(name)
        if found is None or found.shape != blank.shape or found.dtype != blank.dtype:
            raise InputError(f"the stream state is damaged: {_SUMMARY}{name}")
    stats = FeatureStats.of_tensors(held)
    if not stats.fitted or int(stats.detail.dilation.max()) > MOST_DILATION:
        raise InputError("the stream state is damaged: its feature statistics")
    return FeatureSummary(stats, stream.batch_size, sequence.device, sequence.dtype)


def pack(stream: "Stream") -> dict[str, Tensor]:
    """Every tensor and counter of ``stream`` under its name, and the model it belongs to."""
    state = {name: torch.tensor(count) for name, count in counters(stream).items()}
    state |= {"model": _fingerprint(stream.model)} | tensors(stream) | _summary(stream)
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
    ring = "layer.0.recent.valid"  # its shape bounds the memory of the restored stream
    if ring not in state:
        raise InputError(f"the stream state is damaged: missing or unknown entries {ring}")
    x, horizon, seen = state["x"], state["horizon"], state[ring]
    if x.ndim != 3 or horizon.shape != () or horizon.dtype != torch.int64 or seen.ndim != 2:
        raise InputError("the stream state is damaged: x, horizon or a ring has another shape")
    if not 1 <= int(horizon) == seen.shape[1] - 1 or not 1 <= x.shape[0] == seen.shape[0]:
        raise InputError(
            f"the stream state is damaged: horizon {int(horizon)} and batch size {x.shape[0]} are "
            f"not those of a ring of shape {tuple(seen.shape)}"
        )
    return x.shape[0], int(horizon)


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
    count = {name: int(state[name]) for name in counters(stream)}
    _check_counts(stream, state, count)
    device = stream.backbone.x.device
    put_tensors(stream, {name: state[name].to(device).clone() for name in tensors(stream)})
    put_counters(stream, count)
    if stream.summary is not None:
        stream.summary.put_tensors(
            {n.removeprefix(_SUMMARY): state[n].to(device).clone() for n in _summary(stream)}
        )


def _check_counts(stream: "Stream", state: Mapping[str, Tensor], count: Mapping[str, int]) -> None:
    """Refuse a state whose counters do not agree with the shapes of its tensors."""
    cfg, held = stream.model.cfg, {name: list(state[name].shape) for name in tensors(stream)}
    whole = held["observed"] == held["x"] and 0 <= int(state["next"]) < count["horizon"]
    whole &= min(count.values()) >= 0 and count["ended"] <= 1
    if stream.summary is not None:
        summed = state[f"{_SUMMARY}count"]
        whole &= bool(((summed >= 0) & (summed <= count["tokens"])).all())
        summed = state[f"{_SUMMARY}samples"]
        whole &= bool(((summed >= 0) & (summed <= count["samples"])).all())
    came, below = count["seen"], None
    for b in range(cfg.blocks):
        size = {name: held.get(f"block.{b}.{name}", [0, 0]) for name in _TENSOR_FIELDS}
        window, done, emitted = (count[f"block.{b}.{name}"] for name in _COUNTER_FIELDS)
        if not count["ended"]:  # a stream that has ended does not use it again
            T, start = size["held"][1], window * cfg.stride  # number of the first token held
            whole &= size["valid"][1] == size["copies"][1] == size["filled"][0] == T
            whole &= start + T == came and start <= emitted <= came and done <= T
            whole &= size["below"][1] == (0 if below is None else below - window)
        came, below = emitted, window if cfg.slots else None
    if not count["ended"]:
        whole &= (count["tokens"], count["windows"]) == (came, window)
        whole &= count["samples"] == count["seen"] * cfg.patch_stride + held["x"][1]
    if not whole:
        raise InputError("the stream state is damaged: what it counts is not what it holds")


def _fixed(name: str, tensor: Tensor) -> list[int]:
    """The part of a shape that does not depend on how much a stream holds."""
    shape = list(tensor.shape)
    if name in ("x", "observed") or name.startswith("block."):
        held = 0 if name.endswith(".filled") else 1
        if not name.endswith(".memory"):
            del shape[held : held + 1]
    return shape


def _fingerprint(model: "PMT") -> Tensor:
    """Eight numbers that identify a model: a hash of config, dtype and every weight.

    Feature statistics are left out: a stream that uses them keeps its own.
    """
    digest = hashlib.sha256(json.dumps(model.cfg.to_dict(), sort_keys=True).encode())
    for tensor in encoding_tensors(model).values():
        digest.update(str(tensor.dtype).encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.int32).to(torch.int64)
