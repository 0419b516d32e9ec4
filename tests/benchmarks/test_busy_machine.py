"""What threads lose beside busy processes is measured and told as the benchmark says."""

import pytest

from benchmarks import busy_machine
from benchmarks.busy_machine import ENCODE, busy_machine_table, summary


def row(busy, kind, *turns):
    return {"work": "step", "busy": busy, "kind": kind, "turns": [list(turn) for turn in turns]}


def test_speed_is_over_one_thread_alone_and_over_the_share_of_the_busy_processes():
    rows = [  # of each turn: calls, seconds, those of a processor, those of a busy process
        row(0, "one thread", (10, 1.0, 1.0, 0.0)),  # 0.1 s of a processor for a call
        row(0, "2 threads", (20, 1.0, 2.0, 0.0)),
        row(2, "one thread", (5, 1.0, 0.5, 0.5)),
        row(2, "2 threads", (2, 1.0, 1.0, 0.5), (1, 1.0, 1.0, 0.5), (1, 1.0, 1.0, 0.5)),
    ]
    found = summary(rows)
    assert found["step", "2 threads", 0] == {"speed": 2.0, "work": 1.0}
    assert found["step", "one thread", 2] == pytest.approx({"speed": 0.5, "work": 1, "share": 1})
    assert found["step", "2 threads", 2] == pytest.approx({"speed": 0.1, "work": 0.1, "share": 0.2})
    rows += [
        row(n, kind, (1, 1.0, 1.0, 1.0)) for n in (1, 4) for kind in ("one thread", "2 threads")
    ]
    shown = busy_machine_table([{"cores": 2, "rows": rows}])
    assert "| step | 2 threads | 2.00 | 0.10 | 0.20 | 0.10 | 0.10 | 0.10 | 0.10 |" in shown


@pytest.mark.slow
def test_threads_are_measured_alone_and_beside_a_busy_process(monkeypatch):
    monkeypatch.setattr(busy_machine, "BUSY", (0, 1))
    rows = busy_machine.measure(ENCODE, cores=2, turns=1, seconds=0.1)
    assert [(r["busy"], r["kind"]) for r in rows] == [
        (n, kind) for n in (0, 1) for kind in busy_machine.kinds(2)
    ]
    assert all(
        calls >= 1 and took > 0 and used > 0 for r in rows for calls, took, used, _ in r["turns"]
    )
    assert summary(rows)[ENCODE, "one thread", 1]["work"] > 0.3
