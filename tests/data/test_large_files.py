"""Recordings that are larger than memory, or more than a process may open."""

import os
import subprocess
import sys

import numpy as np
import pytest

import progmem

resource = pytest.importorskip("resource")


def test_more_files_are_read_than_a_process_may_open_at_first(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < 400:
        pytest.skip("the limit cannot be raised here")
    for i in range(200):
        np.save(tmp_path / f"{i:03}.npy", np.full((20, 1), i, dtype=np.float32))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (120, before[1]))
        found = progmem.read(tmp_path)
        assert [int(values[0, 0]) for values in found.values] == list(range(200))
        assert all(isinstance(values, np.memmap) for values in found.values)
    finally:
        del found
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


MEASURED = """
import threading, time
from progmem.cli import main
from progmem.data import quality, windows
import progmem.check, progmem.embed, progmem.training.pretrain  # whose own memory does not count

def used():
    with open("/proc/self/status") as file:
        return int(file.read().split("RssAnon:")[1].split()[0]) / 1000

def watch():
    while True:
        peaks[-1] = max(peaks[-1], used())
        time.sleep(0.01)

windows.MAX_CACHE_BYTES, windows.VALUES, quality.CHUNK = 2**24, 2**19, 2**13
before, peaks = used(), [0]
threading.Thread(target=watch, daemon=True).start()
small = ["model.size=tiny", "model.patch=64", "model.patch_stride=64", "train.steps=2",
         "train.device=cpu", "train.batch_size=4"]
for command in (["check", "big.npy"], ["pretrain", "big.npy", "-o", "run", *small],
                ["embed", "run/model", "big.npy", "-o", "out"]):
    assert main(command) == 0
    peaks.append(0)
print("MB:", *(round(peak - before) for peak in peaks[:-1]))
"""


def memory_needed(folder, length, channels=64):
    """MB that check, pretrain and embed need for a file of so many samples."""
    folder.mkdir()
    x = np.lib.format.open_memmap(folder / "big.npy", "w+", "float32", (length, channels))
    for start in range(0, length, 8_000):
        x[start : start + 8_000] = np.random.default_rng(start).normal(size=(8_000, channels))
    del x
    command = [sys.executable, "-c", MEASURED]
    # what threads hold and what malloc keeps of freed memory would differ from run to run
    steady = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=os.environ | steady
    )
    assert done.returncode == 0, done.stderr[-2000:]
    tokens = np.load(folder / "out/tokens.npy", mmap_mode="r")
    assert len(tokens) == length // 64 and np.isfinite(tokens[-1]).all()
    return np.array([int(word) for word in done.stdout.rsplit("MB:", 1)[1].split()])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_the_memory_that_is_needed_does_not_grow_with_the_file(tmp_path):
    small = memory_needed(tmp_path / "small", 64_000)  # 16 MB
    large = memory_needed(tmp_path / "large", 512_000)  # 131 MB
    assert (large - small < 30).all(), (small, large)  # a quarter of what the file has more
