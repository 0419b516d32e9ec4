"""The encoder inside aeon: its own checks, and that nothing but the interface differs."""

import inspect

import numpy as np
import pytest

pytest.importorskip("aeon")

from aeon.testing.estimator_checking import parametrize_with_checks

from progmem import PMTEncoder
from progmem.aeon_transformer import PMTCollectionTransformer


@parametrize_with_checks([PMTCollectionTransformer])
def test_aeons_checks_hold(check):
    check()


def test_it_takes_the_encoders_parameters_and_gives_its_features():
    ours, theirs = (inspect.signature(c) for c in (PMTCollectionTransformer, PMTEncoder))
    assert ours.parameters == theirs.parameters
    X = np.random.default_rng(0).normal(size=(10, 2, 30))
    X[1, 0, 3:20] = np.nan
    for params in PMTCollectionTransformer._get_test_params():
        transformer = PMTCollectionTransformer(**params)
        tabular = transformer.get_tag("output_data_type") == "Tabular"
        assert tabular == (params["level"] in ("all", "sequence"))
        found = transformer.fit_transform(X)
        np.testing.assert_array_equal(found, PMTEncoder(**params).fit_transform(X))
