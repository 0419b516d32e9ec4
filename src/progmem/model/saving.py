"""A model as a folder with one file in it, weights and config. Nothing in it can run code."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor

from progmem import artifact, legacy
from progmem.artifact import Artifact
from progmem.config import PMT, ModelConfig
from progmem.data.recordings import ChannelInfo
from progmem.errors import ArtifactError, ConfigError, ModelFolderError
from progmem.features import FeatureStats
from progmem.files import UNFINISHED, make_folder
from progmem.provenance import History, TrainedOn

if TYPE_CHECKING:
    from progmem.baselines.encoder import Baseline
    from progmem.model import pmt

AnyEncoder: TypeAlias = Union["pmt.PMT", "Baseline"]

FILE = "model.safetensors"
LAYER_TENSORS = 10  # that every layer has
FEATURE_STATS = "feature_stats."  # in the names of their tensors
WHITENING = f"{FEATURE_STATS}whitening_"


def save(model: AnyEncoder, folder: Path) -> str:
    """Write ``model`` into ``folder``; one that was there before counts until this one is whole.

    The sha256 of what was written is returned.
    """
    if folder.is_file():
        raise ModelFolderError(f"{folder} is a file; save a model into a folder of its own")
    if folder.exists() and not all(_is_ours(path.name) for path in folder.iterdir()):
        raise ModelFolderError(f"{folder} holds other files; save a model into a folder of its own")
    make_folder(folder)
    note: dict[str, Any] = {"config": settings_of(model)}
    if model.name != PMT:  # models of earlier versions have no name
        note["encoder"] = model.name
    if model.info != ChannelInfo():
        note["data"] = model.info._asdict()
    if model.history is not None:
        note["trained_on"] = [training.to_note() for training in model.history]
    sha256 = artifact.write(folder / FILE, "model", model.state_dict(), note)
    for path in folder.iterdir():
        if legacy.is_model_file(path.name):
            path.unlink(missing_ok=True)  # it no longer counts
    return sha256


def _is_ours(name: str) -> bool:
    return name == FILE or legacy.is_model_file(name) or name.startswith(UNFINISHED)


def weights_sha256(model: Any) -> str:
    """A digest of a module's weights, kept with whatever belongs to this network only.

    It covers the weights under their names in 0.1.0, so that digests in its files stay valid.
    """
    state = {legacy.old_weight_name(name): t for name, t in encoding_tensors(model).items()}
    tensors = {name: t.detach().cpu().contiguous() for name, t in state.items()}
    return hashlib.sha256(save_tensors(tensors)).hexdigest()


def encoding_tensors(model: Any) -> dict[str, Tensor]:
    """Every tensor of a module that its encodings depend on: all but feature statistics."""
    return {name: t for name, t in model.state_dict().items() if FEATURE_STATS not in name}


def with_feature_stats(
    tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The tensors of a model or checkpoint, in which feature statistics of today may be missing.

    Version 0.1.0 had none: they are zeros then, as long as none are fitted. Those without whitening
    have one of zeros, which changes nothing.
    """
    new = {name: t for name, t in expected.items() if FEATURE_STATS in name}
    if any(name in tensors for name in new):
        new = {name: t for name, t in new.items() if WHITENING in name and name not in tensors}
    zeros = {name: torch.zeros(t.shape, dtype=t.dtype) for name, t in new.items()}
    return {**tensors, **zeros}


def saved_feature_stats(model: AnyEncoder, folder: Path) -> FeatureStats | None:
    """The feature statistics saved in ``folder`` beside the same weights as ``model``'s."""
    try:
        saved = build(artifact.read(folder / FILE, "model"), folder)
    except (ArtifactError, ModelFolderError):
        return None
    return saved.feature_stats.values if weights_sha256(saved) == weights_sha256(model) else None


def gpu_or_cpu() -> str:
    """The kind of device where a model is fast."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def load(folder: str | Path, *, device: str | torch.device = "cpu") -> AnyEncoder:
    """The PMT, or other encoder, that its ``save`` wrote, every byte checked.

    On ``device``; "auto" is a GPU if there is one.

    Example:
        >>> import tempfile, progmem, torch
        >>> model = progmem.PMT(progmem.ModelConfig(channels=3, size="tiny"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save(folder)
        ...     again = progmem.load(folder)
        >>> x = torch.randn(1, 100, 3)
        >>> torch.equal(again.encode(x).sequence, model.encode(x).sequence)
        True
    """
    folder = Path(folder)
    return build(read(folder), folder).to(gpu_or_cpu() if device == "auto" else device)


def read(folder: Path) -> Artifact:
    """The content of a model folder."""
    if folder.is_file():
        raise ModelFolderError(f"{folder} is a file; give the folder it lies in")
    if not folder.is_dir():
        raise ModelFolderError(f"there is no model folder {folder}")
    path = folder / FILE
    try:
        found = artifact.read(path, "model") if path.exists() else legacy.read_model(folder)
    except ArtifactError as error:
        raise ModelFolderError(str(error)) from error
    if found is None:
        inside = any((folder / "model" / name).is_file() for name in (FILE, legacy.MANIFEST))
        hint = f"; did you mean {folder / 'model'}?" if inside else ""
        raise ModelFolderError(f"{folder} is not a progmem model folder: it has no {FILE}{hint}")
    return found


def settings_of(model: Any) -> dict[str, Any]:
    """The config of an encoder as its file keeps it."""
    cfg = model.cfg
    return dict(cfg.to_dict() if isinstance(cfg, ModelConfig) else asdict(cfg))


def _maker(found: Artifact, unread: str) -> Callable[[], Any]:
    """What makes an untrained encoder by the config of ``found``."""
    values = artifact.noted(found.note, "config", dict, unread)
    if "encoder" in found.note:
        from progmem.baselines import build, settled  # they need the training, which loads slowly

        name = artifact.noted(found.note, "encoder", str, unread)
        other = settled(name, values)
        return lambda: build(name, other)
    from progmem.model import pmt

    cfg = ModelConfig.from_dict(values)
    layers = cfg.blocks + cfg.encoder_layers
    if LAYER_TENSORS * layers > len(found.tensors):  # a small file builds no large model
        raise ArtifactError(f"{unread}: it has fewer tensors than its config has layers")
    return lambda: pmt.PMT(cfg)


def build(found: Artifact, folder: Path) -> AnyEncoder:
    """The encoder of ``found``, which was read from ``folder``."""
    unread, tensors = f"{folder} is not a model this version can read", found.tensors
    try:
        make = _maker(found, unread)
        with torch.random.fork_rng(devices=[]):  # loading draws nothing from the caller's numbers
            with torch.device("meta"):  # shapes alone, before anything is given memory
                expected = make()
            first = next(name for name, _ in expected.named_parameters())
            dtype = tensors.get(first, torch.empty(0)).dtype  # as all weights
            shapes = expected.to(dtype).state_dict()
            own = {n: t for n, t in shapes.items() if n in tensors or FEATURE_STATS not in n}
            artifact.check_tensors(tensors, own, unread)
            tensors = with_feature_stats(tensors, shapes)
            artifact.check_tensors(tensors, shapes, unread)
            model: AnyEncoder = make().to(dtype)
        model.load_state_dict(tensors)
        model.info, model.history = _read_info(found, unread), _read_history(found, unread)
    except ArtifactError as error:
        raise ModelFolderError(str(error)) from error
    except (ConfigError, RuntimeError, OverflowError, TypeError) as error:
        raise ModelFolderError(f"{unread}: {artifact.in_one_line(error)}") from error
    return model


def _read_info(found: Artifact, where: str) -> ChannelInfo:
    """What a model folder says of the channels, which models of earlier versions do not."""
    if "data" not in found.note:
        return ChannelInfo()
    note = artifact.noted(found.note, "data", dict, where)
    rate = artifact.noted(note, "rate", (float, int, type(None)), where)
    columns, units = (artifact.noted(note, n, list, where, of=str) for n in ("columns", "units"))
    missing = artifact.noted(note, "missing", list, where, of=(str, float, int))
    return ChannelInfo(tuple(columns), tuple(units), rate, tuple(missing))


def _read_history(found: Artifact, where: str) -> History | None:
    """What a model was trained on; None for one of an earlier version, which does not say."""
    if "trained_on" not in found.note:
        return None
    trainings = artifact.noted(found.note, "trained_on", list, where)
    return tuple(TrainedOn.from_note(training, where) for training in trainings)
