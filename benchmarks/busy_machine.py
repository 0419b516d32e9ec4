"""Threads of a CPU beside other busy processes: what a step and `encode` lose by waiting.

    python -m benchmarks.busy_machine       # on a CPU, writes results/busy_machine/cpu.json

A process of each kind prepares its work and makes it for a moment when it is told to, one kind
after the other, beside so many processes that do nothing but compute. Kinds: one thread, as many
as there are cores, and as many that sleep while they wait (`progmem.threads`). What counts:

- speed alone: calls a second without the busy processes, over those of one thread.
- speed over share: calls a second, times the processor seconds that one thread needs for a call,
  over the share of a core that each of the busy processes got meanwhile. One thread that is held up
  by nothing but the scheduler has 1, two have up to 2. As both are measured together, other work on
  the machine falls out.
- work: calls in a processor second beside the busy processes, over those of one thread.

``setsid python -m benchmarks.busy_machine --ahead`` puts all of this before other work on the
machine for a minute or so (Linux, as root).
Other work that was measured at the same commit is kept, so that parts can be run apart.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

import progmem
from progmem.config import read_config
from progmem.report import record
from progmem.report.tables import markdown
from progmem.training.trainer import cpu_threads

BUSY = (0, 1, 2, 4)  # other processes
STEPS = 10**6  # of a training that is never finished


class Kind(NamedTuple):
    """How many threads a process has, and how they wait for each other."""

    threads: int
    environment: dict[str, str]


def kinds(cores: int) -> dict[str, Kind]:
    return {
        "one thread": Kind(1, {}),
        f"{cores} threads": Kind(cores, {"GOMP_SPINCOUNT": "300000"}),  # OpenMP's default
        f"{cores} threads that sleep": Kind(cores, {"OMP_WAIT_POLICY": "PASSIVE"}),
    }


TRAININGS = {  # settings of the default recipe at HAR's shape
    "step, tiny, 32 rows": ["model.size=tiny", "train.batch_size=32"],
    "step, small, 32 rows": ["model.size=small", "train.batch_size=32"],
}
ENCODE = "encode, tiny, 64 x 128"
WORK = (*TRAININGS, ENCODE)


def prepare(work: str) -> Callable[[], Any]:
    """A call that does some of the work."""
    if work == ENCODE:
        model = progmem.PMT(progmem.ModelConfig.for_length(128, 9, size="tiny"))
        x = torch.randn(64, 128, 9)
        return lambda: model.encode(x)
    from benchmarks.training_step import begin, made_rows  # which has the table of this module

    shape = ["model.patch=8", "model.patch_stride=2", "train.device=cpu"]
    cfg = read_config(None, [*shape, *TRAININGS[work]])
    return begin(made_rows(64, cfg), cfg, STEPS).step


def work_when_told(work: str, threads: int) -> None:
    """Prepare, and for every line of seconds answer how many calls took how long."""
    with cpu_threads(threads):
        call = prepare(work)
        call()
        print("ready", flush=True)
        for line in sys.stdin:
            count, began, used = 0, time.perf_counter(), time.process_time()
            while not count or time.perf_counter() - began < float(line):
                call()
                count += 1
            took = time.perf_counter() - began
            print(count, took, time.process_time() - used, flush=True)


class Worker:
    """A process that works when it is told to."""

    def __init__(self, work: str, kind: Kind) -> None:
        environment = os.environ | kind.environment
        environment.pop("OMP_NUM_THREADS", None)  # all cores, unless the kind says otherwise
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.busy_machine", "--work", work,
             "--threads", str(kind.threads)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._answer()

    def _answer(self) -> list[str]:
        assert self.process.stdout is not None
        answer = self.process.stdout.readline().split()
        if not answer:
            raise SystemExit("a process that was measured has ended")
        return answer

    def __call__(self, seconds: float) -> tuple[int, float, float]:
        """Calls made, the seconds they took, and those of a processor."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        count, took, used = self._answer()
        return int(count), float(took), float(used)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def busy(count: int) -> Iterator[Callable[[], float]]:
    """Beside so many processes that compute; a function tells the seconds they have had."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield lambda: sum(_processor_seconds(other.pid) for other in others) / max(1, count)
    finally:
        for other in others:
            other.kill()
            other.wait()


def _processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(work: str, *, cores: int, turns: int, seconds: float) -> list[dict[str, Any]]:
    """For each number of busy processes and each kind, what every turn found."""
    found = []
    with ExitStack() as stack:
        workers = {}
        for name, kind in kinds(cores).items():
            workers[name] = Worker(work, kind)
            stack.callback(workers[name].end)
        for count in BUSY:
            each: dict[str, list[Any]] = {name: [] for name in workers}
            with busy(count) as had:
                for _ in range(turns):
                    for name, worker in workers.items():
                        before = had()
                        calls, took, used = worker(seconds)
                        each[name].append([calls, took, used, had() - before])
            for name, turn in each.items():
                found.append({"work": work, "busy": count, "kind": name, "turns": turn})
                print(f"{work}, {count} busy, {name}: {_told(turn)}", flush=True)
    return found


def _told(turns: list[list[float]]) -> str:
    calls, took, used = (sum(column) for column in list(zip(*turns, strict=True))[:3])
    return f"{1e3 * took / calls:.0f} ms, {1e3 * used / calls:.0f} ms of a processor"


def summary(rows: list[dict[str, Any]]) -> dict[tuple[str, str, int], dict[str, float]]:
    """By work, kind and busy processes: medians of what the module says counts."""
    alone = {(r["work"], r["kind"]): r["turns"] for r in rows if r["busy"] == 0}
    found = {}
    for row in rows:
        reference = alone[row["work"], "one thread"]
        step = statistics.median(used / calls for calls, _, used, _ in reference)
        pace = statistics.median(calls / took for calls, took, _, _ in reference)
        key = row["work"], row["kind"], row["busy"]
        found[key] = {
            "speed": statistics.median(calls / took for calls, took, *_ in row["turns"]) / pace,
            "work": statistics.median(step * calls / used for calls, _, used, _ in row["turns"]),
        }
        if row["busy"]:
            over = [calls * step / had for calls, _, _, had in row["turns"] if had]
            found[key]["share"] = statistics.median(over)
    return found


def busy_machine_table(results: list[dict[str, Any]]) -> str:
    """How fast threads are alone and beside busy processes, by how they wait."""
    result = results[0]
    rows, found = result["rows"], summary(result["rows"])
    lines = []
    for work, kind in dict.fromkeys((row["work"], row["kind"]) for row in rows):
        cells = [f"{found[work, kind, 0]['speed']:.2f}"]
        cells += [f"{found[work, kind, n]['share']:.2f}" for n in BUSY[1:]]
        cells += [f"{found[work, kind, n]['work']:.2f}" for n in BUSY[1:]]
        lines.append([work, kind, *cells])
    counts = [f"{n} busy" for n in BUSY[1:]]
    header = ["work", f"on {result['cores']} cores", "speed alone",
              *(f"over its share, {n}" for n in counts),
              *(f"work a processor second, {n}" for n in counts)]  # fmt: skip
    return markdown(header, lines)


def step_ahead() -> None:
    """Give this session nearly all of the machine; the scheduler weighs its processes as one."""
    Path("/proc/self/autogroup").write_text("-20")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--works", nargs="+", choices=WORK, default=list(WORK))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of work in a turn")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--ahead", action="store_true", help="of other work (Linux, as root)")
    chosen = parser.parse_args()
    if chosen.work is not None:
        work_when_told(chosen.work, chosen.threads)
        return
    if chosen.ahead:
        step_ahead()
    cores, path = len(os.sched_getaffinity(0)), chosen.out / "busy_machine/cpu.json"
    config = {name: getattr(chosen, name) for name in ("turns", "seconds", "ahead")}
    result = {"config": config, "seeds": [0], **record.environment("cpu"), "cores": cores}
    rows: list[dict[str, Any]] = []
    if path.exists():  # other work that was measured by the same code stays
        kept = record.read(path)
        if all(kept.get(name) == result[name] for name in ("commit", "config", "cores")):
            rows = kept["rows"]
    for work in chosen.works:
        rows = [row for row in rows if row["work"] != work]
        rows += measure(work, cores=cores, turns=chosen.turns, seconds=chosen.seconds)
        record.write(path, result | {"rows": rows})
    print(f"written: {path}\n\n{busy_machine_table([result | {'rows': rows}])}")


if __name__ == "__main__":
    main()
