"""Stages of tables: what a table, a job and a number of workers may have, and who takes part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mpips import ASP, BSP, SSP, DenseTable, DiLoCo, EmbeddingTable, LocalSGD, Reject
from mpips.errors import ConfigError
from mpips.model.codec import Auto, Int8, TopK
from mpips.model.consistency import Switch
from mpips.model.job_tables import check_tables, fingerprint
from mpips.model.replicated import Replicated
from mpips.model.stages import clock_tables, for_workers, has_stages, n_stages, takes_part
from mpips.model.table import Table
from mpips.model.table_config import from_config, to_config


def dense(name: str, stage: Any = None, **options: Any) -> DenseTable:
    return DenseTable(name, (4,), stage=stage, **options)


def rows(name: str, stage: Any = None, **options: Any) -> EmbeddingTable:
    return EmbeddingTable(name, 16, stage=stage, **options)


@pytest.mark.parametrize("stage", [-1, 1.5, "1", True, 65536])
@pytest.mark.parametrize("make", [dense, rows])
def test_a_stage_is_a_whole_number(make: Any, stage: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"^table 'w': stage = .*: must be None or a whole number"
    ):
        make("w", stage)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"consistency": LocalSGD()}, "consistency = LocalSGD"),
        ({"consistency": DiLoCo()}, "consistency = DiLoCo"),
        ({"consistency": Switch(BSP(), ASP(), at=3)}, "consistency = Switch"),
        ({"consistency": BSP(backup=1)}, "backup = 1"),
        ({"consistency": SSP("auto")}, r"SSP\('auto'\)"),
        ({"consistency": ASP(Reject("auto"))}, r"the policy Reject\('auto'\)"),
        ({"placement": "replicated"}, "placement = Replicated"),
        ({"placement": Replicated()}, "placement = Replicated"),
        ({"placement": "auto"}, "placement = 'auto'"),
        ({"compression": TopK(0.1)}, "compression = TopK"),
        ({"compression": "shared_int8"}, "compression = SharedInt8"),
        ({"compression": Auto("bf16", "int8")}, "compression = Auto"),
        ({"pull_compression": TopK(0.1)}, "pull_compression = TopK"),
    ],
)
def test_what_needs_all_workers_is_refused(options: dict[str, Any], named: str) -> None:
    DenseTable("w", (1000,), **options)
    with pytest.raises(ConfigError, match=f"^table 'w': stage = 0 with {named}.*, which needs all"):
        DenseTable("w", (1000,), stage=0, **options)


def test_other_options_have_no_effect_on_stages() -> None:
    table = rows("e", 1, consistency=SSP(2), compression=Int8(), pull_compression="bf16")
    assert replace(table, dim=32).stage == 1
    assert from_config(to_config(table)) == table
    assert fingerprint([table], "") != fingerprint([replace(table, stage=0)], "")


def test_each_stage_has_a_table_and_no_table_is_local() -> None:
    check_tables([dense("a", 1), rows("b", 0), dense("c")])
    check_tables([dense("a"), rows("b")])
    with pytest.raises(
        ConfigError, match=r"^no table has stage 0, although .* up to 1: number the"
    ):
        check_tables([dense("a", 1), dense("b")])
    with pytest.raises(ConfigError, match=r"^no table has stage 1, although .* up to 2"):
        check_tables([dense("a", 2), dense("b", 0)])
    with pytest.raises(ConfigError, match=r"^table 'b' is under LocalSGD in a job"):
        check_tables([dense("a", 0, consistency=ASP()), dense("b", consistency=LocalSGD())])


def test_the_number_of_workers_is_one_or_a_multiple() -> None:
    tables: list[Table] = [dense("a", 2), dense("b", 0), rows("c", 1), dense("d")]
    assert (n_stages(tables), has_stages(tables)) == (3, True)
    for n in (3, 6, 9):
        assert for_workers(tables, n) == tables
    for n in (2, 4, 5, 7):
        with pytest.raises(
            ConfigError, match=f"^{n} workers: the tables have stages 0 to 2, so the"
        ):
            for_workers(tables, n)
    alone = for_workers(tables, 1)
    assert (n_stages(alone), has_stages(alone)) == (1, False)
    assert [table.name for table in alone] == ["a", "b", "c", "d"]
    plain: list[Table] = [dense("a"), rows("b")]
    assert for_workers(plain, 5) == plain


def test_workers_of_a_stage_take_part() -> None:
    table = dense("a", 1)
    assert [w for w in range(6) if takes_part(table, w, 3)] == [1, 4]
    assert all(takes_part(dense("a"), w, 3) for w in range(6))


def test_the_tables_of_the_lowest_clock_have_all_workers() -> None:
    assert clock_tables([dense("a"), dense("b")]) == (0,)
    assert clock_tables([dense("a", 1), dense("b", 0), dense("c")]) == (2,)
    assert sorted(clock_tables([dense("a", 1), dense("b", 0), rows("c", 1)])) == [1, 2]
