"""Shared settings of the tests: fixed threads, no network but loopback, fast unless asked."""

import gc
import os
import resource
import socket

# Two workers share two cores. Linear algebra reads this when it is loaded, other processes inherit
# it: under load, threads that wait for each other made small products several times slower.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are first imported


def pytest_collection_finish():
    """What is loaded by now is never garbage, and no collection need look at it again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    gc.unfreeze()  # nanobind would take what is left for leaks


def pytest_make_parametrize_id(val, argname):
    """A file's bytes do not name a test: a zip holds the second it was made in."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture(autouse=True)
def _only_loopback(monkeypatch):
    connect = socket.socket.connect

    def guarded(self, address):
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise RuntimeError(f"a test tried to reach {address}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The folder of an uninterrupted small run."""
    from training_setup import run

    folder = tmp_path_factory.mktemp("finished") / "run"
    run(folder)
    return folder


@pytest.fixture
def made_sets(tmp_path, monkeypatch):
    """A folder of small made files that are taken for the right ones."""
    from made_sets import write_files

    from progmem.data import datasets

    monkeypatch.delenv(datasets.DATA_VARIABLE, raising=False)
    monkeypatch.setattr(datasets, "FILES", write_files(tmp_path))
    return tmp_path


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The folder of a small model of two channels."""
    import progmem

    folder = tmp_path_factory.mktemp("model") / "model"
    torch.manual_seed(0)
    progmem.PMT(progmem.ModelConfig.for_length(60, 2, dim=32, heads=2, blocks=1)).save(folder)
    return folder


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory):
    """The folder of a short run without labels, for trainings with them."""
    from finetune_setup import SHAPE, made

    from progmem.config import read_config
    from progmem.training.pretrain import pretrain

    folder = tmp_path_factory.mktemp("pretrained") / "run"
    settings = [*SHAPE, "train.epochs=1", "train.device=cpu", "model.dropout=0.2"]
    pretrain(made().recordings, folder, read_config(None, settings), log=None)
    return folder


@pytest.fixture
def small_files():
    """No file may become larger than 64 kB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
