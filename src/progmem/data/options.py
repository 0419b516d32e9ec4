"""How a source is to be read, where the rules of the reader would not do."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from progmem import guard
from progmem.data.arrays import check_layout
from progmem.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What `progmem.read` takes beside its source; see there."""

    layout: str | None = None
    case: str | None = None
    time: str | None = None
    channel: str | None = None
    value: str | None = None
    label: str | None = None
    sep: str | None = None
    decimal: str | None = None
    date_column: str | None = None
    date_format: str | None = None
    missing: Any = ()
    fill_gaps: bool = False
    drop_duplicates: bool = False
    limit: Any = None

    def __post_init__(self) -> None:
        check_layout(self.layout)
        guard.read_limit(self.limit)
        if self.time is not None and self.date_column is not None:
            raise InputError("time and date_column are the same column; give one of them")
        given = self.missing
        if given is None:
            given = ()
        elif isinstance(given, str) or not isinstance(given, Sequence):
            given = (given,)
        object.__setattr__(self, "missing", tuple(_sentinel(value) for value in given))
        if self.sep == "\\t":  # as a shell hands it over
            object.__setattr__(self, "sep", "\t")
        if self.sep is not None and len(self.sep) != 1:
            raise InputError(f"sep must be one character such as ';', got {self.sep!r}")
        if self.decimal not in (None, ".", ","):
            raise InputError(f"decimal must be '.' or ',', got {self.decimal!r}")

    @property
    def columns(self) -> dict[str, str | None]:
        """The columns of a table by what they hold."""
        time = self.time if self.time is not None else self.date_column
        return {
            "case": self.case, "time": time, "channel": self.channel, "value": self.value,
            "label": self.label,
        }  # fmt: skip

    @property
    def missing_numbers(self) -> tuple[float, ...]:
        return tuple(value for value in self.missing if isinstance(value, float))

    @property
    def missing_texts(self) -> list[str]:
        return [value for value in self.missing if isinstance(value, str)]

    def refuse_columns(self, source: str) -> None:
        """Refuse names of columns where there is no table."""
        for name, column in self.columns.items():
            if column is not None:
                raise InputError(f"{name} names a column, but there is no table, got {source}")

    def or_missing(self, missing: Sequence[float | str]) -> "ReadOptions":
        """These options, with the values that meant ``missing`` to a model where none are given."""
        return replace(self, missing=tuple(missing)) if missing and not self.missing else self

    def flags(self) -> str:
        """What is given, as a command takes it, to be put behind one."""
        words = []
        for name, value in self.to_dict().items():
            flag = f"--{name.replace('_', '-')}"
            values = value if isinstance(value, list) else [value]
            words += [flag if one is True else f"{flag}={shlex.quote(f'{one}')}" for one in values]
        return "".join(f" {word}" for word in words)

    def to_dict(self) -> dict[str, Any]:
        """Those that are not at their defaults."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        kept = {n: v for n, v in values.items() if v != getattr(BY_RULE, n)}
        return {n: list(v) if n == "missing" else v for n, v in kept.items()}


def _sentinel(value: Any) -> float | str:
    """A number, also if it is written as text; another text as it is."""
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        if isinstance(value, str):
            return value
        raise InputError(f"missing must be numbers or texts, got {value!r}") from error


BY_RULE = ReadOptions()  # nothing is said
