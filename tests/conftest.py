"""What all tests share."""

from __future__ import annotations

import os

from hypothesis import settings

# A loaded machine, a sanitizer or five ranks on two cores say nothing about a property.
settings.register_profile("mpips", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "mpips"))
