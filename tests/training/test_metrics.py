"""The metrics of a run, and what they warn of."""

import errno

import numpy as np
import pytest
import torch
from training_setup import run, small_config

from progmem.data.recordings import Recording
from progmem.errors import WriteError
from progmem.training import metrics
from progmem.training.metrics import spread
from progmem.training.pretrain import pretrain


@pytest.mark.parametrize("lr, collapsed", [("1", 1), ("1e-3", 0)])
def test_a_run_that_collapses_is_warned_about_once(tmp_path, lr, collapsed):
    said = []
    rng = np.random.default_rng(0)
    noise = [Recording(str(i), rng.normal(size=(60, 2))) for i in range(16)]
    settings = ["train.batch_size=16", "train.epochs=12", f"train.lr={lr}", "train.log_every=2"]
    pretrain(noise, tmp_path / "run", small_config(*settings), log=said.append)
    assert sum("the sequence vectors have collapsed" in line for line in said) == collapsed


@pytest.mark.parametrize(
    "number, error, message",
    [
        (errno.ENOSPC, WriteError, "metrics.jsonl was not written: No space left on device; what"),
        (errno.EIO, OSError, "another"),
    ],
)
def test_metrics_that_cannot_be_written_are_told_of_by_their_file(tmp_path, number, error, message):
    log = metrics.MetricsLog(
        tmp_path, small_config().train, first=0, total=9, labels=False, log=print
    )
    log.file.close()

    class Full:
        def write(self, _):
            raise OSError(number, "another")

    log.file = Full()
    with pytest.raises(error, match=message) as caught:
        log.write(1, {}, 1)
    assert type(caught.value) is error


def logged(sequence, *, labels=False):
    """What is said of the sequence vectors of a step."""
    said = []
    log = metrics.MetricsLog(
        None, small_config("train.log_every=1").train, first=0, total=9, labels=labels,
        log=said.append,
    )  # fmt: skip
    step = metrics.StepMetrics(0, ("gradient",), torch.ones(1), sequence, len(sequence))
    values = log._logged(step, step.read(), 0.1)
    return values, said


def test_vectors_that_hardly_differ_or_lie_on_a_line_have_collapsed():
    vectors = torch.randn(16, 8)
    on_a_line = torch.randn(16, 1) * torch.randn(8)
    for sequence, labels, collapsed in (
        (vectors, False, False),
        (0.01 * vectors, False, True),
        (0.01 * vectors, True, True),
        (on_a_line, False, True),
        (on_a_line, True, False),  # as two classes do
        (on_a_line[:4], False, False),  # few rows have a low rank anyway
    ):
        values, said = logged(sequence, labels=labels)
        assert bool(said) == collapsed
        assert {"feature_sd", "effective_rank"} <= values.keys()


def test_effective_rank_and_spread_of_known_vectors():
    assert spread(torch.ones(9, 4)) == {"feature_sd": 0.0, "effective_rank": 1.0}
    square = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    assert spread(square)["effective_rank"] == pytest.approx(2.0)


def test_one_row_has_no_spread_to_tell_of():
    """As one of several processes may have."""
    values, said = logged(torch.ones(1, 4))
    assert values.keys() == {"lr", "gradient"} and not said


def test_steps_of_seconds_are_told_one_by_one(tmp_path, monkeypatch):
    """Case 8 of the users: no line in 78 s, because only every fiftieth step had one."""
    monkeypatch.setattr(metrics, "SLOW", -1.0)  # as if each step had taken longer than that
    said = []
    run(tmp_path / "run", log=said.append)
    assert said[1].endswith("training ...")
    steps = [line for line in said if line.startswith("step ")]
    assert len(steps) == int(steps[-1].split("/")[1].split()[0])
    assert all("left" in line for line in steps)
