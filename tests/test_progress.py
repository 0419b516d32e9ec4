"""What a command is doing: a line at once, then the time left; nothing where nobody listens."""

import re

import pytest

from progmem import progress as module
from progmem.progress import duration, make_bar, progress


class Clock:
    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def test_it_says_at_once_what_begins_and_then_how_long_it_will_take(clock):
    said = []
    with progress("encoding 100 series", 100, log=said.append) as advance:
        assert said == ["encoding 100 series ..."]  # before anything is done
        for _ in range(100):
            clock.now += 0.5
            advance(1)
    assert said[1] == "encoding 100 series: 10 of 100, about 45 s left"
    assert len(said) == 10  # one every five seconds, and none when all is done
    left = [int(re.search(r"about (\d+) s", line)[1]) for line in said[1:]]
    assert left == sorted(left, reverse=True)


def test_what_is_short_has_one_line_and_without_a_log_there_is_none(clock, capsys):
    said = []
    with progress("fitting", 3, log=said.append) as advance:
        advance(3)
    assert said == ["fitting ..."]
    with progress("fitting", 3, log=None) as advance:
        advance(3)
    with progress("nothing", 0, log=said.append) as advance:
        advance(0)
    assert said == ["fitting ..."] and capsys.readouterr() == ("", "")


def test_on_a_terminal_there_is_a_bar_in_place_of_lines(monkeypatch, capsys):
    assert make_bar(0, 3) is None  # the tests have no terminal
    monkeypatch.setattr(module.sys.stdout, "isatty", lambda: True, raising=False)
    with progress("encoding", 3, log=print) as advance:
        advance(3)
    assert "encoding ..." not in capsys.readouterr().out


def test_a_duration_is_in_seconds_minutes_or_hours():
    assert duration(3.4) == "3 s" and duration(119) == "119 s" and duration(150) == "2 min"
    assert duration(7100) == "118 min" and duration(7200) == "2.0 h"


def test_where_standard_output_is_closed_there_is_no_bar(monkeypatch):
    with monkeypatch.context() as inside:
        inside.setattr("sys.stdout", None)
        assert make_bar(0, 3) is None
