"""A network and a linear head: classes of series from the sequence level.

Shapes: B series, L samples, C channels, D width, Y classes.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from progmem import artifact, legacy
from progmem.errors import ArtifactError, ModelFolderError
from progmem.model import saving
from progmem.model.saving import AnyEncoder
from progmem.pooling import check_observed, pool
from progmem.provenance import NONE, pack, unpack
from progmem.training.distributed import call_with_cast_weights

FILE = "head.safetensors"


class SequenceClassifier(nn.Module):
    """Scores of the classes; ``only_head`` keeps the network as it is, in eval mode too."""

    def __init__(self, encoder: AnyEncoder, classes: tuple[str, ...], *, only_head: bool) -> None:
        super().__init__()
        self.encoder, self.classes, self.only_head = encoder, classes, only_head
        self.learnt = NONE  # digests of the series whose labels it learns
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

    def train(self, mode: bool = True) -> "SequenceClassifier":
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
        """Write the network to model/ and the head beside it."""
        self.encoder.save(folder / "model")
        note = {
            "classes": list(self.classes), "encoder": saving.weights_sha256(self.encoder),
            "learnt": pack(self.learnt),
        }  # fmt: skip
        artifact.write(folder / FILE, "classifier head", self.head.state_dict(), note)
        (folder / legacy.HEAD_NOTE).unlink(missing_ok=True)  # it no longer counts

    @classmethod
    def load(
        cls, folder: str | Path, *, device: str | torch.device = "cpu"
    ) -> "SequenceClassifier":
        """The classifier of a finished run, its files checked."""
        folder = Path(folder)
        encoder, where = saving.load(folder / "model", device=device), "its head"
        try:
            head = legacy.read_head(folder) or artifact.read(folder / FILE, "classifier head")
            if head.note.get("encoder") != saving.weights_sha256(encoder):
                raise ArtifactError("its head belongs to another network")
            classes = artifact.noted(head.note, "classes", list, where, of=str)
            bias = head.tensors.get("bias", torch.empty(0))
            if bias.shape != (len(classes),) or not bias.is_floating_point():
                raise ArtifactError(f"{where} has {len(classes)} classes and not as many outputs")
            found = cls(encoder, tuple(classes), only_head=False)
            found.learnt = unpack(head.note, "learnt", where) if "learnt" in head.note else NONE
            found.head.to(bias.dtype)
            artifact.check_tensors(head.tensors, found.head.state_dict(), where)
        except ArtifactError as error:
            raise ModelFolderError(f"{folder} is not a finetuned run: {error}") from error
        found.head.load_state_dict(head.tensors)
        return found.to(device).eval()
