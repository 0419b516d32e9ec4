"""Draws as functions of seed, step and purpose."""

import pytest
import torch

from progmem.training.randomness import batch_rows, generator, steps_per_epoch


def test_every_epoch_sees_every_row_once_in_a_new_order():
    assert steps_per_epoch(100, 30) == 3 and steps_per_epoch(50, 30) == 2
    epochs = [
        torch.cat([batch_rows(50, 30, 7, step) for step in (2 * e, 2 * e + 1)]) for e in (0, 1)
    ]
    assert all(sorted(e.tolist()) == list(range(50)) for e in epochs)
    assert not torch.equal(*epochs)


@pytest.mark.parametrize("rows", [1, 29, 30, 31, 59, 60, 61, 100])
def test_no_batch_is_much_smaller_than_others(rows):
    sizes = [len(batch_rows(rows, 30, 7, step)) for step in range(steps_per_epoch(rows, 30))]
    assert max(sizes) <= 30 and max(sizes) - min(sizes) <= 1
    assert sum(sizes) == rows or rows > 60  # then the rest waits for another epoch


def test_generators_differ_by_seed_step_and_purpose():
    draws = {
        torch.rand(1, generator=generator(*key)).item()
        for key in [(0, 0, "a"), (0, 0, "b"), (0, 1, "a"), (1, 0, "a"), (0, 10, "a"), (0, 1, "0 a")]
    }
    assert len(draws) == 6
