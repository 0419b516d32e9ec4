"""Representations of time series at three scales: tokens, memory, sequence."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from progmem.threads import sleep_beside_others

sleep_beside_others()  # before torch is loaded

from progmem import data
from progmem.config import ModelConfig
from progmem.data.reader import read
from progmem.encoding import Encoder, Encoding
from progmem.errors import (
    ArtifactError,
    ConfigError,
    InputError,
    ModelFolderError,
    TrainingError,
)
from progmem.model.counting import count_macs, count_params
from progmem.model.pmt import PMT
from progmem.model.saving import load
from progmem.streaming.stream import Stream

if TYPE_CHECKING:
    from progmem.classifier import PMTClassifier
    from progmem.estimators import PMTEncoder
    from progmem.forecaster import PMTForecaster

__version__ = "0.2.0.dev0"
__all__ = [
    "PMT",
    "ArtifactError",
    "ConfigError",
    "Encoder",
    "Encoding",
    "InputError",
    "ModelConfig",
    "ModelFolderError",
    "PMTClassifier",
    "PMTEncoder",
    "PMTForecaster",
    "Stream",
    "TrainingError",
    "__version__",
    "count_macs",
    "count_params",
    "data",
    "load",
    "read",
]

LAZY = {  # name -> its module; they need scikit-learn and the training loop, which load slowly
    "PMTEncoder": "progmem.estimators",
    "PMTClassifier": "progmem.classifier",
    "PMTForecaster": "progmem.forecaster",
}


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module 'progmem' has no attribute {name!r}")
    return getattr(import_module(LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
