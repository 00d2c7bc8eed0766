"""An elastic run with a fake launcher: joins, hostfiles and allocations that change, and what follows."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import processes
import pytest
from supervisor_rig import Case

from mpips.config.schema import JobConfig, load_config
from mpips.errors import ConfigError
from mpips.mpi import failure_report
from mpips.rundir.directory import replace_json
from mpips.rundir.members import (
    JoinFolder,
    JoinRecord,
    read_members,
)
from mpips.rundir.requests import JobSize, RequestFolder
from mpips.supervisor import host_sources
from mpips.supervisor.elastic import first_pool, own_hosts
from mpips.supervisor.hosts import HostsError
from mpips.supervisor.plan import make_run

TABLE = [{"rank": 0, "role": "scheduler", "host": "a", "pid": 1}]
AT_WORK = {"ranks": TABLE, "sleep": 40, "beats": True, "leaves": True}


def configured(**keys: object) -> JobConfig:
    job = [("task", "mlp"), ("data.train", "digits"), ("cluster.servers", 1)]
    return load_config(None, [*job, *((k.replace("__", "."), v) for k, v in keys.items())])


@pytest.fixture
def reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An agent that runs the commands for every host here; hosts of the file `down` do not answer."""
    down = tmp_path / "down"
    down.touch()
    agent = tmp_path / "agent"
    # A host tells its own name, which is that of this machine for all of them.
    agent.write_text(
        "#!/bin/sh\nhost=$1\nshift\n"
        f'grep -qx "$host" {down} && echo "Connection refused" >&2 && exit 255\n'
        'sh -c "$*" && echo "$host"\n'
    )
    agent.chmod(0o700)
    monkeypatch.setenv("PRTE_MCA_plm_ssh_agent", str(agent))
    return down


class Elastic(Case):
    """A case whose run is elastic."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, **keys: object) -> None:
        super().__init__(folder, patch)
        self.config = configured(run__standby=False, cluster__timeout_s=30.0, **keys)
        self.run_folder = make_run(self.config, folder, "elastic")
        self.pool = first_pool(self.config)
        self.processes: list[subprocess.Popen[str]] = []
        self.failure: BaseException | None = None

    def with_acts(self, story: Callable[[], None], *script: dict[str, Any]) -> int:
        """Run the supervisor while `story` runs in a thread; the exit code."""

        def tell() -> None:
            try:
                story()
            except BaseException as error:
                self.failure = error
                for _ in range(2):
                    with contextlib.suppress(ConfigError):
                        RequestFolder(self.run_folder).make("stop")
                    time.sleep(0.7)

        thread = threading.Thread(target=tell)
        thread.start()
        try:
            code = self.run(*script)
        finally:
            thread.join(30)
            for process in self.processes:
                process.kill()
                process.communicate()
        if self.failure is not None:
            raise self.failure
        return code

    def join(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "mpips", "join", str(self.run_folder.path), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={k: v for k, v in os.environ.items() if not k.startswith("SLURM_")},
        )
        self.processes.append(process)
        return process

    def until(self, condition: Callable[[], bool]) -> None:
        assert processes.until(condition, 25.0), self.text

    def at_work(self, generation: int) -> None:
        self.until((self.run_folder.attempt(generation) / "asleep").exists)

    def hosts(self, generation: int) -> list[str]:
        """Lines of the hostfile of an attempt."""
        return (self.run_folder.attempt(generation) / "hostfile").read_text().splitlines()

    def state(self, source: str) -> str:
        members = read_members(self.run_folder)
        rows = members.rows if members is not None else ()
        return next((row.state for row in rows if row.source.startswith(source)), "")


def test_hosts_of_a_join_are_used_and_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reached: Path
) -> None:
    case = Elastic(tmp_path, monkeypatch, run__hosts="a:3", run__elastic=True)

    def story() -> None:
        case.at_work(0)
        joined = case.join("--hosts", "b:2,c:1")
        case.at_work(1)
        joined.send_signal(signal.SIGTERM)
        _, errors = joined.communicate(timeout=25)
        assert joined.returncode == 0, errors
        assert "b, c: in use" in errors
        assert "SIGTERM: waiting until" in errors
        assert "b, c: left" in errors

    assert case.with_acts(story, AT_WORK, AT_WORK, {"finish": True}) == 0
    assert case.hosts(0) == ["a slots=3"]
    assert case.hosts(1) == ["a slots=3", "b slots=2", "c slots=1"]
    assert case.hosts(2) == ["a slots=3"]
    assert "mpips run: b,c are there: the job continues with 6 ranks" in case.text
    assert "mpips run: b,c leave: the job continues with 3 ranks" in case.text
    assert "1 of 3" not in case.text  # changes are no restarts
    causes = [e.cause for e in case.run_folder.events() if e.event == "scaled"]
    assert [cause.partition(",")[0] for cause in causes] == [
        "6 ranks from step -1 on",
        "3 ranks from step -1 on",
    ]
    assert not list((case.run_folder.path / "joins").iterdir())


def test_a_join_that_dies_is_noticed_and_its_hosts_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reached: Path
) -> None:
    monkeypatch.setattr(host_sources, "STALE_S", 1.0)
    monkeypatch.setattr("mpips.monitor.joining.RENEW_S", 0.2)
    case = Elastic(tmp_path, monkeypatch, run__hosts="a:3", run__max_workers=9)
    folder = JoinFolder(case.run_folder)

    def story() -> None:
        case.at_work(0)
        for n in range(1000):
            record = JoinRecord(hosts=(("b", 2),), host="b", pid=1, renewals=n)
            folder.write("j", record)
            if (case.run_folder.attempt(1) / "asleep").exists():
                break
            time.sleep(0.1)
        case.at_work(2)

    assert case.with_acts(story, AT_WORK, AT_WORK, {**AT_WORK, "sleep": 1, "finish": True}) == 0
    assert case.hosts(1) == ["a slots=3", "b slots=2"]
    assert case.hosts(2) == ["a slots=3"]
    assert folder.read() == {}


def test_a_host_that_does_not_answer_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reached: Path
) -> None:
    reached.write_text("b\n")
    monkeypatch.setattr("mpips.supervisor.membership.FIRST_RETRY_S", 0.5)
    case = Elastic(tmp_path, monkeypatch, run__hosts="a:3", run__elastic=True)

    def story() -> None:
        case.at_work(0)
        case.join("--hosts", "b:2")
        case.until(lambda: "b (2 slots) cannot be used: b: Connection refused" in case.text)
        reached.write_text("")
        case.at_work(1)

    assert case.with_acts(story, AT_WORK, {**AT_WORK, "sleep": 1, "finish": True}) == 0
    assert case.hosts(1) == ["a slots=3", "b slots=2"]


def test_a_refused_join_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reached: Path
) -> None:
    case = Elastic(tmp_path, monkeypatch, run__hosts="a:3", run__elastic=True)

    def story() -> None:
        case.at_work(0)
        joined = case.join("--hosts", "a:2")
        _, errors = joined.communicate(timeout=25)
        assert joined.returncode == 2, errors
        assert "refuses the hosts: a is one of its own hosts already" in errors
        replace_json(case.run_folder.finished_file, {"generation": 0, "time_s": 1.0, "step": 3})
        os.kill(os.getpid(), signal.SIGUSR1)

    assert case.with_acts(story, AT_WORK) == 0


def test_a_run_with_too_few_hosts_waits_and_ends_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reached: Path
) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("a slots=3\nb slots=1\n")
    keys = {"run__hostfile": str(hostfile), "run__max_workers": 2, "run__min_workers": 2}
    case = Elastic(tmp_path, monkeypatch, **keys, run__hosts_timeout_s=5.0)

    def story() -> None:
        case.at_work(0)
        hostfile.write_text("a slots=3\n")
        case.until(lambda: "waiting 5 s for hosts" in case.text)
        hostfile.write_text("a slots=3\nc slots=1\n")
        case.at_work(1)
        hostfile.write_text("a slots=3\n")

    with pytest.raises(HostsError, match=r"1 worker; 2 are needed.*no other hosts came within 5 s"):
        case.with_acts(story, AT_WORK, AT_WORK)
    assert case.hosts(1) == ["a slots=3", "c slots=1"]
    assert "mpips run: b leaves: too few hosts stay, the job waits for others" in case.text
    assert case.state("hosts") == "ready"


def test_ranks_that_slurm_ends_with_their_join_do_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reached: Path
) -> None:
    # The ranks of the host leave by themselves before the supervisor could ask them to.
    case = Elastic(tmp_path, monkeypatch, run__hosts="a:3", run__elastic=True)
    leaving = {
        "ranks": TABLE,
        "sleep": 0.6,
        "words": [{"kind": failure_report.LEAVING, "exit_code": 75}],
    }

    def story() -> None:
        case.at_work(0)
        joined = case.join("--hosts", "b:2")
        case.at_work(1)
        joined.send_signal(signal.SIGTERM)
        assert joined.wait(25) == 0

    monkeypatch.setattr("mpips.supervisor.elastic.Elastic.decide", once(1))
    assert case.with_acts(story, AT_WORK, {**leaving, "code": 75}, {"finish": True}) == 0
    assert case.hosts(2) == ["a slots=3"]
    assert "on other hosts from step -1 on" in case.text


def once(n: int) -> Callable[..., Any]:
    """`Elastic.decide` that decides nothing after so many changes."""
    from mpips.supervisor import elastic

    real, left = elastic.Elastic.decide, [n]

    def decide(self: elastic.Elastic) -> Any:
        found = real(self) if left[0] else None
        left[0] -= found is not None
        return found

    return decide


def test_a_request_for_a_size_bounds_an_elastic_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reached: Path
) -> None:
    case = Elastic(tmp_path, monkeypatch, run__hosts="a:6", run__elastic=True)
    requests = RequestFolder(case.run_folder)

    def story() -> None:
        case.at_work(0)
        requests.make("scale", JobSize(ranks=9, servers=1))
        case.until(lambda: "9 ranks with 1 server do not fit on the hosts of the run" in case.text)
        requests.make("scale", JobSize(ranks=4, servers=2))
        case.at_work(1)

    assert case.with_acts(story, AT_WORK, {**AT_WORK, "sleep": 1, "finish": True}) == 0
    argv = json.loads((case.run_folder.attempt(1) / "argv.json").read_text())
    assert argv[1:3] == ["-n", "4"]
    config = load_config(str(case.run_folder.config_file), [])
    assert (config.run.max_workers, config.cluster.servers, config.run.is_elastic) == (1, 2, True)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (
            {"run__spares": 1, "run__hosts": "a:3,b:3"},
            "spares = 1 applies only to a run that is not elastic",
        ),
        (
            {"run__ranks": 4, "run__hosts": "a:3"},
            "ranks = 4: an elastic run has one rank for each slot",
        ),
        (
            {"run__min_workers": 4, "run__max_workers": 3},
            "min_workers = 4 is greater than max_workers = 3",
        ),
        ({"run__hosts": "a:4", "cluster__servers": 3}, "servers = 3 is too many for 4 ranks"),
    ],
)
def test_options_that_contradict_an_elastic_run_are_refused(
    keys: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        first_pool(configured(run__elastic=True, **keys))


def test_an_elastic_run_on_this_machine_starts_as_any_other() -> None:
    pool = first_pool(configured(run__elastic=True, run__ranks=5, run__max_workers=2))
    assert pool.layout().hosts == ()
    assert pool.n_ranks == 4


def own_hosts_are_here() -> bool:
    return own_hosts(configured(run__elastic=True).run)[1]


def test_without_hosts_an_elastic_run_has_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert own_hosts_are_here()
