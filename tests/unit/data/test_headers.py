"""First lines of names in files without a header by form: they are a header, or an error, never a sample."""

from __future__ import annotations

from pathlib import Path

import pytest

import mpips
from mpips.data import triples
from mpips.data.ratings import RatingColumns, rating_lines, read_ratings
from mpips.data.vocabulary import Vocabulary
from mpips.errors import DataError


def write(folder: Path, text: str) -> str:
    (folder / "a.txt").write_text(text)
    return str(folder / "a.txt")


@pytest.mark.parametrize(
    "text",
    [
        "timestamp,visitorid,event,itemid,transactionid\n1,23,view,11,\n2,31,view,5,\n",
        "visitor,product\nann,x\nbob,y\n",
        "buyer;sku\nann;x\nbob;y\n",
        "userid\tthing\nann\tx\n",
        "who,what\n1,2\n3,4\n5,6\n",
        "session,video_id,watched\ns1,v1,yes\ns2,v1,yes\ns3,v2,no\n",
    ],
)
@pytest.mark.parametrize("asks", [False, True])
def test_an_unknown_header_of_pairs_is_an_error(tmp_path: Path, text: str, asks: bool) -> None:
    path = write(tmp_path, text)
    if asks and "userid" in text:
        pytest.skip("a line that asks for items has a user alone, so this is a header")
    with pytest.raises(DataError, match=r"looks like a header.* set options.user and options.item"):
        list(rating_lines(path, RatingColumns(), rated=False, may_ask=asks))


def test_pairs_without_a_header_are_read(tmp_path: Path) -> None:
    for text in ("ann,x\nbob,y\n", "1,2\n3,4\n5,6\n", "ann,1\nbob,2\ncid,3\n", "ann x\n1 y\n2 z\n"):
        found = read_ratings(write(tmp_path, text), RatingColumns(), rated=False)
        assert len(found.users) == text.count("\n")
    found = read_ratings(
        write(tmp_path, "who,visitorid,thing\n1,7.0,5\n2,007,5.0\n"),
        RatingColumns("visitorid", "thing"),
        rated=False,
    )
    assert (found.users, found.items) == (["7", "7"], ["5", "5"])


@pytest.mark.parametrize(
    ("header", "lines"),
    [
        ("head relation tail", ["a r b", "b r c"]),
        ("Head_ID\tRelation\tTail", ["a\tr\tb", "b\tr\tc"]),
        ("subject predicate object", ["a r b", "b r c"]),
        ("h r t", ["a r b", "b r c"]),
        ("head tail relation", ["a b r", "b c r"]),
    ],
)
def test_a_header_of_triples_is_no_triple(tmp_path: Path, header: str, lines: list[str]) -> None:
    path = write(tmp_path, "\n".join([header, *lines]) + "\n")
    ids, entities, relations, _ = triples.read_new(path)
    assert (entities.names, relations.names) == (("a", "b", "c"), ("r",))
    assert ids.tolist() == [[0, 0, 1], [1, 0, 2]]
    assert triples.read_as(path, entities, relations).tolist() == ids.tolist()
    assert len(list(triples.questions(path, entities, relations))) == 2
    (note,) = triples.header_notes(path)
    assert "the first line names the columns" in note


@pytest.mark.parametrize("text", ["head thing tail\na r b\n", "x y z\n1 2 3\n4 5 6\n7 8 9\n"])
def test_a_first_line_that_looks_like_another_header_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match="looks like a header"):
        triples.read_new(write(tmp_path, text))


def test_triples_with_short_names_are_no_header(tmp_path: Path) -> None:
    path = write(tmp_path, "s r b\nb r c\n")
    assert triples.header_notes(path) == ()
    assert len(triples.read_new(path)[0]) == 2


def test_names_are_found_in_other_forms_of_a_number() -> None:
    names = Vocabulary(["11", "007", "ann", "2.5"])
    asked = ["11", "11.0", "7", "7.0", "007", "ann", "2.50", "8", ""]
    assert names.find_all(asked).tolist() == [0, 0, 1, 1, 1, 2, -1, -1, -1]
    assert names.keys(asked).tolist() == [0, -1, -1, -1, 1, 2, -1, -1, -1]


def test_pairs_with_float_ids_are_those_of_the_training(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,item\n1,5\n2,5\n2,6\n")
    (tmp_path / "b.csv").write_text("user,item\n1.0,5.0\n2.0,5\n2,6.0\n")
    found = mpips.fit(
        "mf", str(tmp_path / "a.csv"), epochs=1, implicit=True, dim=2, settings={}
    ).model
    ours, theirs = (found.columns(tmp_path / name) for name in ("a.csv", "b.csv"))
    assert ours is not None
    assert theirs is not None
    assert ours["prediction"].tolist() == theirs["prediction"].tolist()
    assert not found.notes
