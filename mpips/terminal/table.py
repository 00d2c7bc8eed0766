"""Tables of text with aligned columns, laid out by rich."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from mpips.terminal.screen import columns, has_colour, say

_UNBOUNDED = 10_000  # characters; wide enough that rich never folds a row
# Styles of cells by row (int), or by row and column (tuple of two int); both are counted from 0.
Styles = Mapping[Any, str]


def text_table(
    rows: Sequence[Sequence[str]],
    right: Sequence[int] = (),
    gap: int = 2,
    indent: int = 0,
    *,
    styles: Styles | None = None,
    width: int = 0,
    optional: Sequence[int] = (),
) -> list[str]:
    """Return one line of text per row, without trailing spaces.

    Args:
        rows: Cells; all rows have the same number of them. A header is a row like the others.
        right: Indices of the columns to align to the right.
        gap: Spaces between two columns.
        indent: Spaces in front of each line.
        styles: Styles of `mpips.terminal.screen.styled`; None: no colour.
        width: Characters of a line; 0: any number.
        optional: Columns that a table wider than `width` omits, the first one first. A last line names them
            by their cells in the first row.

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
    shown, omitted = _shown(rows, width - indent if width else 0, gap, optional)
    table = Table.grid(padding=(0, gap, 0, 0))
    for column in shown:
        table.add_column(justify="right" if column in right else "left", no_wrap=True)
    found = styles or {}
    for i, row in enumerate(rows):
        style = {c: found.get((i, c), found.get(i, "")).replace("faint", "dim") for c in shown}
        # Appended text leaves the spaces beside it without style, so that they can be cut off.
        table.add_row(*(Text().append(row[c], style[c]) for c in shown))
    out = StringIO()
    Console(
        file=out,
        width=_UNBOUNDED,
        no_color=not styles,
        force_terminal=bool(styles),
        color_system="standard" if styles else None,
    ).print(table)
    lines = [" " * indent + line.rstrip() for line in out.getvalue().splitlines()]
    if omitted:
        names = ", ".join(rows[0][column] for column in omitted)
        lines.append(f"{' ' * indent}not shown in {width} columns: {names}")
    return lines


def _shown(
    rows: Sequence[Sequence[str]], width: int, gap: int, optional: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the columns that are shown and those that are omitted. `width`: 0 for any width."""
    from rich.cells import cell_len

    widths = {c: max(cell_len(row[c]) for row in rows) for c in range(len(rows[0]))}
    omitted = []
    for column in optional:
        if not width or sum(widths.values()) + gap * (len(widths) - 1) <= width:
            break
        del widths[column]
        omitted.append(column)
    return list(widths), sorted(omitted)


def print_table(
    rows: Sequence[Sequence[str]],
    right: Sequence[int] = (),
    *,
    styles: Styles | None = None,
    optional: Sequence[int] = (),
) -> None:
    """Print a table to stdout: as wide as the terminal, with colours if it has them, else all of it.

    Args:
        rows: Cells; the first row is the header.
        right: Indices of the columns to align to the right.
        styles: Styles of cells besides the header; see `text_table`.
        optional: Columns that a narrow terminal does not show; see `text_table`.
    """
    chosen = {0: "bold", **(styles or {})} if has_colour(sys.stdout) else None
    width = columns(sys.stdout)
    lines = text_table(rows, right, styles=chosen, width=width, optional=optional)
    say("\n".join(lines), err=False)
