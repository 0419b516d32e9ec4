"""No way to score finds more in noise than there is, and one that did would be seen."""

import pytest

from benchmarks import noise


def test_a_score_above_chance_is_a_leak_unless_it_is_marked():
    assert noise.is_leak(noise.scored("a", {"x": 0.4, "y": 0.7}, 60))
    assert not noise.is_leak(noise.scored("a", {"x": 0.4, "y": 0.69}, 60))
    assert not noise.is_leak(noise.scored("a", {"x": 0.7}, 15))  # of so few it may be luck
    assert not noise.is_leak(noise.scored("a", {"x": 1.0}, 60, marked=True))
    errors = {"path": "a", "scored": 800, "chance": 1.0, "bound": 0.85, "marked": False}
    assert noise.is_leak({**errors, "scores": {"forecast": 0.8, "repeat last": 2.0}})
    assert not noise.is_leak({**errors, "scores": {"forecast": 0.9, "repeat last": 2.0}})


@pytest.mark.slow
def test_no_score_of_noise_is_above_chance_unless_it_is_marked(tmp_path, monkeypatch):
    """60 series with drawn labels, by every way in which this software prints a score."""
    monkeypatch.chdir(tmp_path)
    rows = list(noise.noise_rows())
    assert sum(len(row["scores"]) for row in rows) >= 30
    assert not [row for row in rows if noise.is_leak(row)]
    marked = [row for row in rows if row["marked"]]
    assert len(marked) == 2
    for row in marked:  # unmarked, they would be leaks
        assert noise.is_leak({**row, "marked": False}), row
    assert noise.noise_table([{"rows": rows}]).count("marked as seen") == 2
