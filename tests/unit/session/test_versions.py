"""Versions of libraries that are too old."""

from __future__ import annotations

import pytest

from mpips.errors import CapabilityError
from mpips.session.versions import check_version


@pytest.mark.parametrize("version", ["1.6.0", "1.10", "2.0.dev0", "1.6.1+cpu"])
def test_versions_from_the_oldest_one_on_are_accepted(version: str) -> None:
    check_version("nets", version, (1, 6), "mpips.nets")


@pytest.mark.parametrize("version", ["1.5.2", "0.9", "1.5+cu12"])
def test_older_versions_are_refused(version: str) -> None:
    with pytest.raises(CapabilityError) as found:
        check_version("nets", version, (1, 6), "mpips.nets")
    assert str(found.value) == f"nets {version} is too old: mpips.nets needs 1.6 or newer"
