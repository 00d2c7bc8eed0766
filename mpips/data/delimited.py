"""Lines of text with a fixed number of cells, such as triples of a knowledge graph or ratings.

Lines end with LF or CRLF; a byte order mark and empty lines are skipped; compressed files are decompressed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from mpips.data.compressed import opened_text
from mpips.data.several import files_of
from mpips.errors import DataError

_SHOWN = 60  # characters of a line in an error


class Line(NamedTuple):
    """A line: its place in words, for errors, and its cells without blanks around them."""

    place: str
    cells: list[str]


def lines_of(
    pattern: str, divide: Callable[[str], list[str]], least: int, most: int, what: str
) -> Iterator[Line]:
    """Yield the lines of a file, or of all files that match a pattern.

    Args:
        pattern: A path, or a pattern of several.
        divide: Returns the cells of a line.
        least: Least number of cells of a line.
        most: Greatest number of cells of a line.
        what: The cells in words, for errors, such as "head, relation and tail".

    Raises:
        DataError: A line has another number of cells, or is not UTF-8; names file and line.
        OSError: A file cannot be read.
    """
    for path in files_of(pattern):
        number = 0
        try:
            with opened_text(path) as text:
                for number, line in enumerate(text, 1):
                    if not line.strip():
                        continue
                    place = f"{path}, line {number}"
                    cells = [cell.strip() for cell in divide(line.rstrip("\r\n"))]
                    if not least <= len(cells) <= most:
                        counts = f"{least}" if least == most else f"{least} to {most}"
                        raise DataError(
                            f"{place}: {line.strip()[:_SHOWN]!r} has {len(cells)} cells: must be {counts} "
                            f"({what})"
                        )
                    yield Line(place, cells)
        except UnicodeDecodeError as error:
            # The decoder reads ahead, so the damaged byte can be some lines farther on.
            byte = error.object[error.start]
            raise DataError(
                f"{path}, behind line {number}: is not UTF-8 text: {error.reason} (byte {byte:#04x}); "
                "convert it"
            ) from None


def tabs_or_blanks(line: str) -> list[str]:
    """Return the cells of a line that tabs divide; blanks if there are no tabs."""
    return line.split("\t") if "\t" in line else line.split()
