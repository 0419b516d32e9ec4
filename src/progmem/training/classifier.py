"""A network and a linear head: classes of series from the sequence level.

Shapes: B series, L samples, C channels, D width, Y classes.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from progmem.baselines.vanilla import VanillaTransformer
from progmem.errors import ModelFolderError
from progmem.files import to_json, write_file
from progmem.model import saving
from progmem.model.pmt import PMT
from progmem.pooling import check_observed, pool
from progmem.training.mixed_precision import call_with_cast_weights

FORMAT = "progmem head 1"


class Classifier(nn.Module):
    """Scores of the classes; ``only_head`` keeps the network as it is, in eval mode too."""

    def __init__(
        self, encoder: PMT | VanillaTransformer, classes: tuple[str, ...], *, only_head: bool
    ) -> None:
        super().__init__()
        self.encoder, self.classes, self.only_head = encoder, classes, only_head
        self.head = nn.Linear(encoder.cfg.dim, len(classes))
        nn.init.zeros_(self.head.weight)  # no class is preferred, and nothing is drawn
        nn.init.zeros_(self.head.bias)
        if only_head:
            encoder.requires_grad_(False)
        self.train()

    def forward(self, x: Tensor, mask: Tensor | None, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (B, Y) of normalised series as `PMT.forward` takes them, and their sequence level.

        Both are at least float32; the second is for diagnostics.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.only_head):
            sequence = call_with_cast_weights(self.encoder, x, mask, lengths=lengths).sequence
        scores: Tensor = self.head(sequence)
        precise = torch.promote_types(scores.dtype, torch.float32)
        return scores.to(precise), sequence.detach().to(precise)

    def train(self, mode: bool = True) -> "Classifier":
        super().train(mode)
        if self.only_head:
            self.encoder.eval()  # dropout would make a frozen network another one
        return self

    def scores(self, x: Any) -> np.ndarray:
        """Scores (B, Y) of series (B, L, C), or a list of (L_i, C), as they are."""
        check_observed(x)
        features = pool(self.encoder, x, ["sequence"])["sequence"].astype(np.float64)
        weight, bias = (t.detach().double().cpu().numpy() for t in self.head.parameters())
        return features @ weight.T + bias

    def predict(self, x: Any) -> np.ndarray:
        """The class of each series, by name (B,)."""
        return np.array(self.classes)[self.scores(x).argmax(1)]

    def save(self, folder: Path) -> None:
        """Write the network to model/ and the head beside it; a baseline has no model folder."""
        if not isinstance(self.encoder, PMT):
            return
        self.encoder.save(folder / "model")
        tensors = {n: t.detach().cpu().contiguous() for n, t in self.head.state_dict().items()}
        data = save_tensors(tensors)
        note = {
            "format": FORMAT, "classes": list(self.classes),
            "sha256": hashlib.sha256(data).hexdigest(),
            "encoder": saving.weights_sha256(self.encoder),
        }  # fmt: skip
        write_file(folder / "head.safetensors", data)
        write_file(folder / "head.json", to_json(note))

    @classmethod
    def load(cls, folder: str | Path, *, device: str | torch.device = "cpu") -> "Classifier":
        """The classifier of a finished run, its files checked."""
        folder = Path(folder)
        encoder = saving.load(folder / "model", device=device)
        try:
            note = json.loads((folder / "head.json").read_bytes())
            data = (folder / "head.safetensors").read_bytes()
            if note["format"] != FORMAT or hashlib.sha256(data).hexdigest() != note["sha256"]:
                raise ValueError("its head is damaged or of another version")
            if note["encoder"] != saving.weights_sha256(encoder):
                raise ValueError("its head belongs to another network")
            found = cls(encoder, tuple(note["classes"]), only_head=False)
            found.head.load_state_dict(load_tensors(data))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            why = " ".join(str(error).split())[:300]
            raise ModelFolderError(f"{folder} is not a finetuned run: {why}") from error
        return found.to(device).eval()
