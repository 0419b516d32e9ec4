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


LIMITED = """
import resource, sys
from progmem.cli import main
from progmem.data import content_hash, quality, windows
import progmem.check, progmem.embed, progmem.training.pretrain  # whose own memory does not count

def size(name):
    with open("/proc/self/status") as file:
        return 1024 * int(file.read().split(f"{name}:")[1].split()[0])

windows.MAX_CACHE_BYTES, windows.VALUES, quality.CHUNK = 2**24, 2**19, 2**19
most, *command = sys.argv[1:]
before = size("VmSize")
if most != "any":
    bound = size("VmData") + int(most)
    resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
assert main(command) == 0
print("bytes:", size("VmPeak") - before)
"""
READ_WHOLE = """
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
LENGTHS, CHANNELS = {"small": 64_000, "large": 600_000}, 64
MORE = 8 * CHANNELS * (LENGTHS["large"] - LENGTHS["small"])  # bytes of the large file, 274 MB


def make_file(folder, length):
    """After its first quarter or less there are zeros, which are not on the disk."""
    folder.mkdir()
    x = np.lib.format.open_memmap(folder / "big.npy", "w+", "float64", (length, CHANNELS))
    x[:16_000] = np.random.default_rng(0).normal(size=(16_000, CHANNELS))


def run(folder, command, most="any", code=LIMITED):
    """A command in a process that may have ``most`` bytes beside those of files it has mapped.

    The kernel refuses any more, so whether the command ends well does not hang on when one looks.
    """
    # what malloc keeps of freed memory would differ from run to run
    steady = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536",
              "CUDA_VISIBLE_DEVICES": ""}  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", code, str(most), *COMMANDS[command]], cwd=folder,
        capture_output=True, text=True, env=os.environ | steady,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_a_file_nine_times_as_large_needs_no_more_memory(tmp_path):
    for name, length in LENGTHS.items():
        make_file(tmp_path / name, length)
    for command in COMMANDS:
        done = run(tmp_path / "small", command)
        assert done.returncode == 0, done.stderr[-2000:]
        most = int(done.stdout.rsplit("bytes:", 1)[1]) + MORE // 2
        if command == "check":  # that a whole file is read would be noticed
            whole = run(tmp_path / "large", command, most, READ_WHOLE + LIMITED)
            assert whole.returncode != 0 and "emory" in whole.stderr
        done = run(tmp_path / "large", command, most)
        assert done.returncode == 0, done.stderr[-2000:]
    tokens = np.load(tmp_path / "large/out/tokens.npy", mmap_mode="r")
    assert len(tokens) == LENGTHS["large"] // 64 and np.isfinite(tokens[-1]).all()
