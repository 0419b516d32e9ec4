"""A model as a file for other software: ONNX, or a program for `torch.export.load`.

The file holds what `PMT.encode` computes, normalisation included, for any batch and length. It is
run on made series before it is kept, and is refused where it differs from `encode`. The values of
a user's series are not checked any more: infinite ones give what is not finite.

Shapes: B series, L samples, C channels.
"""

import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx.experimental import _config

from progmem.errors import InputError
from progmem.files import check_output, unfinished
from progmem.geometry import tokens_until
from progmem.model.saving import load
from progmem.progress import Log, progress
from progmem.series import Moments

if TYPE_CHECKING:
    from progmem.model.pmt import PMT

INPUTS = ("x", "lengths")
CLOSE = 1e-5  # times the largest value of an output
Run = Callable[[Tensor, Tensor], dict[str, Any]]  # of an exported model


class _Encode(nn.Module):
    """`PMT.encode` as tensor code: series with NaN where missing, and their lengths."""

    def __init__(self, model: "PMT") -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        """The parts of an `Encoding` of ``x`` (B, L, C) that this model has, by name."""
        inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        observed = inside[..., None] & ~x.isnan()
        values = torch.where(observed, x.double(), 0.0)
        mean, scale = self._moments(values, observed)
        x = torch.where(observed, (values - mean) / scale, 0.0).to(x.dtype)
        encoding = self.model(x, observed, lengths=lengths)
        return {n: t for n, t in encoding._asdict().items() if isinstance(t, Tensor)}

    def _moments(self, values: Tensor, observed: Tensor) -> Moments:
        """`Series.own_moments`, or those of the training data."""
        if self.model.cfg.normalise != "series":
            return self.model.stats.moments
        count = observed.sum(1, keepdim=True).clamp(min=1)
        mean = values.sum(1, keepdim=True) / count  # (B, 1, C)
        away = torch.where(observed, values - mean, 0.0)
        scale = (away.square().sum(1, keepdim=True) / count).sqrt()
        low = torch.where(observed, values, torch.inf).amin(1, keepdim=True)
        high = torch.where(observed, values, -torch.inf).amax(1, keepdim=True)
        return Moments(mean, torch.where((low < high) & (scale > 0), scale, 1.0))


def export(model: "PMT", path: Path, *, log: Log | None = None) -> None:
    """Write ``model`` to ``path``, whose ending says in which format."""
    if path.suffix not in FORMATS:
        raise InputError(f"a model is exported to a .onnx or .pt2 file, got {path}")
    check_output(path)
    make = FORMATS[path.suffix]
    whole = copy.deepcopy(model).cpu().float().eval().requires_grad_(False)
    examples = [*_examples(whole)]
    doing = "writing it, and comparing what it gives with what the model gives"
    with (
        progress(doing, 1 + len(examples), log=log) as advance,
        unfinished(path) as new, _quiet(), torch.no_grad(),
    ):  # fmt: skip
        run = make(_Encode(whole), examples[0], new)
        advance(1)
        for x, lengths in examples:
            _compare(run(x, lengths), whole, x, lengths)
            advance(1)


def export_file(folder: Path, path: Path, *, log: Log | None = print) -> None:
    """What ``progmem export`` does: the model of ``folder`` as the file ``path``."""
    from progmem.model.pmt import only_pmt

    export(only_pmt(load(folder), "an export"), path, log=log)
    if log is None:
        return
    more = "torch.export.load(FILE).module(check_guards=False)"
    with_what = {".onnx": "onnxruntime.InferenceSession(FILE)", ".pt2": more}[path.suffix]
    log(f"written: {path}, its outputs within {CLOSE:g} of the model's; next: {with_what}")


def _examples(model: "PMT") -> Iterator[tuple[Tensor, Tensor]]:
    """Made series as long as some windows, of one token, and of one window, with gaps."""
    cfg, generator = model.cfg, torch.Generator().manual_seed(0)
    for batch, windows in ((3, 4), (1, 1), (2, 1), (5, 9)):
        tokens = tokens_until(cfg, windows) if batch > 1 else 1
        time = cfg.patch + tokens * cfg.patch_stride - 1
        x = torch.randn(batch, time, cfg.channels, generator=generator)
        x[torch.rand(x.shape, generator=generator) < 0.1] = torch.nan
        x[-1, time // 3 : time // 2] = torch.nan
        lengths = torch.randint(cfg.patch, time + 1, (batch,), generator=generator)
        lengths[0] = time
        yield (x * model.stats.scale + model.stats.mean).float(), lengths


def _compare(found: dict[str, Any], model: "PMT", x: Tensor, lengths: Tensor) -> None:
    """Refuse an exported model whose answer differs from that of `encode`."""
    for name, right in model.encode(x, lengths=lengths)._asdict().items():
        if not isinstance(right, Tensor):
            continue
        theirs, ours = torch.as_tensor(np.asarray(found[name])).double(), right.double()
        assert theirs.shape == ours.shape, (name, theirs.shape, ours.shape)
        away = float((theirs - ours).abs().max())
        if not away <= CLOSE * max(1.0, float(ours.abs().max())):
            raise InputError(
                f"this model cannot be exported: {name} of series of shape {tuple(x.shape)} would "
                f"differ by {away:.1e} from what encode gives"
            )


def _program(form: _Encode, example: tuple[Tensor, Tensor]) -> torch.export.ExportedProgram:
    """``form`` with batch and time left open."""
    any_size = torch.export.Dim.DYNAMIC
    # by default sizes of 1 would be another program
    with cast(Any, _config).patch(backed_size_oblivious=True):
        return torch.export.export(
            form,
            example,
            dynamic_shapes={"x": {0: any_size, 1: any_size}, "lengths": {0: any_size}},
        )


def _make_program(form: _Encode, example: tuple[Tensor, Tensor], path: Path) -> Run:
    program = io.BytesIO()  # on a full disk, torch's own writer would abort the process
    torch.export.save(_program(form, example), program)
    path.write_bytes(program.getbuffer())
    with path.open("rb") as file:
        # torch also guards what it has guessed of memory layouts, which refuses sizes of 1
        return torch.export.load(file).module(check_guards=False)


def _make_onnx(form: _Encode, example: tuple[Tensor, Tensor], path: Path) -> Run:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            import_module(package)
        except ImportError as error:
            raise InputError(
                f"a .onnx file needs {package}: pip install 'progmem[export]'"
            ) from error
    import onnxruntime

    names = list(form(*example))
    found = torch.onnx.export(
        _program(form, example), input_names=INPUTS, output_names=names, dynamo=True, verbose=False
    )
    assert found is not None
    found.model.metadata_props["progmem"] = json.dumps(_note(form.model))
    found.save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(x: Tensor, lengths: Tensor) -> dict[str, Any]:
        inputs = dict(zip(INPUTS, (x.numpy(), lengths.numpy()), strict=True))
        return dict(zip(names, session.run(names, inputs), strict=True))

    return run


def _note(model: "PMT") -> dict[str, Any]:
    """What a user of the file may want to know of the model."""
    import progmem

    return {
        "version": progmem.__version__, "config": model.cfg.to_dict(), "data": model.info._asdict()
    }  # fmt: skip


FORMATS: dict[str, Callable[[_Encode, tuple[Tensor, Tensor], Path], Run]] = {
    ".onnx": _make_onnx,
    ".pt2": _make_program,
}


@contextmanager
def _quiet() -> Iterator[None]:
    """What exporters say of themselves is of no use to who exports."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
