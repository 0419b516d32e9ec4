"""Representations of time series at three scales: tokens, memory, sequence."""

from progmem.config import ModelConfig
from progmem.encoding import Encoder, Encoding
from progmem.errors import ConfigError, InputError, ModelFolderError
from progmem.model.counting import count_macs, count_params
from progmem.model.pmt import PMT
from progmem.model.saving import load
from progmem.model.stream import Stream

__version__ = "0.1.0"
__all__ = [
    "PMT",
    "ConfigError",
    "Encoder",
    "Encoding",
    "InputError",
    "ModelConfig",
    "ModelFolderError",
    "Stream",
    "count_macs",
    "count_params",
    "load",
]
