"""Tables of text with aligned columns, laid out by rich."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

_UNBOUNDED = 10_000  # characters; wide enough that rich never folds a row


def text_table(
    rows: Sequence[Sequence[str]], right: Sequence[int] = (), gap: int = 2, indent: int = 0
) -> list[str]:
    """Return one line of text per row, without trailing spaces and without colour.

    Args:
        rows: Cells; all rows have the same number of them. A header is a row like the others.
        right: Indices of the columns to align to the right.
        gap: Spaces between two columns.
        indent: Spaces in front of each line.

    Raises:
        ValueError: The rows differ in length.
    """
    # Import rich here: it takes 0.1 s to load, which ranks that print no table save.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return []
    if len({len(row) for row in rows}) > 1:
        raise ValueError("rows of a table must have the same number of cells")
    table = Table.grid(padding=(0, gap, 0, 0))
    for column in range(len(rows[0])):
        table.add_column(justify="right" if column in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    out = StringIO()
    Console(file=out, width=_UNBOUNDED, no_color=True, force_terminal=False).print(table)
    return [" " * indent + line.rstrip() for line in out.getvalue().splitlines()]
