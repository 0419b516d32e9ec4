"""Limits of readers, and settings that would grow; tests/data/test_declared_sizes.py has files."""

import json

import pytest

from progmem import guard
from progmem.config import read_config
from progmem.errors import ConfigError, InputError


def test_what_takes_little_is_never_refused():
    guard.check("x", guard.LEAST, None, "a little", size=1)
    with pytest.raises(
        InputError, match=r"more than the 67\.1 MB of what one of its size may take"
    ):
        guard.check("x", guard.LEAST + 1, None, "more", size=1)


NESTED = {
    "aliases of aliases": ("a: &a [1]\nb: &b [*a, *a]\n", r"line 2, column 8: \*a is an alias"),
    "lists in lists": ("a: " + "[" * 100 + "]" * 100, "nested deeper than 32 levels"),
    "a date that is none": ("a: 2024-13-45", "month must be in 1"),
}


@pytest.mark.parametrize("text, message", NESTED.values(), ids=NESTED)
def test_settings_that_would_grow_or_nest_without_end_are_refused(text, message, tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_config(path, [])
    assert "\n" not in str(caught.value)


def test_json_that_is_nested_too_deeply_is_no_error_of_python():
    with pytest.raises(ValueError, match="nested too deeply"):
        guard.load_json("[" * 200_000)
    assert guard.load_json(json.dumps({"a": [1]})) == {"a": [1]}


@pytest.mark.parametrize(
    "text, bytes_", [("4GB", 4 * 10**9), ("1.5 kb", 1500), ("12", 12), (12, 12), ("3M", 3 * 10**6)]
)
def test_limits_are_bytes_or_texts(text, bytes_):
    assert guard.read_limit(text) == bytes_


@pytest.mark.parametrize("limit", ["much", "-1", "0", 0, True, "1XB", "nan"])
def test_other_limits_are_refused(limit):
    with pytest.raises(InputError, match="limit must be a number of bytes or a text such as 4GB"):
        guard.read_limit(limit)
