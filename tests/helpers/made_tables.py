"""The same series as tables and files of every make."""

import numpy as np
import pandas as pd

X = np.random.default_rng(0).normal(size=(4, 3, 7)).round(3)  # (cases, channels, time)
X[1, 2, 4] = np.nan
Y = np.array(["walk", "sit", "walk", "stand"])
UNEQUAL = [X[0], X[1][:, :5], X[2][:, :2], X[3]]
CASES = ["d", "a", "c", "b"]  # not in alphabetical order
LONG = {"case": "id", "time": "t", "label": "kind"}
MELTED = {**LONG, "channel": "axis", "value": "v"}


def long_table(series=UNEQUAL):
    parts = [
        pd.DataFrame(one.T, columns=["x", "y", "z"]).assign(id=name, t=range(one.shape[1]), kind=y)
        for one, name, y in zip(series, CASES, Y, strict=True)
    ]
    return pd.concat(parts, ignore_index=True)[["kind", "x", "id", "y", "t", "z"]]


def melted_table(series=UNEQUAL):
    return long_table(series).melt(["kind", "id", "t"], var_name="axis", value_name="v")


def shuffled(table, *, first="id"):
    """Rows in disorder, but the cases as they first come."""
    heads = table.drop_duplicates(first)
    return pd.concat([heads, table.drop(heads.index).sample(frac=1, random_state=0)])


def ts_text(series, y):
    """A .ts file; its head is what the cases are."""
    yes = {True: "true", False: "false"}
    head = ["@problemName made", "@timestamps false", "@missing true"]
    head += [f"@univariate {yes[len(series[0]) == 1]}", f"@dimensions {len(series[0])}"]
    equal = len({one.shape for one in series}) == 1
    head += [f"@equalLength {yes[equal]}", f"@seriesLength {series[0].shape[1]}"]
    head += ["@classLabel false" if y is None else "@classLabel true sit stand walk", "@data"]
    values = [
        ":".join(",".join("?" if np.isnan(v) else str(v) for v in row) for row in one)
        for one in series
    ]
    if y is not None:
        values = [f"{one}:{label}" for one, label in zip(values, y, strict=True)]
    return "\n".join([*head, *values]) + "\n"
