"""The commands `mpips web`, `mpips report` and `mpips plot`: texts, refusals and files."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from run_files import full_run

from mpips.cli import plot, report, web
from mpips.cli.output import check_new, write_new
from mpips.errors import CapabilityError, ConfigError

SERVES = [sys.executable, "-m", "mpips", "web"]


def run(command: object, *arguments: str) -> None:
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)  # type: ignore[arg-type]
    assert done.exit_code == 0, done.output


def test_web_prints_its_address_and_the_tunnel_and_ends_on_ctrl_c(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    pytest.importorskip("starlette", reason="starlette is not installed")
    full_run(tmp_path)
    process = subprocess.Popen(
        [*SERVES, "--folder", str(tmp_path)], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        lines = [process.stderr.readline(), process.stderr.readline()]
        found = re.search(r"http://127\.0\.0\.1:(\d+)/([\w-]{32})/ ", lines[0])
        assert found is not None, lines
        port = int(found[1])
        assert re.search(rf"ssh -L {port}:127\.0\.0\.1:{port} \S+@\S+$", lines[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", f"/{found[2]}/events?runs=job")
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.readline() == b"event: hello\n"
        # Only loopback is listened on: another address of this machine refuses.
        with pytest.raises(OSError, match=r"refused|unreachable|timed out"):
            socket.create_connection((socket.gethostbyname("127.0.0.2"), port), 5)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(20) == 0
        assert rest == "", "an open page is no error at the end"
        connection.close()
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def test_web_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_run(tmp_path)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(CapabilityError, match=r"needs Starlette and Uvicorn \(pip install"):
        run(web.command, "--folder", str(tmp_path))


def test_web_refuses_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run 'nothing'"):
        run(web.command, "nothing", "--folder", str(tmp_path))
    with pytest.raises(ConfigError, match="is no folder"):
        run(web.command, "--folder", str(tmp_path / "missing"))


def test_web_refuses_a_port_in_use(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    pytest.importorskip("starlette", reason="starlette is not installed")
    full_run(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = str(used.getsockname()[1])
        with pytest.raises(
            ConfigError, match=rf"127\.0\.0\.1:{port} cannot be listened on.*--port"
        ):
            run(web.command, "--folder", str(tmp_path), "--port", port)


def test_report_writes_one_file_for_the_runs_that_are_named(tmp_path: Path) -> None:
    full_run(tmp_path, "first")
    full_run(tmp_path, "second", begin=1_790_000_500.0)
    out = tmp_path / "out.html"
    run(report.command, "first", "second", "--folder", str(tmp_path), "-o", str(out))
    text = out.read_text()
    assert '"run":"first"' in text
    assert '"run":"second"' in text
    run(report.command, "--folder", str(tmp_path), "-o", str(out), "--force")
    assert '"run":"first"' not in out.read_text(), "the newest run alone"


@pytest.mark.parametrize(
    ("command", "name", "begin"),
    [(report.command, "mine.html", "<!"), (plot.command, "mine.svg", "<?xml")],
)
def test_no_file_is_replaced_without_force(
    tmp_path: Path, command: object, name: str, begin: str
) -> None:
    if command is plot.command:
        pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    full_run(tmp_path, "job")
    out = tmp_path / name
    out.write_text("mine")
    given = ("job", "--folder", str(tmp_path), "-o", str(out))
    with pytest.raises(ConfigError, match=rf"{name}: already exists; use --force to replace it"):
        run(command, *given)
    assert out.read_text() == "mine"
    run(command, *given, "--force")
    assert out.read_text().startswith(begin)


def test_a_file_that_is_made_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    check_new(out, force=False)
    out.write_text("mine")
    with pytest.raises(ConfigError, match=r"out\.html: already exists"):
        write_new(out, b"new", force=False)
    with pytest.raises(ConfigError, match=r"out\.html: already exists"):
        check_new(out, force=False)
    assert out.read_text() == "mine"


def test_report_says_what_it_cannot_do(tmp_path: Path) -> None:
    full_run(tmp_path, "job")
    with pytest.raises(ConfigError, match="no run 'other'"):
        run(report.command, "other", "--folder", str(tmp_path))
    missing = tmp_path / "no" / "out.html"
    with pytest.raises(ConfigError, match=r"out\.html: cannot be written: No such file"):
        run(report.command, "job", "--folder", str(tmp_path), "-o", str(missing))
    for i in range(9):
        full_run(tmp_path, f"run-{i}")
    with pytest.raises(ConfigError, match="9 runs: a page shows at most 8"):
        run(report.command, *(f"run-{i}" for i in range(9)), "--folder", str(tmp_path))


def test_report_needs_no_server(tmp_path: Path) -> None:
    full_run(tmp_path, "job")
    out = tmp_path / "out.html"
    program = (
        "import sys; sys.modules['starlette'] = sys.modules['uvicorn'] = None\n"
        f"sys.argv = ['mpips', 'report', 'job', '--folder', {str(tmp_path)!r}, '-o', {str(out)!r}]\n"
        "from mpips.cli import main; main()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=os.environ)
    assert out.stat().st_size > 20_000
