"""Draws as functions of seed, step and purpose."""

import pytest
import torch

from progmem.training.randomness import batch_rows, generator, steps_per_epoch, whole_batch


def test_every_epoch_sees_every_row_once_in_a_new_order():
    assert steps_per_epoch(100, 30) == 3 and steps_per_epoch(50, 30) == 2
    epochs = [
        torch.cat([batch_rows(50, 30, 7, step) for step in (2 * e, 2 * e + 1)]) for e in (0, 1)
    ]
    assert all(sorted(e.tolist()) == list(range(50)) for e in epochs)
    assert not torch.equal(*epochs)


@pytest.mark.parametrize(
    "rows, sizes",
    [(1, [1]), (2, [2]), (29, [29]), (30, [30]), (31, [15, 15]), (33, [16, 16]), (59, [29, 29]),
     (60, [30, 30]), (61, [30, 30]), (100, [30, 30, 30])],
)  # fmt: skip
def test_all_batches_are_of_one_size(rows, sizes):
    steps = range(steps_per_epoch(rows, 30))
    assert [len(batch_rows(rows, 30, 7, step)) for step in steps] == sizes
    assert {whole_batch(rows, 30), whole_batch(rows, sizes[0])} == {sizes[0]}


def test_no_batch_has_one_row_where_it_could_have_two():
    assert len(batch_rows(3, 2, 0, 0)) == 2 and steps_per_epoch(3, 2) == 1


def test_generators_differ_by_seed_step_and_purpose():
    draws = {
        torch.rand(1, generator=generator(*key)).item()
        for key in [(0, 0, "a"), (0, 0, "b"), (0, 1, "a"), (1, 0, "a"), (0, 10, "a"), (0, 1, "0 a")]
    }
    assert len(draws) == 6
