"""What goes wrong on the user's side: each message says what was found and what would be right."""


class ConfigError(ValueError):
    """A setting is unknown or out of range."""


class InputError(ValueError):
    """A series, a length or a chunk cannot be used as it is."""


class ArtifactError(ValueError):
    """A kept file is damaged, of another kind or version, or not ours."""


class ModelFolderError(ValueError):
    """A model folder is damaged, incomplete or not ours."""


class TrainingError(ValueError):
    """A run cannot go on."""
