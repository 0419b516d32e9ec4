"""Names of recordings, channels and classes as files have them, made safe to show and to write.

A name may hold anything: commands for a terminal, a line of its own, half of a character. From the
moment it is read such characters stand in it as they would in Python's source, ``\\x1b`` say, so
that no output has to think of them. A table is also read by programs that run a cell which begins
with ``=``: there an apostrophe is put before it, and taken away when the table is read again.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

# control characters, ends of lines, marks that turn the direction of a text, halves of characters
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_FORMULA = re.compile(r"'*[=+\-@]")
SHOWN = 5  # names in a line
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?%?")


def printable(text: str) -> str:
    """``text`` in one line, with escapes for what a terminal would obey.

    Example:
        >>> from progmem.names import printable
        >>> printable("red \\x1b[31m, Köln")
        'red \\\\x1b[31m, Köln'
    """
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def first_few(names: Sequence[str]) -> str:
    """Names in a line, of which the first stand for many.

    Example:
        >>> from progmem.names import first_few
        >>> first_few(["a", "b"]), first_few([*"abcdefg"])
        ('a, b', 'a, b, c, d, e and 2 more')
    """
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"


def printable_labels(labels: np.ndarray) -> np.ndarray:
    """Labels with `printable` texts; numbers stay as they are."""
    if labels.dtype.kind not in "UO":
        return labels
    texts = [printable(label) if isinstance(label, str) else label for label in labels.tolist()]
    return np.array(texts, dtype=object if labels.dtype.kind == "O" else str)


def to_cell(name: Any) -> str:
    """A name as a cell of a table that no spreadsheet runs; numbers stay as they are.

    Example:
        >>> from progmem.names import from_cell, to_cell
        >>> to_cell("=1+1"), to_cell("-1"), from_cell(to_cell("=1+1"))
        ("'=1+1", '-1', '=1+1')
    """
    text = printable(str(name))
    runs = _FORMULA.match(text) and not _NUMBER.fullmatch(text)
    return f"'{text}" if runs else text


def from_cell(text: str) -> str:
    """The name that `to_cell` made a cell of."""
    return text[1:] if text[:1] == "'" and _FORMULA.match(text) else text
