"""How torch's threads wait for each other, decided once, before torch is loaded.

Threads meet after every operation. OpenMP lets those that are first wait at work, for some
milliseconds, which is the fastest where each thread has a core of its own. Beside other work one of
them is often not running, and what the others do meanwhile takes the time that it waits for.
Threads that sleep instead leave their cores to it, but wake late, which costs more than a third of
the speed on a free machine. So they sleep on a busy machine only, which
`python -m benchmarks.busy_machine` measures. Fewer threads would do as well there, but they add up
in another order; this changes no bit.
"""

import os
import statistics
import sys
import time
from pathlib import Path

LOADAVG = Path("/proc/loadavg")  # of Linux; elsewhere nothing is known of others
LOOKS, BETWEEN = 9, 0.002  # at the processes that run, and seconds between two looks
CHOSEN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # whoever sets one of these has decided


def sleep_beside_others() -> None:
    """Let threads that wait sleep, if other processes are computing now."""
    if "torch" in sys.modules or any(name in os.environ for name in CHOSEN):
        return
    if others_running() >= 1:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def waiting() -> dict[str, str]:
    """What the environment says of how threads wait; nothing: they wait at work."""
    return {name: os.environ[name] for name in CHOSEN if name in os.environ}


def others_running() -> float:
    """How many other threads run or would on the cores of this process, as a median of some looks.

    Where it may use some of the cores only, the others are taken to be spread over all.
    """
    found = []
    for _ in range(LOOKS):
        try:
            found.append(int(LOADAVG.read_text().split()[3].split("/")[0]) - 1)
        except (OSError, ValueError, IndexError):
            return 0
        time.sleep(BETWEEN)
    return statistics.median(found) * len(os.sched_getaffinity(0)) / (os.cpu_count() or 1)
