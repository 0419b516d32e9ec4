"""TS-TCC and SoftCLT on it beside their public code: the same numbers.

    git clone https://github.com/emadeldeen24/TS-TCC DIR     # their code stays outside this project
    git clone https://github.com/seunghan96/softclt OTHER
    python -m benchmarks.peers_cnn --tstcc DIR --softclt OTHER/softclt_catcc

The networks of TS-TCC and ours get the same weights and two views of 16 series of 128 samples in 9
channels, in training mode without dropout, and contexts that end at the first, a middle and the
last token that is possible. Compared are the tokens, each loss, and the gradients by their sum of
every weight. Of SoftCLT on TS-TCC, whose training cannot run as it is published, the soft contrasts
of drawn blocks are compared, and their gradients. A difference is relative to the largest entry of
what is compared, and the largest of all contexts counts. Writes results/peers_cnn/cpu.json.

Shapes: B series, T positions of a block.
"""

import argparse
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.baselines_tables import peers_cnn_table
from benchmarks.peers import code_in, default_dtype, difference
from progmem.baselines import make_encoder, tstcc
from progmem.baselines.cnn_task import Batch, View
from progmem.baselines.soft_tstcc import soft_contrasts
from progmem.report import record
from progmem.training.distributed import OneProcess

ROWS, LENGTH, CHANNELS = 16, 128, 9
TOKENS, AHEAD, TEMPERATURE = 18, 6, 0.2
PRESENTS = (0, 3, TOKENS - AHEAD - 1)  # tokens at which contexts end
BLOCKS = ((65, 32), (34, 64), (18, 128))  # positions and widths that are compared softly


def redraw(module: nn.Module) -> None:
    """Draw the weights and statistics of norms, which are the same for all features at first."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d | nn.LayerNorm):
            nn.init.normal_(part.weight, 1.0, 0.2)
            nn.init.normal_(part.bias)


def without_dropout(module: nn.Module) -> nn.Module:
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return module.train()


Pair = tuple[Tensor, list[Tensor]]  # a weight of ours, and those of theirs that it is made of


def same_weights(learner: tstcc.TSTCCLearner, net: Any, contrast: Any) -> list[Pair]:
    """Give ours the weights of theirs, and say which are which."""
    theirs = contrast.seq_transformer
    modules: list[tuple[Any, Any]] = [(learner.context.embed, theirs.patch_to_embedding)]
    convolutions = (net.conv_block1, net.conv_block2, net.conv_block3)
    for block, other in zip(learner.encoder.network.blocks, convolutions, strict=True):
        modules += [(block.conv, other[0]), (block.norm, other[1])]
    layers = zip(learner.context.layers, theirs.transformer.layers, strict=True)
    for layer, (attention, feed) in layers:
        own: Any = layer
        attend, forward = attention.fn.fn, feed.fn.fn.net
        modules += [
            (own.norm, attention.fn.norm), (own.qkv, attend.to_qkv), (own.out, attend.to_out[0]),
            (own.feed_norm, feed.fn.norm), (own.fc1, forward[0]), (own.fc2, forward[3]),
        ]  # fmt: skip
    head, other = learner.project, contrast.projection_head
    modules += [(head.first, other[0]), (head.norm, other[1]), (head.last, other[3])]
    pairs: list[Pair] = [
        (p, [q]) for a, b in modules for p, q in zip(a.parameters(), b.parameters(), strict=True)
    ]
    pairs.append((learner.context.start, [theirs.c_token]))
    pairs.append((learner.predict.map.weight, [one.weight for one in contrast.Wk]))
    pairs.append((learner.predict.map.bias, [one.bias for one in contrast.Wk]))
    with torch.no_grad():
        for weight, parts in pairs:
            weight.copy_(torch.cat(parts).view_as(weight))
    return pairs


def gradients(pairs: list[Pair]) -> tuple[Tensor, Tensor]:
    """Of all weights, ours and theirs: (weights,) each."""
    own = [weight.grad.flatten() for weight, _ in pairs if weight.grad is not None]
    theirs = [part.grad.flatten() for _, parts in pairs for part in parts if part.grad is not None]
    return torch.cat(own), torch.cat(theirs)


def compare(code: dict[str, Any], dtype: torch.dtype) -> dict[str, float]:
    """The largest differences of TS-TCC."""
    torch.manual_seed(0)
    net, contrast = (without_dropout(part) for part in (code["net"](), code["contrast"]()))
    for part in (net, contrast):
        redraw(part)
    nt_xent = code["nt_xent"](ROWS)
    encoder = make_encoder("tstcc", channels=CHANNELS, dropout=0.0).to(dtype)
    learner = tstcc.TSTCCLearner(encoder, encoder.cfg).to(dtype).train()
    pairs = same_weights(learner, net, contrast)
    x = torch.randn(2, ROWS, LENGTH, CHANNELS, dtype=dtype)
    views = (View(x[0], None, None), View(x[1], None, None))
    found: dict[str, float] = {}
    for present in PRESENTS:
        for part in (learner, net, contrast):
            part.zero_grad()
        features = [net(view.mT)[1] for view in x]  # (B, D, K)
        unit = [F.normalize(each, dim=1) for each in features]
        with patch("torch.randint", return_value=torch.tensor([present])):
            first, second = contrast(*unit), contrast(*unit[::-1])
        theirs = {
            "temporal contrast": first[0] + second[0],
            "NT-Xent of contexts": nt_xent(first[1], second[1]),
        }
        theirs["loss"] = theirs["temporal contrast"] + 0.7 * theirs["NT-Xent of contexts"]
        share, none = (present + 0.5) / (TOKENS - AHEAD), torch.empty(0)
        draws = tstcc.Draws(none, none, none, none, torch.full((ROWS,), share, dtype=dtype))
        with patch.object(tstcc, "CONTEXT_DROPOUT", 0.0):
            embedded, _ = learner(views, draws)
        parts = learner.losses(embedded, batch_of(views, draws))
        own = {
            "temporal contrast": parts["temporal"], "NT-Xent of contexts": parts["contextual"],
            "loss": parts["loss"],
        }  # fmt: skip
        torch.autograd.backward([own["loss"], theirs["loss"]])
        tokens = encoder.network.outputs(x[0])[-1]
        apart = {"tokens": difference(tokens, features[0].mT)}
        apart |= {name: difference(own[name], value) for name, value in theirs.items()}
        apart["gradients"] = difference(*gradients(pairs))
        found = {name: max(value, found.get(name, 0.0)) for name, value in apart.items()}
    return found


def batch_of(views: Any, draws: Any, alike: Tensor | None = None, rows: int = ROWS) -> Batch:
    """A batch of one process, whose rows share no samples."""
    lengths, apart = torch.full((rows,), LENGTH), torch.eye(rows, dtype=torch.bool)
    return Batch(rows, OneProcess(rows), views, lengths, draws, apart, alike, LENGTH)


def compare_soft(losses: Any, lags: Any, dtype: torch.dtype) -> dict[str, float]:
    """The largest differences of the soft contrasts, with drawn weights of series."""
    torch.manual_seed(0)
    rows = 6
    outputs = [torch.randn(2, rows, T, width, dtype=dtype).requires_grad_() for T, width in BLOCKS]
    alike = torch.rand(rows, rows, dtype=dtype).fill_diagonal_(1.0)
    blocks = tuple((output[0], output[1]) for output in outputs)
    own = soft_contrasts(blocks, batch_of((), None, alike, rows), sharpness=1.0)
    of_rows = lags.dup_matrix(alike)
    instance = temporal = torch.zeros((), dtype=dtype)
    for depth, (first, second) in enumerate(blocks):
        near = torch.tensor(lags.timelag_sigmoid(first.shape[1], 2**depth), dtype=dtype)
        instance = instance + losses.inst_CL_soft(first, second, *of_rows)
        temporal = temporal + losses.temp_CL_soft(first, second, *lags.dup_matrix(near))
    both = (own, (instance, temporal))
    gradient, their_gradient = (torch.autograd.grad(0.5 * a + 0.5 * b, outputs) for a, b in both)
    return {
        "instance contrast": difference(own[0], instance),
        "temporal contrast": difference(own[1], temporal),
        "gradients": max(map(difference, gradient, their_gradient)),
    }


@contextmanager
def float_is(dtype: torch.dtype) -> Iterator[None]:
    """Inside, ``tensor.float()``, by which their buffers are made, gives ``dtype``."""
    with default_dtype(dtype), patch.object(Tensor, "float", lambda self: self.to(dtype)):
        yield


def load_code(tstcc_folder: Path) -> dict[str, Any]:
    """The parts of TS-TCC's code, for HAR."""
    with code_in(tstcc_folder):
        names = ("models.model", "models.TC", "models.loss", "config_files.HAR_Configs")
        model, contrast, loss, settings = (importlib.import_module(name) for name in names)
    cfg = settings.Config()
    return {
        "net": lambda: model.base_Model(cfg),
        "contrast": lambda: contrast.TC(cfg, "cpu"),
        "nt_xent": lambda rows: loss.NTXentLoss("cpu", rows, TEMPERATURE, True),
    }


def load_soft(folder: Path) -> tuple[ModuleType, ModuleType]:
    """The soft losses of SoftCLT on TS-TCC, and its weights of times."""
    with code_in(folder):
        losses = importlib.import_module("models.soft_losses")
        return losses, importlib.import_module("models.timelags")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tstcc", type=Path, required=True, help="a checkout of TS-TCC's code")
    parser.add_argument("--softclt", type=Path, required=True, help="its folder softclt_catcc")
    parser.add_argument("--commit", help="where there is no repository to ask")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    chosen = parser.parse_args()
    code, soft = load_code(chosen.tstcc), load_soft(chosen.softclt)
    found: dict[str, dict[str, dict[str, float]]] = {"TS-TCC": {}, "SoftCLT on TS-TCC": {}}
    for dtype in (torch.float64, torch.float32):
        name = str(dtype).removeprefix("torch.")
        with float_is(dtype):
            found["TS-TCC"][name] = compare(code, dtype)
            found["SoftCLT on TS-TCC"][name] = compare_soft(*soft, dtype)
    config = {"rows": ROWS, "length": LENGTH, "channels": CHANNELS, "contexts_end_at": PRESENTS}
    result = {
        "config": {**config, "blocks": BLOCKS}, "seeds": [0],
        **record.environment("cpu", chosen.commit), "differences": found,
    }  # fmt: skip
    print(f"written: {record.save('peers_cnn', 'cpu', result, folder=chosen.out)}\n")
    print(peers_cnn_table([result]))


if __name__ == "__main__":
    main()
