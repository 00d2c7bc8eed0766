"""Every message of the code is in the catalogue, under the exit code that it ends with."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import mpips
from mpips import errors
from mpips.cli import explanations
from mpips.cli.explain import command
from mpips.config.schema import load_config, parse_assignment
from mpips.mpi.roles import check_servers
from mpips.scheduler.recorder import ReplacedError
from mpips.supervisor.hosts import HostsError
from mpips.supervisor.lease import LeaseLostError
from mpips.supervisor.verdict import EXIT_CODES

ROOT = Path(mpips.__file__).parent
# Words of others, with who or what they are about before them.
PASSED_ON = ("server X: X", "data.X: XX", "table X: X")
# Benchmarks are for developers; ranks of the doctor report to it.
LEFT_OUT = ("bench", "testing")
# Not errors of mpips, or shown to nobody.
NO_MESSAGES = (
    "SystemExit",
    "TerminatedError",
    "TypeError",
    "AssertionError",
    "AttributeError",
    "NotImplementedError",
)
CLASSES = inspect.getmembers(errors, inspect.isclass)
CODES = {name: kind.exit_code for name, kind in CLASSES if hasattr(kind, "exit_code")}
CODES |= {kind.__name__: kind.exit_code for kind in (HostsError, LeaseLostError, ReplacedError)}
CODES |= {"UsageError": 2, "LeavingError": 75}


def text_of(node: ast.expr) -> str:
    """A message with X for what is filled in; "" if nothing of it is fixed."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "X" for v in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return "X"


def raised() -> list[tuple[str, str, str]]:
    """(class, place, message) of every error that is raised with words of its own."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT)
        if place.parts[0] in LEFT_OUT:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not (
                isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args
            ):
                continue
            name = ast.unparse(node.exc.func).rpartition(".")[2]
            words = text_of(node.exc.args[0])
            # What only passes words on is caught where these are written.
            if name in NO_MESSAGES or words in PASSED_ON or not re.sub(r"X|\W", "", words):
                continue
            if name in CODES or name.endswith("Error"):
                found.append((name, f"{place}:{node.lineno}", words))
    return found


@pytest.mark.parametrize(("name", "place", "words"), raised(), ids=lambda value: str(value)[:40])
def test_every_message_is_explained(name: str, place: str, words: str) -> None:
    code = CODES.get(name, 1)
    known = explanations.find(words)
    assert any(entry.code == code for entry in known), f"{place}: {name} ({code}): {words}"


def native_messages() -> list[str]:
    """What the C++ code refuses with a sentence of its own that a user can meet."""
    folder = ROOT.parent / "native/src"
    found = []
    for path in folder.rglob("*.cpp"):
        for thrown in re.findall(
            r"throw (?:SharedMemoryError|SharedMemoryBusy|RecoveryError|ProtocolViolation)\((.*?)\);",
            path.read_text(),
            re.S,
        ):
            words = "X".join(re.findall(r'"((?:[^"\\]|\\.)*)"', thrown))
            if words:
                found.append(words)
    return found


@pytest.mark.skipif(not (ROOT.parent / "native/src").is_dir(), reason="no sources here")
def test_what_the_native_code_says_is_explained() -> None:
    messages = native_messages()
    assert len(messages) > 3
    # Servers say who they are before they pass it on.
    for words in messages:
        assert explanations.find(words) or explanations.find(f"server X: {words}"), words


def test_every_error_class_and_exit_code_has_its_place() -> None:
    codes = {code.number: code for code in explanations.catalogue()[0]}
    for name, code in CODES.items():
        assert name in codes[code].errors, name
    assert set(EXIT_CODES.values()) | {130, 143} <= set(codes)
    assert len(codes) == len(explanations.catalogue()[0])


def test_every_entry_is_whole_and_its_own() -> None:
    entries = explanations.catalogue()[1]
    assert len(entries) > 150
    for entry in entries:
        assert entry.meaning, entry.text
        assert entry.cure, entry.text
        assert explanations.find(entry.text.replace("...", "x")), entry.text
    texts = [(entry.code, entry.text) for entry in entries]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: parse_assignment("x"),
        lambda: check_servers(9, 4),
        lambda: load_config(None, [("tsak", "fm")]),
        lambda: load_config(None, [("task", "fm")]),
    ],
)
def test_a_real_message_finds_its_own_entry_first(mistake) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        mistake()
    first = explanations.find(f"mpips: error: {caught.value}")[0]
    assert first.code == 2
    assert first.parts[0].split()[0] in str(caught.value)


def run(*words: str, stdin: str = "") -> tuple[int, str]:
    done = CliRunner().invoke(command, list(words), input=stdin)
    return (1 if done.exception else 0), done.output or str(done.exception)


def test_a_message_a_code_a_class_and_words_are_answered() -> None:
    said = "server 0 has not brought table 'w' to clock 7; it waits for worker 2 at clock 6 (waited 300 s)"
    code, text = run(said)
    assert code == 0
    assert text.startswith("... has not brought table")
    assert "code     124" in text
    assert run("-", stdin=f"mpips: error: worker 1: {said}\n")[1].startswith("... has not brought")
    assert run("69")[1].startswith("exit code 69: something is missing here")
    assert run("StallError")[1].startswith("exit code 124: stalled")
    assert "/dev/shm is too small" in run("shared", "memory", "docker")[1]
    assert run()[1].count("exit code") == len(explanations.catalogue()[0])


def test_what_is_unknown_is_said_to_be() -> None:
    assert "nothing is known of 'qwertz'" in run("qwertz")[1]
    assert "exit code 77: mpips has 0, 1, 2" in run("77")[1]


def test_what_a_signal_ended_is_told_by_its_number() -> None:
    assert run("137")[1].startswith("exit code 137: ended by SIGKILL (signal 9)")
    assert "for want of memory" in run("137")[1]
    assert run("139")[1].startswith("exit code 139: ended by SIGSEGV (signal 11)")
