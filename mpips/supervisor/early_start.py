"""The start of the next attempt while the launcher of a failed one still ends.

After the death of a rank a launcher takes its time: that of Open MPI 5 waits a quarter of a second before it
ends the other ranks, and only then prints which one has died. Where a standby launch waits on the same hosts,
its ranks need not wait for that. When it is certain that a rank has died at work, the supervisor kills the
other ranks and lets the standby launch begin. The rest goes on as after any other failure: the launcher
ends, its text names the rank and the signal, the verdict follows, and the next attempt begins.

Certainty. The scheduler makes the file `at-work` when all ranks are at work, and removes it before the
barrier at the end of the job; no rank leaves that barrier before the scheduler has come to it. So while the
file is there, the end of a process is the end of the attempt. A rank that fails by itself, or leaves with all
others behind a checkpoint, writes its failure report before its process ends. A process that has ended, with
that file and without a report, was therefore killed. Both files are read after the end was seen.

A process can also end without a report: by `os._exit`, by an exit in native code, or while the disk is full.
It then counts as killed. Where it has failed, the launcher would have ended the others as well, and its text
still names the rank. Where all ranks were leaving behind a checkpoint, without a request of the supervisor,
and the disk has no room for their reports, the others are killed before they have left. The run then
continues with another attempt, in place of its end with exit code 75.

Order. The ranks of the next attempt begin with the program. At the start of the job they wait until the lease
names their attempt and its file `alive` exists (`mpips.session.job`). The supervisor does the following, in
this order:

1. It reaches the verdict, after all processes of the old attempt on this host have ended.
2. It writes the number of the next attempt to the lease.
3. It ends what earlier attempts have left, asks the other hosts, and chooses the hosts of the attempt.
4. `Standbys.keep` decides whether the standby launch is that attempt. If not, it is ended.
5. It writes the status "starting", and then makes `alive`. From here on only the scheduler of the attempt
   writes the status.
6. It takes the launcher of the standby launch as that of the attempt, and drives it.

So the ranks go to work only where nothing between them and step 6 can choose otherwise, and step 6 finds all
that they have done since. If no attempt follows, or another launch is it, the standby launch is ended, which
has neither read nor written anything of the job's memory. It may have failed before, and its reports lie in
the folder of its number: no other launch gets that number (`standby.is_used`). The ranks of the old attempt
have ended before the next ranks begin, and SIGKILL was sent to their children, so no two attempts run the
user's program at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from mpips.process.patience import running_s
from mpips.supervisor.attempt import Attempt

# Longest wait for the launcher to notice the first end, so that its text names that rank; seconds.
_NOTICE_S = 0.1
_PAUSE_S = 0.002


class EarlyStart:
    """Lets the standby launch begin after a death, once in an attempt. Main thread only."""

    def __init__(
        self, attempt: Attempt, is_ready: Callable[[], bool], begin: Callable[[], None]
    ) -> None:
        """Watch an attempt.

        Args:
            attempt: The attempt; it was started.
            is_ready: Returns True if a standby launch waits that will be the next attempt.
            begin: Lets its ranks begin.
        """
        self._attempt = attempt
        self._is_ready = is_ready
        self._begin = begin
        self._is_over = False  # nothing is left to do in this attempt
        self._killed = False

    def look(self) -> None:
        """Do what is due. Cheap before the first end; blocks up to `_NOTICE_S` once, after a death."""
        attempt = self._attempt
        if self._is_over or not attempt.gone:
            return
        if not self._killed:
            if not (attempt.has_lost_rank and self._is_ready()):
                self._is_over = True
                return
            self._await_launcher()
            attempt.kill_ranks()
            self._killed = True
        if attempt.has_only_launcher:
            self._is_over = True
            attempt.kill_orphans()
            self._begin()

    def _await_launcher(self) -> None:
        """Wait until the launcher has noticed the first end, before others follow."""
        until = running_s() + _NOTICE_S
        while not self._attempt.is_noticed and running_s() < until:
            time.sleep(_PAUSE_S)
