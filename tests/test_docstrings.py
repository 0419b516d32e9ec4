"""Every public name has an example, and the examples are true."""

import doctest
import inspect

import pytest

import progmem

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
NAMES = [name for name in progmem.__all__ if name != "__version__"]  # which is a text


def examples_of(name):
    """The examples in the docstring of a public name itself, not in those of its methods."""
    text = inspect.getdoc(getattr(progmem, name)) or ""
    return doctest.DocTestParser().get_doctest(text, {}, name, f"progmem.{name}", 0)


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_public_name_is_true(name):
    examples, wrong = examples_of(name), []
    assert examples.examples, f"progmem.{name} has no example in its docstring"
    doctest.DocTestRunner(optionflags=OPTIONS).run(examples, out=wrong.append)
    assert not wrong, "".join(wrong)
    assert name in "".join(example.source + example.want for example in examples.examples)


def test_public_names():
    assert set(progmem.__all__) == {
        "PMT", "ModelConfig", "Encoding", "Encoder", "Stream", "load", "PMTEncoder",
        "PMTClassifier", "PMTForecaster", "count_macs", "count_params", "data", "ConfigError",
        "InputError", "ModelFolderError", "ArtifactError", "TrainingError", "read", "__version__",
    }  # fmt: skip


def test_the_package_shows_its_public_names_and_nothing_else():
    assert sorted(dir(progmem)) == sorted(progmem.__all__)
    given = {}
    exec("from progmem import *", given)
    assert set(progmem.__all__) == given.keys() - {"__builtins__"}
    assert all(given[name] is getattr(progmem, name) for name in progmem.__all__)
