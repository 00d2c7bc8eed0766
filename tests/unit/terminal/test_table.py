"""Tables of text with aligned columns."""

from __future__ import annotations

import pytest

from mpips.terminal.table import text_table


def test_columns_are_aligned_and_lines_have_no_trailing_spaces() -> None:
    rows = [["name", "bytes", "where"], ["a long name", "7", "server 0"], ["b", "12345678", ""]]
    assert text_table(rows, right=[1]) == [
        "name            bytes  where",
        "a long name         7  server 0",
        "b            12345678",
    ]


def test_gap_and_indent_are_as_asked_for() -> None:
    assert text_table([["a", "b"], ["cc", "d"]], gap=1, indent=3) == ["   a  b", "   cc d"]


def test_cells_are_plain_text_of_any_length() -> None:
    long = "x" * 5000
    assert text_table([["[red]a[/]", long], [":smile:", ""]]) == [f"[red]a[/]  {long}", ":smile:"]


def test_no_rows_are_no_lines() -> None:
    assert text_table([]) == []


def test_rows_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="the same number of cells"):
        text_table([["a", "b"], ["c"]])
