"""The demonstration's table and sentences; that it runs is shown by the test of the package."""

import numpy as np

from progmem.demo import LABELS_PER_CLASS, UNWHITENED, does_it_pay_with, score_table
from progmem.probes.classify import LabelScores


def scores(**accuracy):
    """Ten draws by features: the mean, and how far draws are from it."""
    spread = np.tile([-1, 1], 5)
    return {
        (name, count): LabelScores(*[mean + sd * spread] * 4)
        for name, (mean, sd) in accuracy.items()
        for count in LABELS_PER_CLASS
    }


def test_the_gain_is_paired_by_draw_and_judged_by_the_error_of_one_draw():
    plain = {UNWHITENED: (0.5, 0.1)}
    surely = scores(trained=(0.7, 0.1), untrained=(0.6, 0.08), **plain, MiniRocket=(0.65, 0.0))
    table = score_table(surely)
    assert [row[0] for row in table[1:]] == [
        "trained", "untrained", UNWHITENED, "MiniRocket", "gain over untrained",
        f"gain over {UNWHITENED}",
    ]  # fmt: skip
    assert table[-2][1] == "+10.0 ± 2.1" and table[-1][1] == "+20.0 ± 0.0"
    assert does_it_pay_with(surely, 2).startswith("2 labels a class: pretraining pays here")
    perhaps = scores(trained=(0.7, 0.1), untrained=(0.6, 0.0))
    assert "cannot be told" in does_it_pay_with(perhaps, 10)
