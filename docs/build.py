"""Build the documentation into build/site.

The parts of the reference that come from the code are generated first; then the site is built, strictly. With
`--parts` only the parts are written, into build/docs, for `zensical serve`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = ROOT / "build/docs"
SITE = ROOT / "build/site"


def build() -> int:
    """Generate the parts and build the site; a broken link or an unknown reference is an error.

    Returns:
        The exit code of the generator.
    """
    sys.path.insert(0, str(ROOT))  # parts.py imports tests.bench
    from parts import write_parts

    write_parts(PARTS)
    if "--parts" in sys.argv[1:]:
        return 0
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    # Every file of docs/ is copied; 404.html is for web servers and has absolute links.
    for name in ("404.html", "build.py", "parts.py"):
        (SITE / name).unlink(missing_ok=True)
    shutil.rmtree(SITE / "__pycache__", ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(build())
