"""TS2Vec and SoftCLT beside their public code: the same numbers, and the time of a step.

    git clone https://github.com/zhihanyue/ts2vec DIR       # their code stays outside this project
    git clone https://github.com/seunghan96/softclt OTHER
    python -m benchmarks.peers --ts2vec DIR --softclt OTHER/softclt_ts2vec

Their networks and ours get the same weights, 8 series of 128 samples in 9 channels with some times
missing, the same samples to mask, and no dropout. Compared are the vectors of all samples, the loss
of two crops and the gradients of all weights by it, and, of SoftCLT, the weights of soft positives
by given distances. A difference is relative to the largest entry of its tensor; the largest of all
tensors counts.

Then both train TS2Vec with its defaults on made series, some steps of theirs and some of ours in
turns. Lengths of crops are drawn, so that steps differ. Writes results/peers/<device>.json.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import timing
from benchmarks.training_step import made_rows
from progmem.baselines import make_encoder
from progmem.baselines.softclt import Likeness
from progmem.baselines.ts2vec import hierarchical_loss
from progmem.config import read_config
from progmem.series import ChannelStats
from progmem.training.distributed import make_fabric
from progmem.training.pretrain import initial_model, make_pretrainer, model_for
from progmem.training.trainer import cpu_threads

ROWS, LENGTH, CHANNELS = 8, 128, 9
CROPS, OVERLAP = ((0, 101), (37, 128)), 64  # both crops have the samples from 37 to 101
SHARPNESS = {"instance": 20.0, "temporal": 1.0}
TRAINED_ON, STRETCH = 512, 10  # rows; steps at a time


@contextmanager
def code_in(folder: Path) -> Iterator[None]:
    """Inside, modules of ``folder`` are imported before others; after it they are forgotten."""
    before = dict(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in sys.modules.keys() - before.keys():
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


def difference(ours: Tensor, theirs: Tensor) -> float:
    apart, largest = (ours - theirs).abs().max(), theirs.abs().max()
    return float(apart.detach() / largest.detach())


def compare(their_net: Any, their_loss: Any, dtype: torch.dtype, **soft: Any) -> dict[str, float]:
    """How far vectors, the loss and its gradients are apart in networks of the same weights."""
    torch.manual_seed(0)
    network = make_encoder("ts2vec", channels=CHANNELS, dropout=0.0).network.to(dtype).train()
    theirs = their_net(input_dims=CHANNELS, output_dims=320).to(dtype).train()
    theirs.repr_dropout.p = 0.0
    pairs = list(zip(network.parameters(), theirs.parameters(), strict=True))
    with torch.no_grad():
        for own, other in pairs:
            other.copy_(own)
    x, keep = torch.randn(ROWS, LENGTH, CHANNELS, dtype=dtype), torch.rand(ROWS, LENGTH) < 0.5
    observed = torch.rand(ROWS, LENGTH) < 0.9
    gaps = x.masked_fill(~observed[..., None], torch.nan)
    found = theirs(gaps.clone(), keep.clone())
    own_tokens = network(x, observed, keep=keep).tokens
    apart = difference(own_tokens[observed], found[observed])
    crops = []
    for start, end in CROPS:
        inputs, kept = x[:, start:end], keep[:, start:end]
        crops.append((network(inputs, keep=kept).tokens, theirs(inputs.clone(), kept.clone())))
    (first, their_first), (second, their_second) = crops
    own, *_ = hierarchical_loss(
        first[:, -OVERLAP:], second[:, :OVERLAP], apart=~torch.eye(ROWS, dtype=torch.bool), **soft
    )
    other = their_loss(their_first[:, -OVERLAP:], their_second[:, :OVERLAP])
    torch.autograd.backward([own, other])
    gradients = max(difference(a.grad, b.grad) for a, b in pairs)
    return {"vectors": apart, "loss": difference(own, other), "gradients": gradients}


def soft_weights(folder: Path) -> tuple[Tensor, Any]:
    """The soft positives of drawn distances, ours, and theirs as their training takes them."""
    found = torch.rand(40, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    distances = (found + found.mT).fill_diagonal_(0.0)
    for name in ("tslearn", "tslearn.metrics"):  # for DTW alone, which is not called
        sys.modules.setdefault(name, ModuleType(name))
    for name in ("dtw", "dtw_path", "gak"):
        sys.modules["tslearn.metrics"].__dict__.setdefault(name, None)
    with code_in(folder):
        module: Any = importlib.import_module("utils_distance_matrix")
    module.get_DTW = lambda given: given.copy()
    likeness = module.save_sim_mat(distances.numpy())
    theirs = module.densify(-(1 - likeness), SHARPNESS["instance"], 0.5)
    own = Likeness(distances, SHARPNESS["instance"])(torch.arange(len(distances)))
    return own, theirs


def step_times(learner: Any, device: str, *, stretches: int) -> dict[str, list[float]]:
    """Seconds of a step of both, a mean over each of the stretches that take turns."""
    settings = ["encoder.name=ts2vec", f"train.device={device}", "train.seed=0"]
    total = STRETCH * stretches
    cfg = read_config(None, [*settings, f"train.steps={total}"])
    rows = made_rows(TRAINED_ON, cfg)
    stats = ChannelStats(rows.channels)
    rows.set_statistics(stats)
    encoder = initial_model(model_for(rows, cfg), stats, 0, name="ts2vec")
    trainer = make_pretrainer(encoder, rows, cfg, make_fabric(cfg), total=total)
    series = np.stack([recording.values for recording in rows.recordings])
    torch.manual_seed(0)
    np.random.seed(0)
    stamps: list[float] = []

    def note(model: Any, loss: float) -> None:
        timing.synchronise(device)
        stamps.append(time.perf_counter())

    theirs = learner(
        input_dims=rows.channels, output_dims=320, batch_size=8, device=device,
        after_iter_callback=note,
    )  # fmt: skip
    found: dict[str, list[float]] = {"here": [], "public": []}
    with cpu_threads(trainer.threads):
        for i in range(stretches):
            stamps.clear()
            theirs.fit(series, n_iters=(i + 1) * (STRETCH + 1))
            found["public"].append((stamps[-1] - stamps[0]) / STRETCH)
            timing.synchronise(device)
            began = time.perf_counter()
            for number in range(i * STRETCH, (i + 1) * STRETCH):
                trainer.step(number)
            timing.synchronise(device)
            found["here"].append((time.perf_counter() - began) / STRETCH)
    return found


def differences(chosen: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """By method and precision: what is compared, and how far it is apart."""
    with code_in(chosen.ts2vec):
        net = importlib.import_module("models").TSEncoder
        hard = importlib.import_module("models.losses").hierarchical_contrastive_loss
    with code_in(chosen.softclt):
        soft = importlib.import_module("models.soft_losses").hier_CL_soft
    own_alike, their_alike = soft_weights(chosen.softclt)
    alike = torch.as_tensor(their_alike)[:ROWS, :ROWS]

    def soft_loss(first: Tensor, second: Tensor) -> Any:
        return soft(
            first, second, alike.numpy(), tau_temp=SHARPNESS["temporal"], soft_temporal=True,
            soft_instance=True,
        )  # fmt: skip

    found: dict[str, dict[str, dict[str, float]]] = {"TS2Vec": {}, "SoftCLT": {}}
    for dtype in (torch.float64, torch.float32):
        name = str(dtype).removeprefix("torch.")
        with default_dtype(dtype):  # theirs sum up the loss in it
            found["TS2Vec"][name] = compare(net, hard, dtype)
            found["SoftCLT"][name] = compare(
                net, soft_loss, dtype, alike=alike, sharpness=SHARPNESS["temporal"]
            )
    of_weights = difference(own_alike, torch.as_tensor(their_alike))
    found["SoftCLT"]["float64"]["weights of soft positives"] = of_weights
    return found


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ts2vec", type=Path, required=True, help="a checkout of its code")
    parser.add_argument("--softclt", type=Path, required=True, help="its folder softclt_ts2vec")
    timing.add_arguments(parser)
    parser.set_defaults(repeats=12)
    chosen = parser.parse_args()
    found = differences(chosen)
    with code_in(chosen.ts2vec):
        learner = importlib.import_module("ts2vec").TS2Vec
    seconds = step_times(learner, chosen.device, stretches=chosen.repeats)
    config = {
        "rows": ROWS, "length": LENGTH, "channels": CHANNELS, "crops": CROPS,
        "sharpness": SHARPNESS, "trained_on": TRAINED_ON, "steps_of_a_stretch": STRETCH,
    }  # fmt: skip
    result = {"config": config, "seeds": [0], "differences": found, "seconds_of_a_step": seconds}
    timing.keep("peers", chosen, result)


if __name__ == "__main__":
    main()
