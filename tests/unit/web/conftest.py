"""One browser for all tests of the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import MISSING, Browser, browsing


@pytest.fixture(scope="session")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless browser of 1280x720 pixels."""
    if MISSING:
        pytest.skip(MISSING)
    with browsing(tmp_path_factory.mktemp("browser")) as browser:
        yield browser
