"""Shapes of stretches: without level and strength, in any phase."""

import numpy as np
import pytest

from progmem.explore.shapes import FAINT, shapes
from progmem.explore.stretches import STRETCH

UNIT = np.array([1.0, 4.0])


@pytest.fixture
def points():
    return np.random.default_rng(0).normal(size=(9, 3, 2))


def of_all(points, unit=UNIT):
    return shapes(points, np.arange((len(points) - STRETCH) * points.shape[1] + 1), unit)


def test_a_shape_has_neither_level_nor_strength_and_is_in_units_of_its_channels(points):
    found = of_all(points)
    assert found.shape == (13, STRETCH * 3 * 2)
    np.testing.assert_allclose(np.square(found).sum(1), 1, atol=0.01)
    np.testing.assert_allclose(of_all(5 + points), found, atol=1e-5)
    np.testing.assert_allclose(of_all(3 * points, 3 * UNIT), found, atol=1e-5)
    np.testing.assert_allclose(of_all(10 * points), found, atol=0.01)


def test_a_place_is_a_part_of_a_window(points):
    moved = points.reshape(-1, 2)[2:-1].reshape(8, 3, 2)
    np.testing.assert_array_equal(of_all(points)[2:-1], of_all(moved))


def test_a_shape_worked_by_hand():
    points = np.zeros((STRETCH, 2, 1))
    points[0, 0] = 10.0  # one point of ten; the mean is 1
    apart = np.array([9.0] + 9 * [-1.0]) / 2
    strength = (90 / 4 / 10 + FAINT**2) ** 0.5
    np.testing.assert_allclose(
        shapes(points, np.array([0]), np.array([2.0]))[0], apart / strength / 10**0.5, rtol=1e-6
    )


def test_what_is_missing_is_as_its_channel_is_and_what_is_still_has_no_shape(points):
    points[2, 1, 0] = np.nan
    points[:, :, 1] = np.nan
    found = shapes(points, np.array([0]), UNIT).reshape(2, -1)
    known = np.delete(points[:STRETCH, :, 0].ravel(), 7)
    assert found[0, 7] == 0 and not found[1].any()
    assert np.argmax(np.delete(found[0], 7)) == np.argmax(known)
    assert not of_all(np.full((9, 3, 2), 7.0)).any()
