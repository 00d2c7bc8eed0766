"""Asking 1,000 hosts in simulated time: slow disks, dead hosts, refused steps, and the number of steps."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

import pytest
from fake_hosts import NEVER, FakeHosts, FakeStep, Reply

from mpips.supervisor.asking import RUNNING_AT_ONCE, STARTING_AT_ONCE, AskingLimits
from mpips.supervisor.host_names import by_reason, compact

N = 1000
NAMES = [f"node{i:04d}" for i in range(N)]
DEAD = {NAMES[i] for i in (7, 500, 999)}
LIMITS = AskingLimits()


def assert_few_steps(hosts: FakeHosts) -> None:
    assert hosts.most_starting <= STARTING_AT_ONCE
    assert hosts.most_running <= RUNNING_AT_ONCE


def test_one_step_asks_all_hosts_where_the_launcher_has_wide_steps() -> None:
    hosts = FakeHosts(lambda name, n_before, at_s: Reply())
    failed, answers = hosts.ask(NAMES)
    assert (failed, set(answers)) == ({}, set(NAMES))
    assert hosts.n_steps == 1
    assert not hosts.printed


@pytest.mark.parametrize("wide", [True, False])
def test_a_slow_disk_makes_no_host_bad_and_is_asked_once(wide: bool) -> None:
    # Nothing but the answer needs the shared disk.
    hosts = FakeHosts(lambda name, n_before, at_s: Reply(answer_s=100 + len(name) % 7), wide)
    failed, answers = hosts.ask(NAMES)
    assert (failed, len(answers)) == ({}, N)
    assert set(hosts.asked.values()) == {1}
    assert_few_steps(hosts)
    first, last = hosts.printed
    assert "the shared file system or the batch system is slow; waiting until 240 s pass" in first
    assert last.startswith("mpips run: 1000 of 1000 hosts have answered after")


@pytest.mark.parametrize("wide", [True, False])
def test_three_dead_hosts_are_found_and_no_other_host_is_asked_again(wide: bool) -> None:
    hosts = FakeHosts(lambda name, n, at_s: Reply(NEVER if name in DEAD else 0.2), wide)
    failed, answers = hosts.ask(NAMES)
    assert set(failed) == DEAD
    assert len(answers) == N - 3
    assert {hosts.asked[name] for name in DEAD} == {LIMITS.tries}
    assert {hosts.asked[name] for name in answers} == {1}
    assert hosts.n_steps <= (N if not wide else 1) + 2 * 3
    assert hosts.seconds < LIMITS.tries * (LIMITS.start_s + 5)
    assert_few_steps(hosts)
    assert failed[NAMES[7]] == "the command did not start within 10 s (3 times)"


def test_dead_hosts_are_found_behind_a_slow_disk() -> None:
    hosts = FakeHosts(lambda name, n, at_s: Reply(NEVER if name in DEAD else 0.2, 60.0))
    failed, answers = hosts.ask(NAMES)
    assert set(failed) == DEAD
    assert len(answers) == N - 3
    assert {hosts.asked[name] for name in answers} == {1}


def test_hosts_that_make_slurm_refuse_a_step_are_found_in_smaller_steps() -> None:
    down = "srun: error: Unable to create step for job 7: Requested node configuration is not available"
    hosts = FakeHosts(lambda name, n, at_s: Reply(refused=down if name in DEAD else ""))
    failed, answers = hosts.ask(NAMES)
    assert failed == dict.fromkeys(DEAD, down)
    assert len(answers) == N - 3
    # One step, then 32 of 32 hosts, then 32 of 3 hosts, then each host in its own.
    assert hosts.n_steps <= 1 + 32 + 32 + 9
    assert hosts.most_starting <= STARTING_AT_ONCE
    assert hosts.seconds < 10


def test_refused_steps_are_divided_until_each_host_has_its_own() -> None:
    # 400 of 1,000 hosts refuse, so that every step of several hosts is refused at any time.
    bad = set(NAMES[::5]) | set(NAMES[1::5])
    hosts = FakeHosts(lambda name, n, at_s: Reply(refused="node failure" if name in bad else ""))
    failed, answers = hosts.ask(NAMES)
    assert set(failed) == bad
    assert len(answers) == N - 400
    assert_few_steps(hosts)


def test_a_host_that_answers_at_the_third_try_is_good() -> None:
    slow = NAMES[3]

    def reply(name: str, n_before: int, at_s: float) -> Reply:
        return Reply(refused="kex_exchange: closed" if name == slow and n_before < 2 else "")

    hosts = FakeHosts(reply, has_wide_steps=False)
    failed, answers = hosts.ask(NAMES)
    assert (failed, len(answers)) == ({}, N)
    assert hosts.asked[slow] == 3


def test_an_unreachable_host_is_not_asked_again_while_others_answer() -> None:
    error = f"ssh: connect to host {NAMES[999]} port 22: No route to host"
    hosts = FakeHosts(
        lambda name, n, at_s: Reply(refused=error if name == NAMES[999] else ""), False
    )
    assert hosts.ask(NAMES).failed == {NAMES[999]: error}
    assert hosts.asked[NAMES[999]] == 1


def test_a_rack_of_dead_hosts_at_the_head_of_the_list_hides_no_other_host() -> None:
    rack = set(NAMES[:200])
    hosts = FakeHosts(lambda name, n, at_s: Reply(NEVER if name in rack else 0.2), False)
    failed, answers = hosts.ask(NAMES)
    assert set(failed) == rack
    assert {hosts.asked[name] for name in answers} == {1}
    assert_few_steps(hosts)


@pytest.mark.parametrize("wide", [True, False])
def test_a_controller_that_refuses_for_a_minute_makes_no_host_bad(wide: bool) -> None:
    busy = "srun: error: Unable to contact slurm controller (connect failure)"
    hosts = FakeHosts(lambda name, n, at_s: Reply(refused=busy if at_s < 60 else ""), wide)
    failed, answers = hosts.ask(NAMES)
    assert (failed, len(answers)) == ({}, N)
    assert_few_steps(hosts)
    # Pauses grow to 8 s: after 0, 0.5, 1.5, 3.5, 7.5, 15.5 s and so on there are at most 32 requests each.
    assert hosts.n_steps < N + 12 * STARTING_AT_ONCE
    assert len(hosts.printed) == 2


def test_steps_that_start_only_after_half_a_minute_make_no_host_bad() -> None:
    hosts = FakeHosts(lambda name, n, at_s: Reply(start_s=35.0))
    failed, answers = hosts.ask(NAMES)
    assert (failed, len(answers)) == ({}, N)
    assert_few_steps(hosts)


class Lacking(FakeHosts):
    """A launcher that cannot start a process for some seconds."""

    number = errno.EAGAIN
    lasts_s = 0.0

    def start(self, hosts: Sequence[str]) -> FakeStep:
        """Start a step, or fail."""
        if self.seconds < self.lasts_s:
            raise OSError(self.number, os.strerror(self.number))
        return super().start(hosts)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
@pytest.mark.parametrize("n", [3, N])
def test_what_the_asking_host_lacks_makes_no_host_bad(number: int, n: int) -> None:
    hosts = Lacking(lambda name, n_before, at_s: Reply())
    hosts.number, hosts.lasts_s = number, 60.0
    failed, answers = hosts.ask(NAMES[:n])
    assert (failed, len(answers)) == ({}, n)
    hosts.lasts_s = NEVER
    failed, answers = hosts.ask(NAMES[:n])
    assert (len(failed), answers) == (n, {})
    assert set(failed.values()) == {f"the command: {os.strerror(number)} (3 times)"}


def test_names_that_are_too_long_for_one_command_are_divided() -> None:
    class Short(FakeHosts):
        def start(self, hosts: Sequence[str]) -> FakeStep:
            if len(hosts) > 40:
                raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
            return super().start(hosts)

    hosts = Short(lambda name, n, at_s: Reply())
    assert (hosts.ask(NAMES).failed, len(hosts.asked)) == ({}, N)


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("reply", [Reply(NEVER), Reply(0.2, NEVER), Reply(refused="busy")])
def test_the_wait_for_all_hosts_ends_and_blames_none(reply: Reply, wide: bool) -> None:
    hosts = FakeHosts(lambda name, n, at_s: reply, wide)
    failed, answers = hosts.ask(NAMES)
    assert not answers
    (why,) = set(failed.values())
    assert why.startswith("no answer for 240 s, as from most hosts")
    # In narrow steps 128 hosts at a time, of which each has `answer_s`, are asked before the wait ends.
    rounds_s = 0 if wide else -(-N // RUNNING_AT_ONCE) * (LIMITS.start_s + LIMITS.answer_s)
    assert hosts.seconds < LIMITS.patience_s + rounds_s + 5
    assert_few_steps(hosts)


@pytest.mark.parametrize("wide", [True, False])
def test_a_rack_that_starts_and_hangs_hides_no_other_host(wide: bool) -> None:
    rack = set(NAMES[:200])
    hosts = FakeHosts(lambda name, n, at_s: Reply(0.2, NEVER if name in rack else 0.1), wide)
    failed, answers = hosts.ask(NAMES)
    assert (set(failed), len(answers)) == (rack, N - 200)
    assert_few_steps(hosts)


def test_few_hosts_are_judged_each_by_itself() -> None:
    hosts = FakeHosts(lambda name, n, at_s: Reply(NEVER), has_wide_steps=False)
    failed, _ = hosts.ask(NAMES[:3])
    assert set(failed.values()) == {"the command did not start within 10 s (3 times)"}
    assert hosts.seconds < 40
    assert not hosts.printed


def test_a_host_whose_answer_is_an_error_is_bad_at_once() -> None:
    error = "processes [7] did not end within 10 s of SIGKILL"
    hosts = FakeHosts(lambda name, n, at_s: Reply(error=error if name in DEAD else ""))
    assert hosts.ask(NAMES).failed == dict.fromkeys(DEAD, error)
    assert hosts.n_steps == 1


def test_an_answer_of_a_step_that_was_given_up_counts() -> None:
    # The first step starts on one host too late, and the later steps never do.
    late = NAMES[0]

    def reply(name: str, n_before: int, at_s: float) -> Reply:
        if name != late:
            return Reply(answer_s=20.0)
        return Reply(15.0) if n_before == 0 else Reply(NEVER)

    failed, answers = FakeHosts(reply).ask(NAMES)
    assert not failed
    assert late in answers


def test_a_signal_ends_the_wait() -> None:
    hosts = FakeHosts(lambda name, n, at_s: Reply(0.2, NEVER if name in DEAD else 1.0))
    failed, answers = hosts.ask(NAMES, hurry_at_s=5.0)
    assert failed == dict.fromkeys(DEAD, "not waited for: a signal asks for the end")
    assert len(answers) == N - 3
    assert hosts.seconds < 5.5


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([f"node{i:03d}" for i in (1, 2, 3, 17, 18, 20)], "node[001-003,017-018,020]"),
        (["b2", "a1", "a3", "a2"], "b2,a[1-3]"),
        (["n9", "n10", "n11"], "n[9-11]"),
        (["n09", "n9", "n10"], "n[9,09-10]"),
        (["n1.site", "n2.site", "n3"], "n[1-2].site,n3"),
        (["hal", "hal1", "hal2"], "hal,hal[1-2]"),
        (["10.0.0.1", "10.0.0.2", "login", "login"], "10.0.0.1,10.0.0.2,login"),
        ([], ""),
    ],
)
def test_names_are_written_as_slurm_writes_them(names: list[str], text: str) -> None:
    assert compact(names) == text


def test_reasons_that_differ_in_the_host_are_one() -> None:
    reasons = {f"n{i}": f"ssh: host n{i}: no route" for i in (1, 2, 11)} | {"m": "late"}
    assert by_reason(reasons) == [
        (["n1", "n2", "n11"], "ssh: host HOST: no route"),
        (["m"], "late"),
    ]
    assert by_reason({"n1": "ssh: host n1: no route"}) == [(["n1"], "ssh: host n1: no route")]
