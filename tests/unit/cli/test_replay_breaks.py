"""Where `mpips replay` breaks, and what it does with the copies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from record_rig import content, varint

from mpips.checkpoint import DenseShardData, ManifestHead, write_checkpoint
from mpips.cli.replay_breaks import breaks_of, function_of, legs_until, show_breaks
from mpips.errors import ConfigError
from mpips.model.table import DenseTable
from mpips.record.files import NO_STOP, RecordedTable, ReplayBreak, break_folder
from mpips.record.legs import AttemptLeg
from mpips.rundir.directory import RunFolder

TABLES = [RecordedTable("w", "dense", "asp"), RecordedTable("a:b", "dense", "asp")]
TICK = 0x74


def leg(begin, ticks, stops=()):
    """A leg of workers that begin at these clocks, of which a server has consumed so many ticks."""
    data = b"".join(bytes([TICK]) + varint(w) for w, n in enumerate(ticks) for _ in range(n))
    file = content("server", 0, data, TABLES)
    head = replace(file.head, begin=tuple(begin), n_workers=len(ticks), tables=tuple(TABLES))
    return AttemptLeg(0, Path("attempt-0"), head, stops, [replace(file, head=head)])


def test_breaks_are_those_of_the_options_once_each():
    legs = [leg((0, 0), (5, 3))]
    found = breaks_of(("w:100", "a:b:2", "w:100"), 5, legs)
    assert found == (
        ReplayBreak(table="w", number=100),
        ReplayBreak(table="a:b", number=2),
        ReplayBreak(number=5),
    )
    assert [at.name for at in found] == ["w-100", "a%3Ab-2", "until-5"]
    assert breaks_of((), None, legs) == ()


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("w", "must be a table and a number of its updates from 1 on, as in w:100"),
        ("w:", "must be a table and a number"),
        ("w:0", "must be a table and a number"),
        ("w:-1", "must be a table and a number"),
        ("w:1e3", "must be a table and a number"),
        ("w:" + "9" * 30, "must be a table and a number"),
        ("v:3", "the run has no table 'v'; its tables are w, a:b"),
    ],
)
def test_a_wrong_place_is_refused_in_a_sentence(place, why):
    with pytest.raises(ConfigError, match=why):
        breaks_of((place,), None, [leg((0, 0), (5, 3))])


def test_a_step_that_is_not_repeated_is_refused():
    legs = [leg((4, 6), (5, 3))]
    assert breaks_of((), 9, legs) == (ReplayBreak(number=9),)
    with pytest.raises(ConfigError, match="--until 10: the run has 9 steps"):
        breaks_of((), 10, legs)
    with pytest.raises(ConfigError, match="--until 4: what is repeated begins behind step 4"):
        breaks_of((), 4, legs)
    assert breaks_of((), 5, legs) == (ReplayBreak(number=5),)


def test_a_replay_ends_with_the_leg_in_which_every_worker_comes_to_the_step():
    legs = [
        leg((0, 0, 0), (8, 4, 4), stops=(7, 4, NO_STOP)),
        leg((7, 4, 3), (2, 5, 0), stops=(1, 3, NO_STOP)),
        leg((8, 7, 3), (5, 5, 0)),
    ]
    assert [len(legs_until(legs, step)) for step in (1, 4, 5, 7, 8, 12)] == [1, 1, 2, 2, 3, 3]


def test_the_function_of_call_is_found_or_refused(tmp_path):
    breaks = (ReplayBreak(number=5),)
    file = tmp_path / "look.py"
    file.write_text("import near\nshow = near.show\nnumber = 3\n")
    (tmp_path / "near.py").write_text("def show(checkpoint):\n    return 'shown'\n")
    function = function_of(f"{file}:show", breaks)
    assert function is not None
    assert function(None) == "shown"  # type: ignore[arg-type]
    assert function_of(None, breaks) is None
    (tmp_path / "bad.py").write_text("1 / 0\n")
    for place, why in [
        (f"{file}:other", "has no function other"),
        (f"{file}:number", "has no function number"),
        (f"{file}", "must be a file and a function in it"),
        (f"{tmp_path}/none.py:show", "there is no file"),
        (f"{tmp_path}/bad.py:show", "raised ZeroDivisionError"),
    ]:
        with pytest.raises(ConfigError, match=why):
            function_of(place, breaks)
    with pytest.raises(ConfigError, match="has no effect without --break-at or --until"):
        function_of(f"{file}:show", ())


@pytest.fixture
def run(tmp_path):
    """A replay that has come to update 100 of table w."""
    found = RunFolder(tmp_path / "run")
    at = ReplayBreak(table="w", number=100)
    shards = [DenseShardData("w", 0, np.arange(3, dtype=np.float32), {}, 100)]
    head = ManifestHead("run", 0, at.number, 0.0, [DenseTable("w", (3,))])
    write_checkpoint(None, break_folder(found, at), head, shards)
    return found, at


def test_the_checkpoint_of_a_break_is_shown_and_handed_to_the_function(run, capsys):
    found, at = run
    read = []
    show_breaks(found, (at,), lambda c: read.append(c.read_dense("w")[0].tolist()), quiet=False)
    assert read == [[0.0, 1.0, 2.0]]
    path = break_folder(found, at) / "step-000000000100"
    assert f"update 100 of table 'w': tables in {path}" in " ".join(
        capsys.readouterr().out.split("\n")
    ).replace("  ", " ")

    def fails(checkpoint):
        raise KeyError("x")

    with pytest.raises(ConfigError, match="--call: raised KeyError at w-100: 'x'"):
        show_breaks(found, (at,), fails, quiet=False)


def test_a_break_to_which_the_replay_has_not_come_is_named(run):
    found, at = run
    others = (at, ReplayBreak(table="a:b", number=2), ReplayBreak(number=3000))
    with pytest.raises(ConfigError, match="not come to update 2 of table 'a:b', step 3,000 on all"):
        show_breaks(found, others, None, quiet=True)
