"""The methods that PMT is compared with, each trained and used as PMT is.

`ENCODERS` says by name what a method is made of. A new method is one file here, one line there and
one row of settings in tests/baselines/test_contract.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from progmem.baselines import cpc, simclr, softclt, sslecg, ts2vec, tstcc
from progmem.baselines.cnn import CNN
from progmem.baselines.encoder import Baseline
from progmem.baselines.matched import MatchedNetwork, MemorylessConfig
from progmem.baselines.transformer_xl import TransformerXL
from progmem.baselines.vanilla import VanillaTransformer
from progmem.baselines.windowed import WindowedTransformer
from progmem.baselines.xlstm import XLSTM
from progmem.config import ModelConfig, check_names, given, names
from progmem.errors import ConfigError
from progmem.model.pmt import PMT
from progmem.training import pmt


class Method(NamedTuple):
    """What an encoder is made of, and how it is trained."""

    config: type  # a frozen dataclass with the published settings, an `EncoderConfig`
    network: Callable[[Any], nn.Module]  # of a config: PMT itself, or a `baselines.encoder.Network`
    task: Callable[..., Any]  # its Task (training/trainer.py) of an encoder, rows and settings
    training: Mapping[str, Any] = {}  # published settings of TrainConfig
    steps: Callable[[int], int] | None = None  # published, by the number of values trained on

    @property
    def in_frame(self) -> bool:
        """Whether it is set by ``model.*``, and learns by the objectives and views of PMT."""
        return issubclass(self.config, ModelConfig)


def _matched(stack: Callable[[ModelConfig], nn.Module], config: type = MemorylessConfig) -> Method:
    """PMT with another stack of layers."""
    return Method(config, partial(MatchedNetwork, stack=stack), pmt.make_task)


ENCODERS: dict[str, Method] = {
    "pmt": Method(ModelConfig, PMT, pmt.make_task),
    "vanilla": Method(MemorylessConfig, VanillaTransformer, pmt.make_task),
    "windowed": _matched(WindowedTransformer),
    "windowed_state": _matched(WindowedTransformer, ModelConfig),
    "transformer_xl": _matched(TransformerXL),
    "xlstm": _matched(XLSTM),
    "ts2vec": Method(
        ts2vec.TS2VecConfig, ts2vec.TS2Vec, ts2vec.make_task, ts2vec.TRAINING, ts2vec.steps
    ),
    "softclt": Method(
        softclt.SoftCLTConfig, ts2vec.TS2Vec, softclt.make_task, ts2vec.TRAINING, ts2vec.steps
    ),
    "tstcc": Method(tstcc.TSTCCConfig, CNN, tstcc.make_task, tstcc.TRAINING),
    "cpc": Method(cpc.CPCConfig, CNN, cpc.make_task, cpc.TRAINING),
    "simclr": Method(simclr.SimCLRConfig, CNN, simclr.make_task, simclr.TRAINING),
    "sslecg": Method(sslecg.SSLECGConfig, CNN, sslecg.make_task, sslecg.TRAINING),
}


def method_of(name: Any) -> Method:
    """The method of that name."""
    if not isinstance(name, str) or name not in ENCODERS:
        raise ConfigError(f"encoder.name must be one of {', '.join(ENCODERS)}, got {name!r}")
    return ENCODERS[name]


def make_encoder(name: str, /, **settings: Any) -> Any:
    """An untrained encoder, a PMT or a `Baseline`, by its settings; ``channels`` must be given.

    Example:
        >>> from progmem.baselines import make_encoder
        >>> make_encoder("ts2vec", channels=2).cfg.dim
        320
    """
    return build(name, settled(name, settings))


def build(name: str, cfg: Any) -> Any:
    """The untrained encoder of a config."""
    network = method_of(name).network(cfg)
    return network if isinstance(network, PMT) else Baseline(name, network)


def settled(name: str, values: Mapping[str, Any]) -> Any:
    """The config of settings by name; an unknown one names its nearest."""
    config: Any = method_of(name).config
    section = "model" if issubclass(config, ModelConfig) else "encoder"
    check_names(values, names(config), section)
    if "channels" not in values:
        raise ConfigError(f"{section}.channels is missing; it is the number of values per sample")
    return config(**given(values))


def for_length(name: str, length: int, values: Mapping[str, Any]) -> Any:
    """The config of given settings, the rest as is right for rows of ``length`` samples."""
    config: Any = method_of(name).config
    if issubclass(config, ModelConfig):
        return config.for_length(length, **values)
    return settled(name, values)


def sections(name: str, cfg: Any) -> dict[str, dict[str, Any]]:
    """The settings of a config as the sections ``encoder`` and ``model`` of a run have them."""
    if not method_of(name).in_frame:
        return {"encoder": {"name": name, **asdict(cfg)}}
    values, frame = cfg.to_dict(), names(ModelConfig)
    own = {key: value for key, value in values.items() if key not in frame}
    model = {key: value for key, value in values.items() if key in frame}
    return {"encoder": {"name": name, **own}, "model": model}
