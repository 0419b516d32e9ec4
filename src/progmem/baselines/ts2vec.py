"""TS2Vec (Yue et al., AAAI 2022): dilated convolutions that learn by contrast, at every scale.

Two crops of a series overlap, and random samples of each are masked. At their overlap a sample's
vector is told from those of other series at that time (instance contrast) and from those of other
times of that series (temporal contrast); both are repeated after each of several max-poolings.
What is kept is the average of the weights over all updates.

Shapes: B rows of the global batch, b own rows, L samples, C channels, D width, H hidden width,
T samples of a crop or of the overlap.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from progmem.baselines.encoder import last_row
from progmem.config import RunConfig, check_fields, choice, number, whole
from progmem.data.windows import TrainingWindows, fetch_from
from progmem.encoding import Encoding
from progmem.errors import InputError
from progmem.losses.pairs import overlapping
from progmem.losses.total import Group
from progmem.series import check_tensor
from progmem.training import randomness
from progmem.training.distributed import split_batch
from progmem.training.trainer import to_device

# published; a rate that is constant, no clipping, and no autocast
TRAINING = {
    "batch_size": 8, "lr": 1e-3, "lr_end": 1e-3, "warmup": 0.0, "weight_decay": 0.01, "clip": 1e9,
    "precision": "32",
}  # fmt: skip
SHORTEST_CROP = 2  # samples
LEAST_WEIGHT = 1e-6  # of a positive; smaller ones are 0


def steps(values: int) -> int:
    """Updates, by the number of values that are trained on."""
    return 200 if values <= 100_000 else 600


@dataclass(frozen=True, kw_only=True)
class TS2VecConfig:
    """The settings ``encoder.*`` of TS2Vec, as published."""

    channels: int = whole(None, 1)
    dim: int = whole(320, 2)
    hidden: int = whole(64, 1)  # width of all blocks but the last
    depth: int = whole(10, 0, 31)  # blocks before the last; block i is dilated by 2^i
    kernel: int = whole(3, 1)
    dropout: float = number(0.1, 0, 1)
    hide: float = number(0.5, 0, 1)  # chance that a sample of a crop is masked
    instance: float = number(0.5, 0)  # weight of the instance contrast
    temporal: float = number(0.5, 0)  # and of the temporal contrast
    normalise: str = choice("channel", "series", "none")

    def __post_init__(self) -> None:
        check_fields(self, "encoder")

    @property
    def patch(self) -> int:
        """A sample is a token."""
        return 1

    @property
    def slots(self) -> int:
        """It has no memory."""
        return 0


class TS2Vec(nn.Module):
    """A vector for each sample; that of a series is their maximum over time."""

    def __init__(self, cfg: TS2VecConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.input = nn.Linear(cfg.channels, cfg.hidden)
        widths = [*[cfg.hidden] * cfg.depth, cfg.dim]
        self.blocks = nn.ModuleList(
            _Block(before, width, cfg.kernel, 2**i, last=i == cfg.depth)
            for i, (before, width) in enumerate(zip([cfg.hidden, *widths], widths, strict=False))
        )
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        lengths: Tensor | None = None,
        keep: Tensor | None = None,
    ) -> Encoding:
        """Encode normalised series (B, L, C), as `PMT.forward` does; ``keep`` (B, L) masks samples.

        A masked sample, and a missing one, is zero after the first linear map.
        """
        check_tensor(x, self.cfg)
        B, L, _ = x.shape
        inside = valid = None  # (B, L)
        if lengths is not None:
            inside = valid = torch.arange(L, device=x.device) < lengths[:, None]
        if mask is not None:
            observed = mask if mask.dim() == 2 else mask.any(2)
            valid = observed if inside is None else observed & inside
            x = torch.where(mask if mask.dim() == 3 else mask[..., None], x, 0.0)
        seen = valid if keep is None else keep if valid is None else keep & valid
        rows = self.input(x)  # (B, L, H)
        if seen is not None:
            rows = torch.where(seen[..., None], rows, 0.0)
        rows = rows.mT
        for block in self.blocks:
            rows = block(rows, None if inside is None else inside[:, None])
        tokens = self.dropout(rows).mT  # (B, L, D)
        there = torch.ones(B, L, dtype=torch.bool, device=x.device) if valid is None else valid
        highest = tokens.amax(1)
        if valid is not None:
            tokens = torch.where(valid[..., None], tokens, 0.0)
            highest = tokens.masked_fill(~valid[..., None], -torch.inf).amax(1)
            highest = torch.where(valid.any(1, keepdim=True), highest, 0.0)
        return Encoding(
            tokens=tokens,
            memory=None,
            sequence=highest,
            eos=last_row(tokens, there),
            token_mask=there,
            window_mask=None,
            token_spans=self.token_spans(L),
            window_spans=None,
        )

    def token_spans(self, length: int) -> Tensor:
        """Each sample is a token: (L, 2)."""
        first = torch.arange(length)
        return torch.stack([first, first + 1], dim=1)


class _Block(nn.Module):
    """Twice GELU and a dilated convolution, beside a skip."""

    def __init__(self, before: int, width: int, kernel: int, dilation: int, *, last: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(before, width, kernel, dilation=dilation)
        self.conv2 = nn.Conv1d(width, width, kernel, dilation=dilation)
        self.skip = nn.Conv1d(before, width, 1) if before != width or last else None

    def forward(self, x: Tensor, inside: Tensor | None) -> Tensor:
        """Rows (B, width, L); what lies past a series' end is to its convolutions as zeros."""
        skip = x if self.skip is None else self.skip(x)
        for conv in (self.conv1, self.conv2):
            x = F.gelu(x)
            if inside is not None:
                x = torch.where(inside, x, 0.0)
            x = _convolve(conv, x)
        return x + skip


def _convolve(conv: nn.Conv1d, x: Tensor) -> Tensor:
    """The convolution of rows (B, width, L) with zeros around them, as long as they are.

    Of a series that is shorter than the dilation, outer taps see zeros alone: they are left out.
    """
    L, kernel, dilation = x.shape[2], conv.kernel_size[0], conv.dilation[0]
    reach = (kernel - 1) * dilation
    unseen = max(0, (reach // 2 - L) // dilation + 1)  # taps, on each side
    unseen = min(unseen, (kernel - 1) // 2)
    weight = conv.weight[..., unseen : kernel - unseen]
    padding = (reach + 1) // 2 - unseen * dilation  # of an even kernel one zero too many
    return F.conv1d(x, weight, conv.bias, padding=padding, dilation=dilation)[..., :L]


def hierarchical_loss(
    first: Tensor,
    second: Tensor,
    *,
    apart: Tensor,
    instance: float = 0.5,
    temporal: float = 0.5,
    alike: Tensor | None = None,
    sharpness: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of vectors (B, T, D) of the overlap in both crops; its two contrasts, not weighted.

    Both contrasts are taken at each scale, from samples to the whole overlap, and averaged.
    ``apart`` (B, B) is True where rows may be told from each other. Where contrasts are soft
    (`progmem.baselines.softclt`), ``alike`` (B, B) says how much a row is another one's positive,
    and ``sharpness`` how fast that falls with the distance of two times; it doubles at each scale.
    """
    of_instances, of_times = first.new_zeros(()), first.new_zeros(())
    scales = 0
    while True:
        of_instances = of_instances + instance_contrast(first, second, apart, alike)
        if first.shape[1] > 1:
            near = None
            if sharpness:
                near = nearness(first.shape[1], sharpness * 2**scales, first)
            of_times = of_times + temporal_contrast(first, second, near)
        scales += 1
        if first.shape[1] == 1:
            break
        first, second = (F.max_pool1d(z.mT, 2).mT for z in (first, second))
    of_instances, of_times = of_instances / scales, of_times / scales
    return instance * of_instances + temporal * of_times, of_instances, of_times


def instance_contrast(
    first: Tensor, second: Tensor, apart: Tensor, alike: Tensor | None = None
) -> Tensor:
    """At each time, the share of a row's other crop among all rows of both crops."""
    B = len(first)
    if B == 1:
        return first.new_zeros(())
    rows = torch.cat([first, second]).transpose(0, 1)  # (T, 2B, D)
    row = torch.arange(2 * B, device=first.device)
    other_crop = row[:, None] == (row + B) % (2 * B)
    return _mean_surprise(rows @ rows.mT, apart.repeat(2, 2) | other_crop, alike)


def temporal_contrast(first: Tensor, second: Tensor, near: Tensor | None = None) -> Tensor:
    """In each row, the share of a time in the other crop among all times of both crops."""
    T = first.shape[1]
    times = torch.cat([first, second], dim=1)  # (B, 2T, D)
    itself = torch.eye(2 * T, dtype=torch.bool, device=first.device)
    return _mean_surprise(times @ times.mT, ~itself, near)


def nearness(times: int, sharpness: float, like: Tensor) -> Tensor:
    """How much a time is another one's positive, (T, T): 2 sigmoid(-sharpness |t - t'|)."""
    time = torch.arange(times, device=like.device, dtype=like.dtype)
    near = 2 * torch.sigmoid(-sharpness * (time[:, None] - time).abs())
    return torch.where(near < LEAST_WEIGHT, 0.0, near)


def _mean_surprise(similarity: Tensor, allowed: Tensor, positive: Tensor | None) -> Tensor:
    """Mean over entries of -log softmax (m, 2n, 2n) over what is ``allowed``, at the positives.

    The positive of an entry is the same one in the other crop or, with weights ``positive``
    (n, n), all entries of both crops but itself, by their weights.
    """
    n = similarity.shape[-1] // 2
    log_share = similarity.masked_fill(~allowed, -torch.inf).log_softmax(-1)
    if positive is None:
        both = log_share.diagonal(n, -2, -1), log_share.diagonal(-n, -2, -1)
        return -torch.cat(both, dim=-1).mean()
    weights = torch.where(allowed, positive.to(log_share.dtype).repeat(2, 2), 0.0)
    weighed = weights * log_share.masked_fill(~allowed, 0.0)
    return -weighed.sum((-2, -1)).mean() / (2 * n)


class Crop(NamedTuple):
    """Stretches of one length, one of each own row, and which of their samples are not masked."""

    x: Tensor  # (b, T, C)
    observed: Tensor  # (b, T, C)
    keep: Tensor  # (b, T)


class Overlap(NamedTuple):
    """The vectors of a crop's samples that the other crop has too."""

    tokens: Tensor  # (b, T, D)


class CropBatch(NamedTuple):
    """The inputs of a step."""

    size: int  # B
    group: Group
    crops: tuple[Crop, Crop]
    overlap: int  # samples that both crops have: the last of the first, the first of the second
    lengths: Tensor  # (b,)
    apart: Tensor  # (B, B): rows that share no samples
    alike: Tensor | None  # (B, B): how much a row is a positive of another, if that is soft

    def rows(self, part: slice) -> "CropBatch":
        """Some of the own rows."""
        first, second = (Crop._make(t[part] for t in crop) for crop in self.crops)
        return self._replace(crops=(first, second), lengths=self.lengths[part])


class AveragedLearner(nn.Module):
    """The network that is trained; the encoder's own holds the average of its weights."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder.requires_grad_(False)
        self.network = deepcopy(encoder.network).requires_grad_(True)
        self.updates: Tensor
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def forward(self, batch: CropBatch, *, gaps: bool) -> tuple[tuple[Overlap, Overlap], Tensor]:
        """The overlap in both crops, and the maxima of the first crop's vectors (b, D)."""
        vectors = []
        for crop in batch.crops:
            z = self.network(crop.x, crop.observed if gaps else None, keep=crop.keep)
            vectors.append(z.tokens.to(torch.promote_types(z.tokens.dtype, torch.float32)))
        first, second = vectors
        both = Overlap(first[:, -batch.overlap :]), Overlap(second[:, : batch.overlap])
        return both, first.detach().amax(1)

    @torch.no_grad()
    def average(self) -> None:
        """Take the newest weights into the mean of those after every update."""
        self.updates += 1
        mean, now = (list(n.parameters()) for n in (self.encoder.network, self.network))
        change = torch._foreach_sub(now, mean)
        torch._foreach_div_(change, self.updates.to(change[0].dtype))
        torch._foreach_add_(mean, change)


class TS2VecTask:
    """TS2Vec's loss of a batch; all random numbers are functions of seed, step and row.

    ``alike`` gives the soft positives (B, B) of rows (B,), and ``sharpness`` those of times.
    """

    compares_rows = True
    fixed_shapes = False  # the lengths of crops are drawn

    def __init__(
        self,
        encoder: Any,
        rows: TrainingWindows,
        cfg: RunConfig,
        *,
        device: torch.device,
        alike: Callable[[Tensor], Tensor] | None = None,
        sharpness: float = 0.0,
    ) -> None:
        shortest = int(rows.length.argmin())
        if rows.length[shortest] < SHORTEST_CROP:
            name = rows.describe(shortest)
            raise InputError(
                f"{name} needs at least {SHORTEST_CROP} samples to be cropped, got 1; leave it out"
            )
        self.learner = to_device(AveragedLearner(encoder), device, cfg.train)
        self.rows, self.cfg, self.device = rows, cfg, device
        self.alike, self.sharpness = alike, sharpness
        assert cfg.train.batch_size is not None  # defaults are filled in
        self.batch_size = randomness.whole_batch(len(rows), cfg.train.batch_size)
        self.row_spans = [t.to(device) for t in (rows.recording, rows.start, rows.length)]
        encoder, like = self.learner.encoder, next(self.learner.network.parameters())
        self.fetch = fetch_from(rows, encoder.cfg, encoder.stats, like)

    def make_batch(self, step: int, *, batch_size: int | None = None) -> CropBatch:
        """Two crops of each row of a step, which overlap in as many samples in all rows.

        No crop reaches beyond its row, so the shortest row bounds them all.
        """
        rows, seed = self.rows, self.cfg.train.seed
        chosen = randomness.batch_rows(len(rows), batch_size or self.batch_size, seed, step)  # (B,)
        group, lengths = split_batch(len(chosen)), rows.length[chosen]
        source = randomness.generator(seed, step, "crops")
        start, end, first, last = _draw_crops(int(lengths.min()), source)
        room = lengths - (last - first)  # of the stretch that both crops lie in
        offset = (torch.rand(len(chosen), generator=source) * (room + 1)).long().minimum(room)
        batch = self.fetch(chosen[group.rows])
        own = offset[group.rows].to(self.device)
        crops = []
        for name, begin, stop in (("first", first, end), ("second", start, last)):
            place = own[:, None] + torch.arange(begin - first, stop - first, device=self.device)
            row = torch.arange(len(own), device=self.device)[:, None]
            chance = torch.rand(
                len(chosen), stop - begin, device=self.device,
                generator=randomness.generator(seed, step, f"mask of {name}", self.device),
            )  # fmt: skip
            keep = chance[group.rows] >= self.learner.encoder.cfg.hide
            crops.append(Crop(batch.x[row, place], batch.observed[row, place], keep))
        index = chosen.to(self.device)
        apart = ~overlapping(*(t[index] for t in self.row_spans))
        alike = None if self.alike is None else self.alike(chosen).to(self.device)
        return CropBatch(
            len(chosen), group, (crops[0], crops[1]), end - start, batch.lengths, apart, alike
        )

    def embed(self, learner: nn.Module, batch: CropBatch) -> tuple[tuple[Overlap, Overlap], Tensor]:
        """The overlap in both crops of the own rows, and their maxima."""
        return learner(batch, gaps=self.rows.gaps)

    def losses(
        self, batch: CropBatch, embedded: tuple[Overlap, Overlap]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The own rows' share of the loss; it and its two contrasts over all processes."""
        first, second = (batch.group.gather(view.tokens) for view in embedded)
        cfg = self.learner.encoder.cfg
        found = hierarchical_loss(
            first, second, apart=batch.apart, instance=cfg.instance, temporal=cfg.temporal,
            alike=batch.alike, sharpness=self.sharpness,
        )  # fmt: skip
        share = len(batch.lengths) / batch.size  # every process computes the loss of all rows
        values = batch.group.total(torch.stack([part.detach() * share for part in found]))
        return found[0] * share, dict(zip(("loss", "instance", "temporal"), values, strict=True))

    def row_losses(self, batch: CropBatch, embedded: tuple[Overlap, Overlap]) -> Tensor:
        """The temporal contrast of each own row."""
        rows = [[z.tokens[i : i + 1] for z in embedded] for i in range(len(batch.lengths))]
        return torch.stack([temporal_contrast(*pair) for pair in rows])

    def parameter_groups(self) -> list[dict[str, Any]]:
        """All weights decay alike."""
        trained = [p for p in self.learner.network.parameters() if p.requires_grad]
        return [{"params": trained, "weight_decay": self.cfg.train.weight_decay}]

    def updated(self) -> None:
        self.learner.average()


def _draw_crops(length: int, source: torch.Generator) -> tuple[int, int, int, int]:
    """Start and end of the overlap, of the first crop's start and of the second's end."""

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=source))

    overlap = draw(SHORTEST_CROP, length)
    start = draw(0, length - overlap)
    end = start + overlap
    return start, end, draw(0, start), draw(end, length)


def make_task(
    encoder: Any, rows: TrainingWindows, cfg: RunConfig, *, total: int, device: torch.device
) -> TS2VecTask:
    """The task of a run."""
    return TS2VecTask(encoder, rows, cfg, device=device)
