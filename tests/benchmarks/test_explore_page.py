"""The benchmark of the page: what it makes is as it says, and a missed bound is said to be one."""

import subprocess
import sys
import time

import numpy as np
import pytest

from benchmarks import explore_page
from progmem import explore


def test_a_made_recording_has_an_index_that_finds_its_kinds(tmp_path):
    idx, recording = explore_page.made_recording(60_000, 6000, tmp_path)
    assert len(idx) == 6000 and recording.values.shape == (60_000, 3)
    spans = idx.windows("made")
    np.testing.assert_array_equal(spans[:, 1] - spans[:, 0], 10)
    low = idx.vectors("made").mean(1)
    states = explore.states(idx, explore_page.KINDS).labels["made"]
    assert low[states == 0].std() < low.std()
    assert explore.search(idx, "made", 500, 700, k=2)[0].end > 0
    surprise = explore.surprise(idx, "made")  # which the page draws before it counts as there
    assert surprise.shape == (6000,) and np.isfinite(surprise[20:]).all()


def test_the_table_says_what_is_reached_and_what_is_missed():
    rows = [
        {"what": "pan", "seconds": [0.7, 0.4, 0.6], "processor": [0.5, 0.3, 0.4]},
        {"what": "refit", "seconds": [1.2, 1.4], "processor": [0.2, 0.2]},
        {"what": "search on the page", "seconds": [0.5], "processor": [0.4]},
    ]
    result = {"config": {"samples": 1000, "cores": 2}, "load": 4.25, "rows": rows}
    _, _, *lines, _, note = explore_page.explore_page_table([result]).splitlines()
    assert lines == [
        "| 1,000 | pan | 0.5 s | 0.40 s | 0.60 s | reached | 0.30 s |",
        "| 1,000 | refit | 1 s | 1.20 s | 1.30 s | missed | 0.20 s |",
        "| 1,000 | search on the page | - | 0.50 s | 0.50 s |  | 0.40 s |",
    ]
    assert note.startswith("2 cores, which other work shared: 4.2 processes")


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_processor_time_is_that_of_this_program_and_of_what_it_has_started():
    before = explore_page.processor_seconds()
    code = "import time\nwhile time.process_time() < 0.5: pass\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as child:
        for _ in range(500):
            if explore_page.processor_seconds() - before >= 0.5:
                break
            time.sleep(0.02)
        else:
            raise AssertionError("the child's time was not counted")
        child.communicate(b"\n")
