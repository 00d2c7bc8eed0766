"""The build of mpips that wrote something: its version, and the commit from which it was built."""

from __future__ import annotations

import msgspec

from mpips import _native


class Build(msgspec.Struct, frozen=True):
    """A build of mpips, as memory, checkpoints and run directories name it.

    Attributes:
        version: Version of the package; "": unknown, since mpips did not store it then.
        commit: Commit of the sources when the native module was built, with "-dirty" if they were changed
            since; "": they were not a git repository.
    """

    version: str = ""
    commit: str = ""

    def __str__(self) -> str:
        if not self.version:
            return "an earlier mpips (version unknown)"
        return f"mpips {self.version} ({f'commit {self.commit}' if self.commit else 'no commit known'})"


def this_build() -> Build:
    """Return the build of this process."""
    from mpips import __version__

    return Build(__version__, _native.commit)


def described() -> str:
    """Return version and commit of this process, as lists of versions show them."""
    build = this_build()
    return f"{build.version} ({build.commit})" if build.commit else build.version
