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
import sys
from progmem.cli import main
from progmem.data import content_hash, quality, windows
import progmem.check, progmem.embed, progmem.training.pretrain  # whose own memory does not count

def size(name):
    with open("/proc/self/status") as file:
        return int(file.read().split(f"{name}:")[1].split()[0]) / 1000

windows.MAX_CACHE_BYTES, windows.VALUES, quality.CHUNK = 2**24, 2**19, 2**19
before = size("VmSize")
assert main(sys.argv[1:]) == 0
print("MB:", size("VmPeak") - before)
"""
READ_WHOLE = """
import sys
from progmem.data import reader
mapped = reader._read_npy

def read_whole(*given):
    found = mapped(*given)
    return found._replace(recordings=[r._replace(values=r.values[:] + 0) for r in found.recordings])

reader.SUFFIXES[".npy"] = read_whole
"""
SMALL = ["model.size=tiny", "model.patch=64", "model.patch_stride=64", "train.steps=2",
         "train.device=cpu", "train.batch_size=4"]  # fmt: skip
COMMANDS = {
    "check": ["check", "big.npy"],
    "pretrain": ["pretrain", "big.npy", "-o", "run", *SMALL],
    "embed": ["embed", "run/model", "big.npy", "-o", "out"],
}


def make_file(folder, length, channels=64):
    folder.mkdir()
    x = np.lib.format.open_memmap(folder / "big.npy", "w+", "float32", (length, channels))
    for start in range(0, length, 8_000):
        x[start : start + 8_000] = np.random.default_rng(start).normal(size=(8_000, channels))


def memory_needed(folder, command, code=MEASURED):
    """MB that a command maps at most, beside the files it reads and writes in pieces.

    The kernel keeps count of the most that was ever mapped, however short that was.
    """
    # what threads hold and what malloc keeps of freed memory would differ from run to run
    steady = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536",
              "CUDA_VISIBLE_DEVICES": ""}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code, *COMMANDS[command]], cwd=folder, capture_output=True,
        text=True, env=os.environ | steady,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    mapped = [folder / "big.npy", *(folder.glob("out/*.npy") if command == "embed" else ())]
    size = sum(file.stat().st_size for file in mapped) / 1000 / 1.024
    return float(done.stdout.rsplit("MB:", 1)[1]) - size / 1000


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_the_memory_that_is_needed_does_not_grow_with_the_file(tmp_path):
    small, large = tmp_path / "small", tmp_path / "large"
    make_file(small, 64_000)  # 16 MB
    make_file(large, 512_000)  # 131 MB
    more = {c: memory_needed(large, c) - memory_needed(small, c) for c in COMMANDS}
    assert max(more.values()) < 30, more  # a quarter of what the file has more
    tokens = np.load(large / "out/tokens.npy", mmap_mode="r")
    assert len(tokens) == 512_000 // 64 and np.isfinite(tokens[-1]).all()
    whole = READ_WHOLE + MEASURED
    more = memory_needed(large, "check", whole) - memory_needed(small, "check", whole)
    assert more > 100  # it would be noticed
