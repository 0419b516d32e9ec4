"""Tables as text."""

from collections.abc import Sequence


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = ["| " + " | ".join(cells) + " |" for cells in (header, *lines)]
    return "\n".join([rows[0], "|" + "---|" * len(header), *rows[1:]])
