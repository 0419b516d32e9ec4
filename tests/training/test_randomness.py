"""Draws as functions of seed, step and purpose."""

import torch

from progmem.training.randomness import batch_rows, generator, steps_per_epoch


def test_every_epoch_sees_every_row_once_in_a_new_order():
    assert steps_per_epoch(100, 30) == 3 and steps_per_epoch(50, 30) == 2
    epochs = [
        torch.cat([batch_rows(50, 30, 7, step) for step in (2 * e, 2 * e + 1)]) for e in (0, 1)
    ]
    assert all(sorted(e.tolist()) == list(range(50)) for e in epochs)
    assert not torch.equal(*epochs)


def test_generators_differ_by_seed_step_and_purpose():
    draws = {
        torch.rand(1, generator=generator(*key)).item()
        for key in [(0, 0, "a"), (0, 0, "b"), (0, 1, "a"), (1, 0, "a"), (0, 10, "a"), (0, 1, "0 a")]
    }
    assert len(draws) == 6
