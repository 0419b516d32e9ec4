"""Representations of time series at three scales: tokens, memory, sequence."""

from typing import TYPE_CHECKING, Any

from progmem.config import ModelConfig
from progmem.encoding import Encoder, Encoding
from progmem.errors import ConfigError, InputError, ModelFolderError
from progmem.model.counting import count_macs, count_params
from progmem.model.pmt import PMT
from progmem.model.saving import load
from progmem.streaming.stream import Stream

if TYPE_CHECKING:
    from progmem.estimators import PMTClassifier, PMTEncoder
    from progmem.forecaster import PMTForecaster

__version__ = "0.2.0.dev0"
__all__ = [
    "PMT",
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
    "count_macs",
    "count_params",
    "load",
]


def __getattr__(name: str) -> Any:
    """Once it is asked for, what needs scikit-learn or the training loop: they load slowly."""
    if name in ("PMTEncoder", "PMTClassifier"):
        from progmem import estimators

        return getattr(estimators, name)
    if name == "PMTForecaster":
        from progmem.forecaster import PMTForecaster

        return PMTForecaster
    raise AttributeError(f"module 'progmem' has no attribute {name!r}")
