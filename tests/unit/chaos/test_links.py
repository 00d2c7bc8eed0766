"""Links of a node of the run are cut and slowed; links of machines, and of others, are not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpips.chaos import links
from mpips.chaos.errors import NotNowError
from mpips.chaos.links import LinkFault, own_namespaces
from mpips.chaos.observing import Observation
from mpips.chaos.schedule import PlannedFault
from mpips.chaos.undo import FaultGuard
from mpips.rundir.files import RankPlace

FAULT = PlannedFault(at_s=0.0, kind="partition", role="", which=0.5, how_long=0.5)
# A node: an interface whose other end is in it as well, and a rank. A line of input starts one more process
# with a variable of its environment changed.
_NODE = """
ip link set lo up
ip link add eth0 type veth peer name eth1
ip link set eth0 up
ip link set eth1 up
echo up $$
read change
env "$change" setsid --fork sleep 600 </dev/null >/dev/null 2>&1
echo more
exec sleep 600
"""


class Node:
    """A process of a run in a network namespace of its own."""

    def __init__(self, run: Path, process: subprocess.Popen[str]) -> None:
        self.run, self.process = run, process
        assert process.stdout is not None
        words = process.stdout.readline().split()
        if words[:1] != ["up"]:
            pytest.skip("the kernel refuses network namespaces")
        self.pid = int(words[1])
        place = RankPlace(rank=0, role="worker 0", host="node1", pid=self.pid)
        self.seen = Observation(0.0, True, "running", 0, places=(place,))

    def queues(self, device: str = "eth0") -> list[str]:
        command = ["nsenter", f"--net=/proc/{self.pid}/ns/net", "tc", "-json", "qdisc"]
        done = subprocess.run([*command, "show", "dev", device], capture_output=True, check=True)
        return [queue["kind"] for queue in json.loads(done.stdout)]

    def add(self, *queue: str) -> None:
        command = ["nsenter", f"--net=/proc/{self.pid}/ns/net", "tc", "qdisc", "add"]
        subprocess.run([*command, "dev", "eth1", "root", *queue], check=True)


@contextmanager
def node(run: Path) -> Iterator[Node]:
    """Start a node; skips where the kernel refuses namespaces."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "ip", "tc"))):
        pytest.skip("network namespaces need root, iproute2 and util-linux")
    # The program that makes the namespace is in it, and is no process of the run.
    mark = ["env", f"MPIPS_RUN_DIR={run}", "MPIPS_GENERATION=0"]
    with subprocess.Popen(
        ["unshare", "--net", "--fork", "--kill-child", *mark, "sh", "-c", _NODE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Node(run, process)
        finally:
            process.kill()


@pytest.mark.parametrize(("name", "kind"), [("partition", "pfifo"), ("slow-link", "tbf")])
def test_a_link_of_the_run_is_changed_and_taken_back(name: str, kind: str, tmp_path: Path) -> None:
    with node(tmp_path) as own, FaultGuard() as guard:
        fault = LinkFault(name, tmp_path, guard, 5.0)
        assert fault.why_not(own.seen) == ""
        before = own.queues()
        assert kind not in before
        injected = fault.inject(FAULT, own.seen)
        assert own.queues("eth0") == own.queues("eth1") == [kind]
        assert injected.length_s == pytest.approx(3.0)
        assert "the link of node1 for 3.0 s" in injected.what
        fault.end()
        assert own.queues("eth0") == own.queues("eth1") == before
        # The guard takes back what is left.
        fault.inject(FAULT, own.seen)
        guard.close()
        assert own.queues("eth0") == own.queues("eth1") == before


def test_an_interface_with_a_queue_of_its_own_is_left_alone(tmp_path: Path) -> None:
    with node(tmp_path) as own, FaultGuard() as guard:
        own.add("tbf", "rate", "1mbit", "burst", "32kb", "latency", "100ms")
        before = own.queues("eth0"), own.queues("eth1")
        with pytest.raises(NotNowError, match="eth1 has a queue of its own"):
            LinkFault("partition", tmp_path, guard, 5.0).inject(FAULT, own.seen)
        assert (own.queues("eth0"), own.queues("eth1")) == before


@pytest.mark.parametrize(
    ("change", "is_own"), [("MPIPS_RUN_DIR=/elsewhere", False), ("MPIPS_GENERATION=1", True)]
)
def test_a_namespace_with_a_process_of_others_is_left_alone_but_not_one_with_a_standby_launch(
    change: str, is_own: bool, tmp_path: Path
) -> None:
    with node(tmp_path) as own:
        assert [found.host for found in own_namespaces(tmp_path, own.seen)] == ["node1"]
        assert own.process.stdin is not None
        assert own.process.stdout is not None
        inside = os.stat(f"/proc/{own.pid}/ns/net").st_ino
        own.process.stdin.write(f"{change}\n")
        own.process.stdin.flush()
        assert own.process.stdout.readline() == "more\n"
        pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
        known = (own.pid, own.process.pid)
        started = [p for p in pids if links._namespace(p) == inside and p not in known]
        try:
            [pid] = started
            deadline = time.monotonic() + 10.0
            # The kernel shows no environment during exec.
            while "sleep" not in _shown(pid, "comm") or not _shown(pid, "environ"):
                assert time.monotonic() < deadline
                time.sleep(0.005)
            assert bool(own_namespaces(tmp_path, own.seen)) == is_own
        finally:
            for pid in started:
                os.kill(pid, signal.SIGKILL)


def _shown(pid: int, name: str) -> str:
    """Return a file of a process."""
    return Path(f"/proc/{pid}/{name}").read_text()


def test_the_network_of_this_machine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = RankPlace(rank=0, role="worker 0", host="node1", pid=os.getpid())
    seen = Observation(0.0, True, "running", 0, places=(place,))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(links, "pids_of_ranks", lambda *of: {0: os.getpid()})
    with FaultGuard() as guard:
        fault = LinkFault("partition", tmp_path, guard, 5.0)
        if not all(map(shutil.which, links._TOOLS)):
            pytest.skip("iproute2 is not installed")
        assert "links of machines are not changed" in fault.why_not(seen)
        with pytest.raises(NotNowError, match="no node of the run"):
            fault.inject(FAULT, seen)
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        assert "needs root" in fault.why_not(seen)
