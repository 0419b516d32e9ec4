"""``progmem explore``: from a model and recordings to a page that is being served."""

import importlib
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from pathlib import Path

from progmem import explore
from progmem.config import ModelConfig
from progmem.data.options import BY_RULE, ReadOptions
from progmem.data.recordings import Recordings
from progmem.data.sample import SAMPLING_RATE, load_sample
from progmem.errors import InputError
from progmem.explore.findings import Findings
from progmem.explore.follow import INPUT, check_source, following
from progmem.explore.labelling import labels_of_file
from progmem.explore.live import Live
from progmem.explore.server import PORT, serving
from progmem.explore.session import Session
from progmem.files import check_outside
from progmem.model.pmt import PMT, only_pmt
from progmem.model.saving import load
from progmem.names import printable
from progmem.progress import Log, silent
from progmem.training.run_folder import read_as_trained, run_of

OUT = Path("progmem-explore")
DEMO = Path("progmem-demo/run/model")
MISSING = "the page needs more packages: pip install 'progmem[explore]'"
SAMPLE_WINDOW = 200  # samples that a model for the built-in sample is made for, 4 s


def serve_page(
    model: Path | None = None,
    data: Path | None = None,
    out: Path = OUT,
    *,
    labels: Path | None = None,
    follow: Path | None = None,
    port: int = PORT,
    options: ReadOptions = BY_RULE,
    log: Log | None = print,
) -> None:
    """Serve the page of recordings until the program is interrupted.

    Args:
        model: folder of a run or a model; without it and ``data``, the built-in sample is shown.
        out: folder for the index, the labels and all that the page writes.
        labels: a file of labels that are added where there are none yet.
        follow: a file that grows, or "-" for standard input: lines of samples that are shown live.
        port: of this machine; 0 takes one that is free.
    """
    with page_of(
        model, data, out, labels=labels, follow=follow, port=port, options=options, log=log
    ) as address:
        (log or print)(f"open {address} in a browser; Ctrl-C ends it, labels are kept in {out}")
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            (log or silent)("")


@contextmanager
def page_of(
    model: Path | None,
    data: Path | None,
    out: Path,
    *,
    labels: Path | None = None,
    follow: Path | None = None,
    port: int = PORT,
    options: ReadOptions = BY_RULE,
    log: Log | None = None,
) -> Iterator[str]:
    """The address of the page, as long as it is served."""
    try:
        from progmem.explore.page import make_app

        importlib.import_module("plotly_resampler")  # which figures load only when they draw
    except ModuleNotFoundError as error:
        raise InputError(f"{MISSING} ({error.name} is not installed)") from error
    if model is not None and data is None:
        raise InputError(f"which recordings? Give them after {model}, or nothing for the sample")
    check_outside(out, data)
    if follow is not None:
        check_source(follow)
    with Session(out) as session:  # which keeps other programs out
        loaded, recordings = _sample(log) if model is None else _own(model, data, options, log)
        idx = explore.index(loaded, recordings, out / "index", log=log)
        if labels is not None:
            count = session.add(
                labels_of_file(recordings, data or Path("the sample"), labels, limit=options.limit)
            )
            (log or silent)(f"labels of {labels} that are new here: {count}")
        live = None if follow is None else Live(loaded, idx, _stream_name(follow))
        findings = Findings(idx, recordings, session, live)
        with ExitStack() as open_:
            if live is not None and follow is not None:
                open_.enter_context(following(live, follow, loaded.info.missing))
            open_.enter_context(closing(findings))
            address = open_.enter_context(serving(make_app(findings, out), port))
            findings.begin()
            yield address


def _stream_name(source: Path) -> str:
    """Of a file its name, by which its labels are known again; what comes once has its time."""
    if source != INPUT:
        return printable(source.name)
    return f"live since {datetime.now():%Y-%m-%d %H:%M:%S}"


def _own(
    model: Path, data: Path | None, options: ReadOptions, log: Log | None
) -> tuple[PMT, Recordings]:
    assert data is not None
    folder = model / "model" if (model / "model").is_dir() else model
    loaded = only_pmt(load(folder, device="auto"), "an index")
    return loaded, read_as_trained(data, run_of(folder), options, loaded.info, log=log)


def _sample(log: Log | None) -> tuple[PMT, Recordings]:
    """The built-in sample and the demonstration's model, or an untrained one."""
    sample = load_sample()
    recordings = Recordings(
        tuple(
            recording._replace(columns=tuple(sample.channels), rate=SAMPLING_RATE)
            for recording in sample.recordings
        )
    )
    if DEMO.is_dir():
        (log or silent)(f"the built-in sample, with the model {DEMO}")
        return only_pmt(load(DEMO, device="auto"), "an index"), recordings
    (log or silent)("the built-in sample, with an untrained model; progmem demo trains one")
    channels = len(sample.channels)
    return PMT(ModelConfig.for_length(SAMPLE_WINDOW, channels=channels, size="tiny")), recordings
