"""The rule of Auto(...): a codec by the measured speeds, or none."""

from __future__ import annotations

from typing import Any

import pytest

from mpips.errors import ConfigError
from mpips.model.auto_codec import CodecSpeed, choose_codecs, encoded, listed_codecs, without_auto
from mpips.model.auto_placement import Site
from mpips.model.codec import Auto, Bf16, Codec, Fp16, Int8, codec_of, pull_codec_of, to_config
from mpips.model.table import DenseTable, EmbeddingTable, Table, native_codec
from mpips.model.table_config import from_config
from mpips.model.table_config import to_config as table_to_config

FAST = {codec: CodecSpeed(4e9, 5e9) for codec in (Bf16(), Fp16(), Int8())}
ALL = Auto("bf16", "fp16", "int8")


def site(workers: tuple[int, ...], servers: tuple[int, ...], network: float) -> Site:
    return Site(workers, servers, 1e10, network, 1 << 30)


def chosen(where: Site, auto: Auto = ALL, kind: str = "compression", **speeds: Any) -> Codec | None:
    tables: list[Table] = [DenseTable("w", (8,), **{kind: auto})]  # type: ignore[arg-type]
    return choose_codecs(tables, where, {**FAST, **speeds}).codecs["w"][kind]


def test_within_a_node_there_is_no_codec() -> None:
    assert chosen(site((0, 0), (0,), 1.0)) is None


def test_a_slow_link_takes_the_fewest_bytes_and_a_fast_one_none() -> None:
    # A link of 10 Gb/s needs 3.2 ns for a float; encoding and decoding need 0.45 ns.
    assert chosen(site((0,), (1,), 1.25e9)) == Int8()
    assert chosen(site((0,), (1,), 1.25e9), Auto(Bf16())) == Bf16()
    # One of 200 Gb/s needs 0.16 ns.
    assert chosen(site((0,), (1,), 2.5e10)) is None


def test_a_slow_codec_is_not_taken() -> None:
    slow = {**FAST, Int8(): CodecSpeed(1e8, 5e9)}
    tables: list[Table] = [DenseTable("w", (8,), compression=Auto("bf16", "int8"))]
    found = choose_codecs(tables, site((0,), (1,), 1.25e9), slow)
    assert found.codecs == {"w": {"compression": Bf16()}}
    assert found.reasons == (
        "compression = Auto(Bf16(), Int8(block=128)): Bf16() "
        "(ns per value: float32 3.2, bf16 2.05, int8 11) ('w')",
    )


def test_of_two_that_are_nearly_equal_the_more_precise_one_is_taken() -> None:
    # On a very slow link fp16 takes 1.6 % more bytes than bf16.
    assert chosen(site((0,), (1,), 1e6), Auto("bf16", "fp16")) == Fp16()


def test_servers_that_decode_for_many_workers_count() -> None:
    speeds = {Int8(): CodecSpeed(4e9, 1.5e9), Bf16(): CodecSpeed(4e9, 1.5e9)}
    one = Site((0,), (1,), 1e10, 6e9, 1 << 30)
    assert choose_codecs([DenseTable("w", (8,), compression=Auto(Int8()))], one, speeds).codecs == {
        "w": {"compression": None}
    }
    # Eight workers of one node share its link, and the server decodes eight updates.
    tables: list[Table] = [DenseTable("w", (8,), compression=Auto(Int8()))]
    eight = Site((0,) * 8, (1,), 1e10, 2e9, 1 << 30)
    assert choose_codecs(tables, eight, speeds).codecs["w"]["compression"] == Int8()
    # A pull is encoded once for all.
    pulls: list[Table] = [DenseTable("w", (8,), pull_compression=Auto(Int8()))]
    assert choose_codecs(pulls, eight, speeds).codecs["w"]["pull_compression"] == Int8()


def test_the_scale_of_a_short_row_counts() -> None:
    rows = EmbeddingTable("e", 16, compression=Auto("bf16", "fp16"))
    found = choose_codecs([rows], site((0,), (1,), 1e6), FAST)
    assert found.codecs["e"]["compression"] == Bf16()  # 2 bytes, not 2.25


def test_all_listed_codecs_are_measured_once() -> None:
    tables: list[Table] = [
        DenseTable("a", (8,), compression=ALL, pull_compression=Auto("int8")),
        DenseTable("b", (8,), compression=Auto(Int8(64)), placement="auto"),
        DenseTable("c", (8,), compression="fp16"),
        EmbeddingTable("e", 16, pull_compression=Auto("bf16")),
    ]
    assert listed_codecs(tables) == [Bf16(), Fp16(), Int8(), Int8(64)]
    plain = without_auto(tables)
    assert [table.compression for table in plain] == [None, None, Fp16(), None]
    assert not listed_codecs(plain)
    assert plain[2] is tables[2]
    other = encoded(tables, lambda name, kind: Bf16())
    assert (other[0].compression, other[0].pull_compression) == (Bf16(), Bf16())
    with pytest.raises(AssertionError, match="a job replaces Auto"):
        native_codec(tables[0])


def test_a_description_and_a_job_file_can_have_it() -> None:
    given = {"name": "auto", "codecs": ["bf16", {"name": "int8", "block": 64}]}
    auto = Auto(Bf16(), Int8(64))
    assert codec_of(given) == auto
    assert codec_of(to_config(auto)) == auto
    assert str(auto) == "Auto(Bf16(), Int8(block=64))"
    table = DenseTable("w", (8,), compression=given, pull_compression=Auto("bf16"))  # type: ignore[arg-type]
    assert table.compression == auto
    assert from_config(table_to_config(table)) == table


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Auto(), "Auto: list codecs, such as Auto.Bf16.., Int8.."),
        (lambda: Auto("none"), "Auto: list codecs"),
        (lambda: Auto("int4"), "unknown compression 'int4'"),
        (lambda: Auto(Auto("bf16")), "must be a codec such as"),  # type: ignore[arg-type]
        (
            lambda: codec_of("auto"),
            "'auto' needs a list of codecs: Auto.Bf16.., Int8.*in a job file",
        ),
        (lambda: codec_of({"name": "auto"}), "Auto: list codecs"),
        (lambda: codec_of({"name": ["bf16"]}), "must be a codec such as Int8"),
        (lambda: codec_of({"name": "auto", "codecs": "bf16"}), "has codecs, a list such as"),
        (lambda: codec_of({"name": "auto", "of": []}), "has codecs, a list such as"),
        (lambda: pull_codec_of(Auto("fp16")), "pull_compression = 'fp16'"),
        (lambda: EmbeddingTable("e", 8, compression=Auto("bf16", "int8")), "with dim = 8"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
