"""The digest of a recording follows its numbers and nothing else."""

import numpy as np
import pytest

from progmem.data import content_hash as module
from progmem.data.content_hash import content_hash

X = np.arange(60, dtype=np.float64).reshape(20, 3) - 7


@pytest.mark.parametrize(
    "same",
    [
        X.astype(np.float32), X.astype(np.int16), X.astype(">f8"), np.asfortranarray(X),
        np.repeat(X, 2, axis=0)[::2], np.where(X == 0, -0.0, X),
    ],
)  # fmt: skip
def test_dtype_byte_order_layout_and_the_sign_of_zero_do_not_matter(same):
    assert content_hash(same) == content_hash(X)


@pytest.mark.parametrize(
    "other",
    [
        X[::-1], X[:, ::-1], X[:-1], X.reshape(10, 6), X.T, X + 1e-12,
        np.where(X == 5, np.nan, X), X[[1, 0, *range(2, 20)]],
    ],
)  # fmt: skip
def test_every_number_and_its_place_matter(other):
    assert content_hash(other) != content_hash(X)


def test_all_nans_are_one_and_a_mapped_file_in_small_chunks_has_the_digest_of_the_array(
    tmp_path, monkeypatch
):
    x = X.astype(np.float32)
    x[3] = np.nan
    bits = x.copy()
    bits.view(np.uint32)[3] = 0x7FC00001  # a NaN of other bits
    np.save(tmp_path / "x.npy", bits)
    whole = content_hash(x)
    monkeypatch.setattr(module, "CHUNK", 7)
    assert content_hash(np.load(tmp_path / "x.npy", mmap_mode="r")) == whole
