"""Threads sleep while they wait, but only beside other work and where nobody has decided."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import progmem
from progmem import threads


@pytest.fixture
def running(tmp_path, monkeypatch):
    """Tell how many threads run on the machine, this one included, look by look."""
    monkeypatch.setattr(threads, "LOADAVG", tmp_path / "loadavg")
    monkeypatch.delitem(sys.modules, "torch")
    two = SimpleNamespace(environ={}, sched_getaffinity=lambda _: {0, 1}, cpu_count=lambda: 2)
    monkeypatch.setattr(threads, "os", two)
    looks = iter(())

    def tell(*counts):
        nonlocal looks
        looks = iter(counts)
        (tmp_path / "loadavg").touch()

    def read(path):
        count = next(looks)
        return f"9.10 8.20 7.30 {count}/345 6789\n" if isinstance(count, int) else count

    monkeypatch.setattr(threads.Path, "read_text", read)
    monkeypatch.setattr(threads.time, "sleep", lambda _: None)
    return tell


@pytest.mark.parametrize(
    "looks, policy",
    [
        ([1] * 9, None),  # this thread alone, whatever the last minutes were
        ([3, 1, 1, 2, 1, 1, 1, 1, 1], None),  # others for a moment
        ([2, 1, 2, 2, 1, 2, 3, 2, 1], "PASSIVE"),
        ([17] * 9, "PASSIVE"),
    ],
)
def test_threads_sleep_where_others_run_most_of_the_time(running, looks, policy):
    running(*looks)
    threads.sleep_beside_others()
    assert threads.os.environ.get("OMP_WAIT_POLICY") == policy


def test_on_some_of_the_cores_some_of_the_others_count(running, monkeypatch):
    for cores, others in ((2, 6), (8, 1.5)):
        running(*[7] * 9)
        monkeypatch.setattr(threads.os, "cpu_count", lambda cores=cores: cores)
        assert threads.others_running() == others


@pytest.mark.parametrize("text", ["", "1 2 3", "1 2 3 x/y 4", "1 2 3 /5 6"])
def test_where_nothing_is_known_of_others_nothing_is_done(running, text):
    running(text)
    assert threads.others_running() == 0


@pytest.mark.parametrize("name", threads.CHOSEN)
def test_who_has_decided_is_not_overruled(running, name):
    running(*[9] * 9)
    threads.os.environ[name] = "5"
    threads.sleep_beside_others()
    assert threads.os.environ == {name: "5"}


def test_once_torch_is_loaded_it_is_too_late(running, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", object())
    running(*[9] * 9)
    threads.sleep_beside_others()
    assert not threads.os.environ


def in_another_process(code, **environment):
    env = {n: v for n, v in os.environ.items() if n not in threads.CHOSEN}
    env |= {"PYTHONPATH": str(Path(progmem.__file__).parents[1]), **environment}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)


STOPS_AT_TORCH = """
import os, statistics, sys

class Stop:
    def find_spec(self, name, *rest):
        if name == "torch":
            print(os.environ.get("OMP_WAIT_POLICY"))
            sys.exit()

sys.meta_path.insert(0, Stop())
statistics.median = lambda looks: 1  # others are at work
import progmem
"""


def test_the_package_decides_before_it_loads_torch():
    expected = b"PASSIVE\n" if threads.LOADAVG.is_file() else b"None\n"
    assert in_another_process(STOPS_AT_TORCH).stdout == expected


@pytest.mark.slow
def test_how_threads_wait_changes_no_bit():
    code = (
        "import torch, progmem; torch.manual_seed(0); torch.set_num_threads(2); "
        "model = progmem.PMT(progmem.ModelConfig(channels=2, size='tiny')); "
        "z = model.encode(torch.randn(16, 400, 2)); "
        "import sys; sys.stdout.buffer.write(z.tokens.numpy().tobytes())"
    )
    told = [
        in_another_process(code, OMP_NUM_THREADS="2", OMP_WAIT_POLICY=policy).stdout
        for policy in ("ACTIVE", "PASSIVE")
    ]
    assert told[0] == told[1] and len(told[0]) > 10**5
