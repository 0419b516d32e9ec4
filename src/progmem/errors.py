"""What goes wrong on the user's side: each message says what was found and what would be right."""


class ConfigError(ValueError):
    """A setting is unknown or out of range.

    Example:
        >>> import progmem
        >>> progmem.ModelConfig(channels=3, window=8, stride=9)
        Traceback (most recent call last):
        ...
        progmem.errors.ConfigError: model.stride must be in 1..8 (model.window), got 9; a larger ...
    """


class InputError(ValueError):
    """A series, a length or a chunk cannot be used as it is.

    Example:
        >>> import progmem, torch
        >>> progmem.PMT(progmem.ModelConfig(channels=3, size="tiny")).encode(torch.zeros(1, 3, 100))
        Traceback (most recent call last):
        ...
        progmem.errors.InputError: model has 3 channels, got 100; ... transpose?
    """


class RepairableError(InputError):
    """Rows of a table cannot be used as they are, but ``option`` of `progmem.read` repairs them."""

    def __init__(self, message: str, *, option: str) -> None:
        super().__init__(message)
        self.option = option


class ArtifactError(ValueError):
    """A kept file is damaged, of another kind or version, or not ours.

    It is what caused the InputError or ModelFolderError of whoever was to read the file.

    Example:
        >>> import pathlib, tempfile, progmem
        >>> model = progmem.PMT(progmem.ModelConfig(channels=1, size="tiny"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save(folder)
        ...     path = pathlib.Path(folder, "model.safetensors")
        ...     _ = path.write_bytes(path.read_bytes()[:-1] + b"?")  # a byte goes wrong
        ...     try:
        ...         progmem.load(folder)
        ...     except progmem.ModelFolderError as error:
        ...         isinstance(error.__cause__, progmem.ArtifactError)
        True
    """


class ModelFolderError(ValueError):
    """A model folder is damaged, incomplete or not ours.

    Example:
        >>> import progmem
        >>> progmem.load("nowhere")
        Traceback (most recent call last):
        ...
        progmem.errors.ModelFolderError: there is no model folder nowhere
    """


class TrainingError(ValueError):
    """A run cannot go on.

    Example:
        >>> import numpy as np, progmem
        >>> X = np.random.default_rng(0).normal(size=(12, 2, 60))
        >>> progmem.PMTEncoder(size="tiny", steps=3, lr=1e30).fit(X)
        Traceback (most recent call last):
        ...
        progmem.errors.TrainingError: step 2: ... Look for extreme values in the data, or lower ...
    """


class WriteError(OSError):
    """A file or a folder could not be written; what was there before is kept.

    It is an OSError, which has nothing to do with what the user gave.

    Example:
        >>> import errno
        >>> from progmem.errors import WriteError
        >>> print(WriteError(errno.ENOSPC, "x was not written: No space left on device"))
        x was not written: No space left on device
    """

    def __str__(self) -> str:
        return str(self.strerror)
