"""The files of the page, which are data of the package."""

from __future__ import annotations

import functools
from importlib.resources import files

SCRIPTS = (
    "format.js",
    "charts.js",
    "panels.js",
    "page.js",
)  # in the order in which the page loads them
STYLES = ("page.css",)
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
    return (files("mpips.web") / "page" / name).read_text(encoding="utf-8")
