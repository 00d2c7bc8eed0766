"""The factor of all time limits of tests: greater where launches run beside each other.

Times in tests are for one launch at a time. `tests/run.sh` starts several at once, on machines with few
cores, and sets MPIPS_TEST_PATIENCE. A test that hangs then ends later, and no other test is slower.
"""

from __future__ import annotations

import os

PATIENCE = float(os.environ.get("MPIPS_TEST_PATIENCE", "1"))
