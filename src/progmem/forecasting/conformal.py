"""Intervals from the errors that forecasts have made: rolling conformal prediction.

Each number of steps ahead has its own errors. A quantile of few errors is too narrow, so its level
is raised by 1/n, as conformal prediction does; n is the number of independent errors, because those
of moments close together, many steps ahead, are almost the same error.

Shapes: n moments, H horizon, q quantiles.
"""

from collections.abc import Sequence

import numpy as np

NEWEST = 1000  # samples whose errors count, so that intervals follow a series that changes
HORIZONS = 15  # or so many horizons, where that is more
FEWEST = 500  # errors, where moments are far apart
ROUNDS = 20  # how often intervals are made anew while they are tried on the last part


def independent(errors: np.ndarray, step: int = 1) -> np.ndarray:
    """How many independent errors (H,) those of n moments (n, H), ``step`` apart, are worth.

    It is n over the sum of the autocorrelation; errors h steps ahead of moments that lie h apart
    share nothing, so its sum ends there.
    """
    n, H = errors.shape
    there = ~np.isnan(errors)
    mean = np.nansum(errors, 0) / np.maximum(there.sum(0), 1)
    centred = np.where(there, errors - mean, 0.0)
    power = np.abs(np.fft.rfft(centred, 2 * n, axis=0)) ** 2
    correlation = np.fft.irfft(power, axis=0)[:n]  # (n, H), by lag
    correlation = correlation / np.maximum(correlation[:1], 1e-300)
    ahead = np.arange(1, H + 1)
    share = np.arange(1, n)[:, None] * step < ahead  # (n-1, H)
    total = 1 + 2 * np.where(share, correlation[1:], 0.0).sum(0)
    return there.sum(0) / np.clip(total, 1, np.maximum(1, ahead / step))


def error_quantiles(errors: np.ndarray, quantiles: Sequence[float], *, step: int = 1) -> np.ndarray:
    """Conformal quantiles (q, H) of errors (n, H), NaN where missing, the newest last.

    They are of moments ``step`` samples apart.
    """
    H = errors.shape[1]
    errors = errors[-max(FEWEST, max(NEWEST, HORIZONS * H) // step) :]
    count = (~np.isnan(errors)).sum(0)
    ordered = np.sort(errors, axis=0)  # NaN last
    more = 1 / np.maximum(independent(errors, step), 1)  # (H,)
    found = np.empty((len(quantiles), H))
    for i, q in enumerate(quantiles):
        level = np.full(H, q)
        if q > 0.5:
            level = np.minimum(1, q * (1 + more))
        elif q < 0.5:
            level = np.maximum(0, 1 - (1 - q) * (1 + more))
        place = level * np.maximum(count - 1, 0)
        low = np.floor(place).astype(int)
        high = np.minimum(low + 1, np.maximum(count - 1, 0))
        values = (np.take_along_axis(ordered, rows[None], 0)[0] for rows in (low, high))
        below, above = values
        found[i] = below + (place - low) * (above - below)
    return found


def coverage(
    before: np.ndarray,
    errors: np.ndarray,
    times: np.ndarray,
    quantiles: Sequence[float],
    *,
    step: int = 1,
) -> float:
    """The share of ``errors`` (n, H) between the lowest and the highest of their quantiles.

    The moments are gone through in time: intervals are of the errors ``before``, and of those that
    have come true when a round begins.
    """
    H, inside = errors.shape[1], []
    for rows in np.array_split(np.arange(len(errors)), min(ROUNDS, len(errors))):
        known = times + H <= times[rows[0]]
        low, high = error_quantiles(
            np.concatenate([before, errors[known]]), (min(quantiles), max(quantiles)), step=step
        )
        now = errors[rows]
        inside.append(((now >= low) & (now <= high))[~np.isnan(now)])
    return float(np.concatenate(inside).mean())
