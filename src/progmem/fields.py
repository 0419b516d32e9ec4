"""Checked settings: what a config field may hold, and the message when it does not."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields
from numbers import Integral, Real
from typing import Any

from progmem.errors import ConfigError


def whole(default: Any, low: int, end: float = float("inf")) -> Any:
    """A field that takes whole numbers from ``low`` up, below ``end``."""
    allowed = f"a whole number from {low} up" + ("" if end == float("inf") else f", below {end}")
    return checked(default, lambda v: is_whole(v) and low <= v < end, allowed)


def number(default: Any, low: float, high: float = float("inf")) -> Any:
    """A field that takes numbers in [low, high)."""
    allowed = f"a number from {low:g} up" if high == float("inf") else f"in [{low:g}, {high:g})"
    return checked(default, lambda v: is_real(v) and low <= v < high, allowed)


def positive(default: Any, *, optional: bool = False) -> Any:
    """A field that takes numbers above 0, or nothing where it is ``optional``."""

    def good(value: Any) -> bool:
        return (optional and value is None) or (is_real(value) and 0 < value < float("inf"))

    return checked(default, good, "a number above 0" + (" or null" if optional else ""))


def choice(*options: str) -> Any:
    """A field that takes one of ``options``, the first by default."""
    return checked(
        options[0], lambda v: isinstance(v, str) and v in options, f"one of {', '.join(options)}"
    )


def flag(default: bool) -> Any:
    return checked(default, lambda v: isinstance(v, bool), "true or false")


def is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def checked(default: Any, good: Callable[[Any], bool], allowed: str) -> Any:
    """A field that takes what is ``good``, which is ``allowed`` in words."""
    return field(default=default, metadata={"good": good, "allowed": allowed})


def check_fields(config: Any, section: str) -> None:
    """Refuse a value that its field does not take."""
    for item in fields(config):
        value = getattr(config, item.name)
        if not item.metadata["good"](value):
            allowed = item.metadata["allowed"]
            raise ConfigError(f"{section}.{item.name} must be {allowed}, got {value!r}")
        if is_whole(value):
            object.__setattr__(config, item.name, int(value))  # numpy's are not for json
        elif is_real(value):
            object.__setattr__(config, item.name, float(value))


def check_names(given: Iterable[str], known: Iterable[str], section: str = "") -> None:
    """Refuse a name that is not known, with the nearest that is."""
    known, dot = list(known), f"{section}." if section else ""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean '{dot}{near[0]}'?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"unknown setting '{dot}{name}'; {hint}")


def plain(values: Mapping[str, Any], cls: Any) -> dict[str, Any]:
    """Values as their fields mean them: yaml takes 1e-3 for a word and 32 for a number."""
    kinds = {item.name: type(item.default) for item in fields(cls)}
    return {name: _plain(value, kinds.get(name)) for name, value in values.items()}


def _plain(value: Any, kind: Any) -> Any:
    if kind is str and is_real(value):
        return str(value)
    if kind in (float, type(None)) and isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def names(cls: Any, *more: str) -> list[str]:
    """The settings a config class takes; ``more`` are those it turns into others."""
    return [*more, *(item.name for item in fields(cls))]


def check_mapping(value: Any, section: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{section} must be a mapping of settings, got {value!r}")
    return value
