"""PMTEncoder for aeon's pipelines. aeon is not needed unless this module is imported."""

from typing import Any, ClassVar

try:
    from aeon.transformations.collection import BaseCollectionTransformer
except ImportError as error:
    raise ImportError("progmem.aeon_transformer needs aeon: pip install 'progmem[data]'") from error

from progmem.config import PMT as PMT_NAME
from progmem.estimators import LEVELS, ONE_VECTOR, PMTEncoder


class PMTCollectionTransformer(BaseCollectionTransformer):  # type: ignore[misc]  # aeon has no types
    """A `PMTEncoder` behind aeon's interface: the same parameters, ``encoder_`` once fitted."""

    _tags: ClassVar[dict[str, Any]] = {
        "X_inner_type": ["np-list", "numpy3D"],
        "capability:multivariate": True,
        "capability:unequal_length": True,
        "capability:missing_values": True,
        "algorithm_type": "deeplearning",
        "output_data_type": "Tabular",
    }

    def __init__(
        self,
        size: str = "auto",
        level: str = "all",
        epochs: int | None = None,
        steps: int | None = None,
        device: str = "auto",
        batch_size: int | None = None,
        lr: float | None = None,
        views: str = "hidden",
        seed: int = 0,
        verbose: bool = False,
        settings: tuple[str, ...] | None = None,
        pooling: str | None = None,
        encoder: str = PMT_NAME,
    ) -> None:
        self.size = size
        self.level = level
        self.epochs = epochs
        self.steps = steps
        self.device = device
        self.batch_size = batch_size
        self.lr = lr
        self.views = views
        self.seed = seed
        self.verbose = verbose
        self.settings = settings
        self.pooling = pooling
        self.encoder = encoder
        super().__init__()
        if pooling is None and level not in ONE_VECTOR:
            self.set_tags(output_data_type="Collection")

    def _fit(self, X: Any, y: Any = None) -> None:
        self.encoder_ = PMTEncoder(**self.get_params()).fit(X)

    def _transform(self, X: Any, y: Any = None) -> Any:
        return self.encoder_.transform(X)

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """A model as small as can be, at every level."""
        small = ("model.dim=8", "model.heads=2", "model.blocks=1", "model.encoder_layers=1")
        return [
            {"level": level, "epochs": 1, "device": "cpu", "settings": small} for level in LEVELS
        ]
