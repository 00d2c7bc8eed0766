"""`mpips explain`: what a message means and what to do."""

from __future__ import annotations

import shutil
import signal
import sys
import textwrap

import click

from mpips.cli import explanations
from mpips.cli.explanations import Code, Entry
from mpips.errors import ConfigError
from mpips.supervisor.verdict import signal_name

_MOST = 3  # answers to a message
_SIGNALS = {
    int(
        signal.SIGKILL
    ): "by hand, by the batch system, or by the kernel for want of memory (dmesg)",
    int(signal.SIGSEGV): "a crash in native code; the rank's log has the stack",
    int(signal.SIGBUS): "often /dev/shm or a disk that became full; mpips doctor",
}


@click.command(short_help="Tell what a message or an exit code means, and what to do.")
@click.argument("words", nargs=-1)
def command(words: tuple[str, ...]) -> None:
    """Tell what a message or an exit code means, and what to do.

    WORDS: a message as it was printed (a part will do), an exit code, the name of an error class, or some
    words to search for. "-" reads the message from standard input. Without WORDS: all exit codes.

    \b
    mpips explain 124
    mpips explain "server 0 has not brought table 'w' to clock 7"
    mpips explain shared memory
    mpips train job.toml 2>&1 | tail -1 | mpips explain -
    """
    text = sys.stdin.read() if words == ("-",) else " ".join(words)
    if not text.strip():
        for code in explanations.catalogue()[0]:
            click.echo(_code(code))
        return
    if text.strip().isdigit():
        click.echo(_all_of(int(text)))
        return
    if (by_name := explanations.of_class(text.strip())) is not None:
        click.echo(_all_of(by_name.number))
        return
    found = explanations.find(text)[:_MOST] or explanations.search(text)
    if not found:
        raise ConfigError(
            f"nothing is known of {text.strip()[:60]!r}; mpips explain CODE lists the messages of an "
            "exit code"
        )
    click.echo("\n\n".join(_entry(entry) for entry in found))


def _all_of(number: int) -> str:
    known = explanations.of_code(number)
    if known is None and 128 < number <= 128 + signal.NSIG:
        return _signal(number)
    if known is None:
        codes = ", ".join(str(code.number) for code in explanations.catalogue()[0])
        raise ConfigError(
            f"exit code {number}: mpips has {codes}; above 128 it is 128 and a signal"
        )
    code, entries = known
    return "\n\n".join([_code(code), *(_entry(entry) for entry in entries)])


def _signal(number: int) -> str:
    name = signal_name(number - 128)
    why = _SIGNALS.get(number - 128, "from outside")
    return f"exit code {number}: ended by {name}\n  {why}"


def _code(code: Code) -> str:
    return f"exit code {code.number}: {code.name}\n" + _wrapped("", code.meaning)


def _entry(entry: Entry) -> str:
    rows = [("means", entry.meaning), ("do", entry.cure), ("code", str(entry.code))]
    return "\n".join([entry.text, *(_wrapped(f"{name:<9}", text) for name, text in rows)])


def _wrapped(name: str, text: str) -> str:
    width = max(shutil.get_terminal_size((100, 0)).columns - 1, 40)
    return textwrap.fill(
        text,
        width,
        initial_indent=f"  {name}",
        subsequent_indent=" " * (2 + len(name)),
        break_long_words=False,
        break_on_hyphens=False,
    )
