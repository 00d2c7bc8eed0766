"""Chains of checkpoints: reading, damage, compaction and retention."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from chains import History, check
from checkpoints import flip
from click.testing import CliRunner

from mpips.checkpoint import (
    Retention,
    apply_delta,
    changes,
    find_newest,
    folder,
    list_checkpoints,
    open_checkpoint,
    reader,
    retain,
    write_delta,
    writer,
)
from mpips.checkpoint import chain as chain_reading
from mpips.checkpoint import compact as compaction
from mpips.checkpoint.compact import compact, write_whole
from mpips.checkpoint.compare import compare
from mpips.checkpoint.export import export
from mpips.checkpoint.manifest import MANIFEST, decode, encode
from mpips.cli.ckpt import command
from mpips.errors import CheckpointError, ConfigError


def written(folder: Path, n: int, seed: int = 1) -> History:
    """Write a base and links, n checkpoints in all."""
    history = History(seed)
    history.write(folder)
    for _ in range(n - 1):
        history.evolve()
        history.write(folder)
    return history


@pytest.fixture
def chain(tmp_path: Path) -> History:
    return written(tmp_path / "checkpoints", 4)


def paths_of(history: History) -> list[Path]:
    return [info.path for _, info in history.written]


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))]
)
def test_every_link_is_read_as_the_tables_at_its_cut(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(changes, "MOST_CHANGED", 10)
    # Small blocks end at many places.
    for name, size in (("_KEYS", 40), ("_BLOCK_BYTES", 200), ("_PIECES", 2)):
        monkeypatch.setattr(chain_reading, name, size)
    history = written(tmp_path, 7, seed)
    for number, (columns, info) in enumerate(history.written):
        with open_checkpoint(info.path) as checkpoint:
            assert info.place is not None
            assert info.place.index == number
            assert checkpoint.damage() == []
            check(checkpoint, columns)


def test_a_link_that_replaces_latest_while_it_is_opened_changes_nothing(tmp_path, monkeypatch):
    history = History(1)
    history.write(tmp_path)
    # Write two links with different rows, whose files have the same size.
    for at in (0, 5):
        users = history.contents.columns["users"]
        users["values"][at : at + 5] += 1
        history.changed({"users": users["keys"][at : at + 5]})
        history.write(tmp_path)
    (_, (columns, first), (_, second)) = history.written
    assert first.n_bytes == second.n_bytes
    folder.point_latest(first.path)
    read = reader._read_manifest

    def then_the_next_one_is_published(path: Path) -> object:
        found = read(path)
        folder.point_latest(second.path)
        return found

    monkeypatch.setattr(reader, "_read_manifest", then_the_next_one_is_published)
    with open_checkpoint(tmp_path / "latest") as checkpoint:
        check(checkpoint, columns)
        assert checkpoint.damage() == []
        assert checkpoint.path.name == first.path.name


def test_a_link_has_only_what_differs(chain):
    base, link = (info for _, info in chain.written[:2])
    assert link.n_bytes < 0.5 * base.n_bytes
    with open_checkpoint(link.path) as checkpoint:
        found = checkpoint.manifest.link
    assert found is not None
    assert (found.index, found.base.name, found.previous.name) == (
        1,
        base.path.name,
        base.path.name,
    )
    changed = {table.name: table.shape[0] for table in found.tables}
    assert 0 < changed["users"] < 100
    assert 0 < changed["weight"] <= 13
    assert not (link.path / "state.h5").exists()


def test_a_file_of_a_link_explains_itself(chain):
    h5py = pytest.importorskip("h5py")
    with h5py.File(chain.written[2][1].path / "changes.h5") as file:
        assert file.attrs["link"] == 2
        assert file.attrs["previous"].decode() == chain.written[1][1].path.name
        assert file.attrs["base"].decode() == chain.written[0][1].path.name
        assert b"link of a chain" in file.attrs["meaning"]
        users = file["tables/users"]
        assert (np.diff(users["keys"]) > 0).all()
        assert (
            users["removed/keys"]
            .attrs["meaning"]
            .decode()
            .startswith("keys of rows that have been")
        )
        assert file["tables/weight/values"].shape[1] == 256


@pytest.mark.parametrize(("share", "is_link"), [(0.03, True), (1.0, False)], ids=["few", "all"])
def test_tables_that_have_mostly_changed_are_written_as_a_whole(tmp_path, share, is_link):
    history = written(tmp_path, 1)
    history.evolve(share)
    info = history.write(tmp_path)
    assert (info.place.index == 1) == is_link
    with open_checkpoint(info.path) as checkpoint:
        check(checkpoint, history.written[-1][0])


@pytest.mark.parametrize("loss", ["base", "middle", "replaced"])
def test_a_chain_that_has_lost_a_checkpoint_is_not_continued(chain, loss):
    folder = paths_of(chain)[0].parent
    lost = paths_of(chain)[0 if loss == "base" else 2]
    shutil.rmtree(lost)
    if loss == "replaced":
        shutil.copytree(paths_of(chain)[1], lost)
    chain.evolve()
    info = chain.write(folder)
    assert info.place.index == 0
    with open_checkpoint(info.path) as checkpoint:
        check(checkpoint, chain.written[-1][0])


@pytest.mark.parametrize("lost", [0, 3])
def test_a_link_is_not_published_if_its_chain_is_removed_meanwhile(chain, monkeypatch, lost):
    folder = paths_of(chain)[0].parent
    can_continue = writer.can_continue

    def then_removed(*place: object) -> bool:
        found = can_continue(*place)
        shutil.rmtree(paths_of(chain)[lost])
        return found

    monkeypatch.setattr(writer, "can_continue", then_removed)
    left = sorted(set(folder.iterdir()) - {paths_of(chain)[lost]})
    chain.evolve()
    with pytest.raises(
        CheckpointError, match=f"{paths_of(chain)[lost].name}, which the chain needs"
    ):
        chain.write(folder)
    assert sorted(folder.iterdir()) == left


def test_damage_in_any_file_of_a_chain_is_named_and_the_last_good_state_is_found(chain):
    paths = paths_of(chain)
    with open_checkpoint(paths[2]) as checkpoint:
        entry = checkpoint.manifest.link.table("users").dataset("values")
    flip(paths[2] / "changes.h5", entry.offset + 1)
    with open_checkpoint(paths[3]) as checkpoint:
        (text,) = checkpoint.damage()
    assert text.startswith(
        f"the chain's checkpoint {paths[2].name}: values of table 'users', rows 0 to "
    )
    found = find_newest(paths[0].parent)
    assert found.checkpoint is not None
    assert found.checkpoint.path == paths[1]
    assert [refusal.path for refusal in found.refused] == [paths[3], paths[2]]
    assert f"the chain's checkpoint {paths[2].name}" in found.refused[0].reason
    check(found.checkpoint, chain.written[1][0])
    result = CliRunner().invoke(command, ["verify", str(paths[3])])
    assert paths[2].name in result.output
    assert result.exit_code != 0


@pytest.mark.parametrize("what", ["gone", "other", "renamed", "short"])
def test_a_missing_link_is_named_and_the_state_before_it_is_found(chain, what):
    paths = paths_of(chain)
    if what == "gone":
        shutil.rmtree(paths[1])
    elif what == "short":
        os.truncate(paths[1] / "changes.h5", 100)
    else:
        manifest = paths[1] / MANIFEST
        content = decode(manifest.read_bytes(), manifest)
        if what == "renamed":
            os.rename(paths[1], paths[1].with_name("step-000000000115"))
        else:
            manifest.write_bytes(encode(msgspec.structs.replace(content, note="x"), "1"))
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(paths[3])
    text = str(caught.value)
    assert text.startswith(
        f"{paths[3]}: is a link of a chain, and {paths[1].name}, which the chain needs"
    )
    assert ("has been replaced by another checkpoint" in text) == (what == "other")
    found = find_newest(paths[0].parent)
    assert found.checkpoint is not None
    assert found.checkpoint.path == (paths[1] if what == "other" else paths[0])
    assert any(paths[1].name in refusal.reason for refusal in found.refused)
    found.checkpoint.close()


def test_files_that_do_not_fit_each_other_are_damage(chain):
    path = paths_of(chain)[1]
    content = decode((path / MANIFEST).read_bytes(), path)
    users = content.table("users")
    more = msgspec.structs.replace(
        users,
        shape=(users.shape[0] + 1, 3),
        datasets=tuple(
            msgspec.structs.replace(d, shape=(d.shape[0] + 1, *d.shape[1:])) for d in users.datasets
        ),
    )
    tables = tuple(more if t.name == "users" else t for t in content.tables)
    (path / MANIFEST).write_bytes(encode(msgspec.structs.replace(content, tables=tables), "1"))
    with open_checkpoint(path) as checkpoint:
        (text,) = checkpoint.damage()
    assert "the chain gives" in text
    assert "one of its checkpoints is damaged" in text


@pytest.mark.parametrize("name", ["../elsewhere", "", ".."])
def test_a_link_that_names_another_folder_is_refused(chain, name):
    path = paths_of(chain)[1]
    content = decode((path / MANIFEST).read_bytes(), path)
    link = msgspec.structs.replace(
        content.link, previous=msgspec.structs.replace(content.link.previous, name=name)
    )
    (path / MANIFEST).write_bytes(encode(msgspec.structs.replace(content, link=link), "1"))
    with pytest.raises(CheckpointError, match="names a checkpoint in another folder"):
        open_checkpoint(path)


def test_what_a_link_continues_is_never_removed(chain):
    folder = paths_of(chain)[0].parent
    result = retain(folder, Retention(1))
    assert result.removed == ()
    assert len(list_checkpoints(folder)) == 4
    # After a new base the older chain is not needed.
    chain.evolve()
    chain.write(folder, whole=True)
    chain.evolve()
    last = chain.write(folder)
    result = retain(folder, Retention(1), full=True)
    assert result.removed == tuple(path.name for path in paths_of(chain)[:4])
    with open_checkpoint(last.path) as checkpoint:
        check(checkpoint, chain.written[-1][0])


def test_the_chain_of_a_checkpoint_that_stays_as_damaged_stays_as_well(chain):
    folder = paths_of(chain)[0].parent
    newest = paths_of(chain)[3]
    with open_checkpoint(newest) as checkpoint:
        entry = checkpoint.manifest.link.table("half").dataset("values")
    flip(newest / "changes.h5", entry.offset)
    result = retain(folder, Retention(1), full=True)
    assert result.removed == ()
    assert len(result.remaining) == 4
    # The newest undamaged checkpoint needs no other one, and the damaged one needs its chain.
    with open_checkpoint(paths_of(chain)[2]) as link:
        form = write_whole(link, folder / "step-000000000125")
    result = retain(folder, Retention(1), full=True)
    assert result.removed == ()
    assert sorted(result.remaining) == sorted(p.name for p in [*paths_of(chain), Path(form.path)])


@pytest.mark.parametrize("place", [1, 2, 3])
def test_compaction_gives_the_file_that_a_whole_checkpoint_has(chain, tmp_path, place):
    paths = paths_of(chain)
    columns, info = chain.written[place]
    made = compact(info.path)
    assert made.link_bytes == info.n_bytes
    assert sorted(p.name for p in info.path.iterdir()) == ["manifest.json", "state.h5"]
    other = History(1)
    other.contents.columns = columns
    step = 100 + 10 * place
    whole = other.contents.write(tmp_path / "whole", step)
    assert (whole.path / "state.h5").read_bytes() == (info.path / "state.h5").read_bytes()
    # The links that follow still lead to their tables, and the older checkpoints are not needed.
    for path in paths[:place]:
        shutil.rmtree(path)
    for columns, info in chain.written[place:]:
        with open_checkpoint(info.path) as checkpoint:
            assert checkpoint.damage() == []
            check(checkpoint, columns)
    with pytest.raises(ConfigError, match="is whole already"):
        compact(paths[place])


@pytest.mark.parametrize("point", ["compacted", "whole"])
def test_a_compaction_that_ends_early_leaves_the_link_or_the_whole(chain, monkeypatch, point):
    class EndError(Exception):
        pass

    def end(name: str) -> None:
        if name == point:
            raise EndError

    columns, info = chain.written[2]
    with monkeypatch.context() as patch:
        patch.setattr(compaction._native, "fault_point", end)
        with pytest.raises(EndError):
            compact(info.path)
    assert len(list(info.path.iterdir())) == (4 if point == "compacted" else 3)
    with open_checkpoint(info.path) as checkpoint:
        assert (checkpoint.manifest.link is None) == (point == "whole")
        assert checkpoint.damage() == []
        check(checkpoint, columns)
    if point == "compacted":
        compact(info.path)
    else:
        with pytest.raises(ConfigError):
            compact(info.path)
    assert sorted(p.name for p in info.path.iterdir()) == ["manifest.json", "state.h5"]
    with open_checkpoint(chain.written[3][1].path) as checkpoint:
        check(checkpoint, chain.written[3][0])


def test_a_damaged_chain_is_not_compacted(chain):
    paths = paths_of(chain)
    flip(paths[0] / "state.h5", 5000)
    with pytest.raises(CheckpointError, match=f"the chain's checkpoint {paths[0].name}"):
        compact(paths[2])
    assert (paths[2] / "changes.h5").exists()


def test_a_compaction_waits_for_no_writer(chain):
    from mpips.checkpoint.folder import locked

    path = paths_of(chain)[2]
    with locked(path.parent), pytest.raises(CheckpointError, match="another process is writing"):
        compact(path)


def test_deltas_lead_from_chain_to_chain(chain, tmp_path):
    paths = paths_of(chain)
    out = tmp_path / "delta"
    with open_checkpoint(paths[1]) as first, open_checkpoint(paths[3]) as second:
        with pytest.raises(ConfigError, match="make it whole first"):
            write_delta(first, second, out)
        whole = write_whole(second, tmp_path / "whole")
        with open_checkpoint(whole.path) as target:
            write_delta(first, target, out)
            assert all(d.same for d in compare(second, target))
        made = apply_delta(first, out, tmp_path / "applied")
    with open_checkpoint(made) as checkpoint:
        check(checkpoint, chain.written[3][0])
    # The delta can also be applied to the compacted form of its first checkpoint.
    with open_checkpoint(paths[1]) as link:
        form = write_whole(link, tmp_path / "form")
    with open_checkpoint(form.path) as first:
        again = apply_delta(first, out, tmp_path / "again")
    assert (again / "state.h5").read_bytes() == (made / "state.h5").read_bytes()


def test_commands_understand_chains(chain, tmp_path):
    paths = paths_of(chain)
    run = CliRunner().invoke
    rows = json.loads(run(command, ["ls", "--json", str(paths[0].parent)]).output)
    assert [row["link"] and row["link"]["index"] for row in rows] == [None, 1, 2, 3]
    text = run(command, ["ls", str(paths[0].parent)]).output
    assert f"link 3 of {paths[0].name}" in text
    assert "link 2 of" in run(command, ["show", str(paths[2])]).output
    assert run(command, ["verify", str(paths[0].parent)]).exit_code == 0
    same = run(command, ["diff", str(paths[3]), str(paths[0].parent)])
    assert same.exit_code == 0
    assert run(command, ["diff", str(paths[3]), str(paths[2])]).exit_code == 1
    delta = run(command, ["delta", str(paths[0]), str(paths[3]), "--out", str(tmp_path / "d")])
    assert delta.exit_code == 0, delta.output
    applied = run(
        command, ["apply", str(paths[0]), str(tmp_path / "d"), "--out", str(tmp_path / "a")]
    )
    assert applied.exit_code == 0, applied.output
    with open_checkpoint(tmp_path / "a") as checkpoint:
        check(checkpoint, chain.written[3][0])
    with open_checkpoint(paths[3]) as checkpoint:
        (file,) = export(checkpoint, "npz", tmp_path / "all.npz", ())
    with np.load(file) as arrays:
        assert np.array_equal(arrays["users/keys"], chain.written[3][0]["users"]["keys"])
    whole = run(command, ["compact", str(paths[3]), "--out", str(tmp_path / "w"), "--json"])
    assert json.loads(whole.output)["path"] == str(tmp_path / "w")
    text = run(command, ["compact", str(paths[3].parent)]).output
    assert text.startswith(f"{paths[3]}  ")
    assert "whole (the link:" in text
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


# Fault points at which the writer of a link is killed, and the passage: after blocks, before and after the
# rename of the folder.
POINTS = ["block-written:1", "block-written:5", "synced:1", "named:1"]


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_while_a_link_is_written_loses_no_checkpoint(tmp_path, point):
    history = written(tmp_path, 2)
    history.evolve()
    name, _, number = point.partition(":")
    child = os.fork()
    if child == 0:
        left = [int(number)]

        def end(passed: str) -> None:
            left[0] -= passed == name
            if left[0] == 0:
                os._exit(9)

        writer._native.fault_point = end
        history.write(tmp_path)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    # The link is complete, or it has no name.
    paths = [entry.path for entry in list_checkpoints(tmp_path)]
    assert len(paths) == (3 if name == "named" else 2)
    states = [columns for columns, _ in history.written]
    states.append(history.contents.columns)
    for path, columns in zip(paths, states, strict=False):
        with open_checkpoint(path) as checkpoint:
            assert checkpoint.damage() == []
            check(checkpoint, columns)
    # The next launch begins with a whole checkpoint, and removes the files of the killed writer.
    info = history.write(tmp_path, whole=True)
    assert info.place.index == 0
    assert not list(tmp_path.glob(".writing-*"))
    with open_checkpoint(info.path) as checkpoint:
        check(checkpoint, history.contents.columns)
