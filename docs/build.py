"""Build the documentation into build/site.

The parts of pages that come from the code are written into them first (see parts.py); then the site is built,
strictly. `--parts` writes the parts alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "build/site"
# Modules that build the site, all of the extra "docs"; the parts need the last one alone.
TOOLS = ("zensical", "mkdocstrings", "mkdocstrings_handlers", "griffe")


def lacking(parts_only: bool) -> str:
    """Return a sentence that names the missing packages; "" if nothing is missing."""
    if importlib.util.find_spec("mpips") is None:
        return (
            "mpips is not installed for this Python: bash jobs/setup.sh, then use .venv/bin/python"
        )
    tools = TOOLS[-1:] if parts_only else TOOLS
    missing = [name for name in tools if importlib.util.find_spec(name) is None]
    if missing:
        return f"{', '.join(missing)}: not installed; pip install -e '.[docs]' (in .venv)"
    return ""


def build(only_parts: bool = False) -> int:
    """Generate the parts and build the site; a broken link or an unknown reference is an error.

    Args:
        only_parts: Write the parts alone.

    Returns:
        The exit code of the generator; 69 if something must be installed first.
    """
    if missing := lacking(only_parts):
        print(f"docs/build.py: {missing}", file=sys.stderr)
        return 69
    sys.path.insert(0, str(ROOT))  # parts.py imports tests.bench
    from parts import write_parts

    write_parts()
    if only_parts:
        return 0
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    # Every file of docs/ is copied; 404.html is for web servers and has absolute links.
    for name in ("404.html", "build.py", "parts.py"):
        (SITE / name).unlink(missing_ok=True)
    shutil.rmtree(SITE / "__pycache__", ignore_errors=True)
    return code


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Build the site of the documentation in build/site."
    )
    parser.add_argument("--parts", action="store_true", help="write the generated parts alone")
    sys.exit(build(parser.parse_args().parts))
