"""The files of the page, which are data of the package."""

from __future__ import annotations

import functools
from importlib.resources import files

# In the order in which the page loads them.
SCRIPTS = (
    "uPlot.iife.min.js",
    "format.js",
    "charts.js",
    "head.js",
    "curves.js",
    "panels.js",
    "page.js",
)
STYLES = ("uPlot.min.css", "page.css")
_OF_UPLOT = ("uPlot.iife.min.js", "uPlot.min.css")  # as its npm package has them
_NAMES = frozenset(("page.html", *STYLES, *SCRIPTS))
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}


@functools.cache
def page_file(name: str) -> str | None:
    """Return a file of the page by its name; None if it has no such file."""
    if name not in _NAMES:
        return None
    folder = files("mpips.web") / "page"
    if name in _OF_UPLOT:
        folder = folder / "uplot"
    return (folder / name).read_text(encoding="utf-8")
