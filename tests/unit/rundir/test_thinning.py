"""metrics.jsonl of a long run: it stays small, and merged lines stand for all that was reported."""

from __future__ import annotations

import json
import resource
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpips.rundir import thinning as module
from mpips.rundir.thinning import thin, thin_file

HOUR, DAY = 3600.0, 86400.0
EVERY_S = 30.0  # s between two lines of the long run; fewer than in a real run, to be quick
START = 1_700_000_000.0  # Unix time at which the runs of the tests begin


def line(time_s: float, samples: int, loss: float | None = 0.5, **more: Any) -> dict[str, Any]:
    """A line of progress whose samples were trained on at eight per second."""
    found = {
        "time_s": time_s,
        "generation": 0,
        "epoch": 0,
        "step": samples,
        "samples": samples,
        "loss": loss,
        "samples_per_s": 8.0,
        "staleness": 2.0,
        "push_bytes_per_s": 100.0,
        "pull_bytes_per_s": None,
    }
    return found | more


def encoded(lines: list[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(fields, separators=(",", ":")).encode() + b"\n" for fields in lines]


def thinned(lines: list[dict[str, Any]], now: float) -> list[dict[str, Any]]:
    return [json.loads(found) for found in thin(encoded(lines), now)]


def sums(lines: list[dict[str, Any]]) -> dict[int, tuple[float, ...]]:
    """Samples, sum of losses, seconds, pushed bytes by generation, as a reader computes them."""
    before: dict[int, int] = defaultdict(int)
    found: dict[int, list[float]] = defaultdict(lambda: [0.0] * 4)
    for fields in lines:
        if "test" in fields:
            continue
        generation = fields["generation"]
        n = fields["samples"] - before[generation]
        before[generation] = fields["samples"]
        seconds = n / fields["samples_per_s"]
        parts = (n, n * fields["loss"], seconds, seconds * fields["push_bytes_per_s"])
        found[generation] = [a + b for a, b in zip(found[generation], parts, strict=True)]
    return {generation: tuple(values) for generation, values in found.items()}


def test_young_lines_of_the_same_time_are_not_merged() -> None:
    lines = encoded([line(START, 1), line(START, 2)])
    assert [found + b"\n" for found in thin(lines, START + 1)] == lines


def test_lines_of_the_last_hour_are_unchanged() -> None:
    lines = encoded([line(START + i, i + 1) for i in range(3600)])
    assert [found + b"\n" for found in thin(lines, START + 3600)] == lines


def test_a_merged_line_has_weighted_means_and_the_last_counts() -> None:
    begin = START // 10 * 10
    lines = [
        line(begin + 1, 10, 1.0, staleness=None, push_bytes_per_s=100.0),
        line(begin + 2, 40, 5.0, staleness=1.0, push_bytes_per_s=200.0, samples_per_s=10.0),
        line(begin + 9, 50, 1.0, staleness=5.0, epoch=3),
    ]
    (found,) = thinned(lines, begin + 2 * HOUR)
    assert (found["time_s"], found["epoch"]) == (begin + 9, 3)
    assert (found["samples"], found["step"]) == (50, 50)
    assert found["loss"] == (10 * 1.0 + 30 * 5.0 + 10 * 1.0) / 50
    assert found["samples_per_s"] == 50 / (10 / 8 + 30 / 10 + 10 / 8)
    assert found["staleness"] == (30 * 1.0 + 10 * 5.0) / 40
    assert found["push_bytes_per_s"] == round((1.25 * 100 + 3 * 200 + 1.25 * 100) / 5.5, 6)
    assert found["pull_bytes_per_s"] is None


def test_lines_of_a_script_that_counts_no_samples_weigh_the_same() -> None:
    lines = [line(START + i, 0, float(i), samples_per_s=0.0, learning_rate=i) for i in range(1, 4)]
    (merged,) = thinned(lines, START + 2 * HOUR)
    assert (merged["loss"], merged["samples"], merged["samples_per_s"]) == (2.0, 0, 0.0)
    assert merged["learning_rate"] == 3


def test_a_loss_that_is_no_number_remains_visible() -> None:
    begin = START // 10 * 10
    lines = [line(begin + 1, 10, 1.0), line(begin + 2, 20, None), line(begin + 3, 30, 1.0)]
    (found,) = thinned(lines, begin + 2 * HOUR)
    assert (found["samples"], found["loss"]) == (30, None)


def test_lines_of_two_attempts_are_not_merged() -> None:
    begin = START // 10 * 10
    lines = [line(begin + 1, 10), line(begin + 2, 20), line(begin + 3, 5, generation=1)]
    lines.append(line(begin + 4, 9, generation=1))
    found = thinned(lines, begin + 2 * HOUR)
    assert [(row["generation"], row["samples"]) for row in found] == [(0, 20), (1, 9)]


def test_evaluations_and_lines_of_another_form_stay_as_they_are() -> None:
    other = [b'{"time_s":1,"generation":0,"test":{"auc":0.5}}', b'{"a":1}', b"[]", b"half a li"]
    begin = START // 10 * 10
    lines = [*encoded([line(begin + 1, 10)]), *other, *encoded([line(begin + 2, 20)])]
    found = list(thin(lines, begin + 2 * HOUR))
    assert found[1:-1] == other
    assert [json.loads(found[i])["samples"] for i in (0, -1)] == [10, 20]


@pytest.mark.parametrize(
    ("age_s", "length_s"),
    [
        (0.9 * HOUR, 0),
        (2 * HOUR, 10),
        (5.9 * HOUR, 10),
        (7 * HOUR, 60),
        (3 * DAY, 360),
        (20 * DAY, 2160),
    ],
)
def test_the_interval_grows_with_the_age(age_s: float, length_s: float) -> None:
    # Two lines at the ends of one interval of this length, and one in the next interval.
    length = length_s or 1
    begin = START // 2160 * 2160
    lines = [line(begin, 1), line(begin + length - 0.5, 2), line(begin + length, 3)]
    found = thinned(lines, begin + length + age_s)
    assert [row["samples"] for row in found] == ([2, 3] if length_s else [1, 2, 3])


def days(n_days: int, every_s: float) -> Iterator[list[dict[str, Any]]]:
    """Yield the new lines of each day of a run with a restart a week and evaluations."""
    samples, restarts, i = 0, 0, 0
    for day in range(n_days):
        new: list[dict[str, Any]] = []
        if day % 7 == 6:
            restarts, samples = restarts + 1, 0
        for k in range(int(DAY / every_s)):
            i += 1
            samples += i % 7 + 1
            time_s = START + day * DAY + k * every_s
            new.append(
                line(time_s, samples, (i % 13) / 8, generation=restarts, push_bytes_per_s=i % 5)
            )
            if i % 499 == 0:
                new.append({"time_s": time_s, "generation": restarts, "test": {"auc": i / 1e6}})
        yield new


@pytest.mark.long
def test_thirty_days_stay_small_and_complete_at_every_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    evaluations: list[dict[str, Any]] = []
    expected: dict[int, tuple[float, ...]] = {}
    for day, new in enumerate(days(30, EVERY_S)):
        with path.open("ab") as file:
            file.writelines(encoded(new))
        evaluations += [fields for fields in new if "test" in fields]
        # Samples count from the start of an attempt, so the new lines continue the sums of the old file.
        found = [json.loads(text) for text in path.read_bytes().splitlines()]
        expected = sums(found)
        thin_file(path, START + (day + 1) * DAY, lambda: True)
        found = [json.loads(text) for text in path.read_bytes().splitlines()]
        assert [fields for fields in found if "test" in fields] == evaluations
        progress = [fields for fields in found if "test" not in fields]
        assert [f["time_s"] for f in progress] == sorted(f["time_s"] for f in progress)
        now = sums(found)
        assert now.keys() == expected.keys()
        for generation, values in expected.items():
            assert now[generation][0] == values[0]
            assert now[generation] == pytest.approx(values, rel=1e-6)
        # Lines between evaluations, and one more for each of them.
        assert len(progress) <= HOUR / EVERY_S + 4 * 1800 + len(evaluations) + 10
    assert path.stat().st_size < 2_500_000
    n_lines = int(30 * DAY / EVERY_S)
    assert sum(values[0] for values in expected.values()) == sum(
        i % 7 + 1 for i in range(1, n_lines + 1)
    )
    assert list(tmp_path.iterdir()) == [path]


def test_lines_that_are_merged_step_by_step_are_those_merged_at_once() -> None:
    lines = [line(START + 4 * i, i + 1, 0.25 * (i % 3)) for i in range(6 * 900)]
    found = lines
    for now in range(0, int(10 * HOUR), 2345):
        found = thinned(found, START + now)
    expected = thinned(lines, START + now)
    assert [row["samples"] for row in found] == [row["samples"] for row in expected]
    assert [row["loss"] for row in found] == pytest.approx([row["loss"] for row in expected])


def test_a_file_that_is_thin_already_is_not_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [line(START + i, i + 1) for i in range(2000)]
    path.write_bytes(b"".join(encoded(lines)))
    thin_file(path, START + DAY, lambda: True)
    before = path.stat().st_ino, path.read_bytes()
    assert len(before[1].splitlines()) == pytest.approx(2000 / 60, abs=2)
    thin_file(path, START + DAY, lambda: True)
    assert (path.stat().st_ino, path.read_bytes()) == before


def test_a_missing_file_is_left_missing(tmp_path: Path) -> None:
    thin_file(tmp_path / "metrics.jsonl", START, lambda: True)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    """Return a file whose lines are all old."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(encoded([line(START + i, i + 1) for i in range(20_000)])))
    return path


def test_a_full_disk_leaves_the_old_file(old_file: Path) -> None:
    before = old_file.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            thin_file(old_file, START + DAY, lambda: True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert old_file.read_bytes() == before
    assert list(old_file.parent.iterdir()) == [old_file]


def test_an_attempt_that_was_replaced_leaves_the_old_file(old_file: Path) -> None:
    before = old_file.read_bytes()
    thin_file(old_file, START + DAY, lambda: False)
    assert old_file.read_bytes() == before
    assert list(old_file.parent.iterdir()) == [old_file]


def test_a_line_that_is_added_meanwhile_is_not_lost(
    old_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def adding(lines: Iterator[bytes], now: float) -> Iterator[bytes]:
        yield from list(thin(lines, now))
        with old_file.open("ab") as file:
            file.write(b'{"late":1}\n')

    monkeypatch.setattr(module, "thin", adding)
    thin_file(old_file, START + DAY, lambda: True)
    found = old_file.read_bytes().splitlines()
    assert (len(found), found[-1]) == (20_001, b'{"late":1}')


def test_a_reader_sees_a_whole_file_at_any_time(old_file: Path) -> None:
    with old_file.open("rb") as reader:
        head = reader.read(100)
        thin_file(old_file, START + DAY, lambda: True)
        # The file that is open is still the old one.
        rest = reader.read()
    old = [json.loads(text) for text in (head + rest).splitlines()]
    new = [json.loads(text) for text in old_file.read_bytes().splitlines()]
    assert len(old) == 20_000
    assert sums(new)[0][:2] == pytest.approx(sums(old)[0][:2])


@pytest.mark.parametrize(
    "damage",
    [
        b'{"time_s":1.0,"generation":0,"test":{"pr\xc3{"time_s":2.0}\n',
        b'{"time_s":1e999,"generation":0,"samples":3,"loss":1.0,"samples_per_s":1.0}\n',
        encoded([line(START, 8, loss="much")])[0],  # type: ignore[arg-type]
        encoded([line(START, 8, staleness=[1])])[0],
        b"\0" * 64 + b"\n",
    ],
)
def test_a_damaged_line_stays_and_ends_nothing(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = encoded([line(START + k, 8 * (k + 2)) for k in range(60)])
    path.write_bytes(b"".join([damage, *lines]))
    thin_file(path, START + DAY, lambda: True)
    found = path.read_bytes()
    assert damage in found
    assert len(found.splitlines()) < 60
