"""Overrides: what options of the job change at the tables of a task, and which they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from config_rig import load, sentence

import mpips
from mpips import ASP, BSP, SSP, DenseTable, EmbeddingTable
from mpips.config.overrides import apply_overrides, asks_for_measurement
from mpips.model.partition import FrequencyPartition
from mpips.tasks import load_task
from mpips.training.preflight import check_replaced


def overridden(*assignments: str, measured: FrequencyPartition | None = None) -> dict[str, Any]:
    tables = [DenseTable("bias", (4,)), EmbeddingTable("weight", 2)]
    return {t.name: t for t in apply_overrides(tables, load(*assignments), measured)}


def test_an_optimizer_without_a_name_is_the_tasks_own_with_other_values() -> None:
    tables = [
        DenseTable("bias", (4,), mpips.Adagrad(0.5)),
        EmbeddingTable("weight", 2, mpips.FTRL()),
    ]
    config = load("table.optimizer.lr=0.1", "tables.weight.optimizer.l1=2")
    bias, weight = apply_overrides(tables, config, None)
    assert bias.optimizer == mpips.Adagrad(0.1)
    assert weight.optimizer == mpips.FTRL(0.1, l1=2.0)
    named = load("table.optimizer=adam", "tables.weight.optimizer.lr=0.3")
    bias, weight = apply_overrides(tables, named, None)
    assert (bias.optimizer, weight.optimizer) == (mpips.Adam(), mpips.Adam(lr=0.3))


def test_an_optimizer_without_a_name_has_only_options_of_its_own() -> None:
    tables = [DenseTable("bias", (4,), mpips.Adagrad(0.5))]
    assert sentence(apply_overrides, tables, load("table.optimizer.l1=1"), None) == (
        "table 'bias': unknown option of optimizer adagrad: 'l1'; valid are lr, weight_decay, clip_value, "
        "eps, initial_accumulator"
    )
    tables = [DenseTable("bias", (4,), mpips.PythonRule(min, n_state=1))]
    assert sentence(apply_overrides, tables, load("table.optimizer.lr=1"), None) == (
        "table 'bias': lr = 1: the optimizer is a PythonRule, which has no options; give the optimizer a "
        'name, such as {name = "adam", lr = 0.01}'
    )


@pytest.mark.parametrize(
    ("task", "assignments", "option"),
    [
        ("mlp", ["options.learning_rate=0.1", "table.optimizer=adam"], "learning_rate"),
        ("mlp", ["options.learning_rate=0.1", "table.optimizer={name='adagrad'}"], "learning_rate"),
        ("softmax", ["options.learning_rate=0.1", "table.optimizer.lr=1"], "learning_rate"),
        ("logistic", ["options.beta=0.1", "tables.weight.optimizer=sgd"], "beta"),
        ("fm", ["options.factor_learning_rate=1", "table.optimizer=sgd"], "factor_learning_rate"),
        ("fm", ["options.l1=1", "tables.weight.optimizer.l1=2"], "l1"),
    ],
)
def test_an_option_of_an_optimizer_that_is_replaced_is_refused(
    task: str, assignments: list[str], option: str
) -> None:
    config = load(f"task={task}", *assignments)
    text = sentence(check_replaced, load_task(task), config)
    assert text.startswith(f"options.{option} = ")
    assert f"has no effect, because [{assignments[1].partition('.optimizer')[0]}]" in text


@pytest.mark.parametrize(
    ("task", "assignments"),
    [
        ("mlp", ["options.learning_rate=0.1", "tables.weight0.optimizer=adam"]),
        ("mlp", ["options.learning_rate=0.1", "table.optimizer.eps=1e-8"]),
        ("mlp", ["options.l2=0.1", "table.optimizer=adam"]),
        ("fm", ["options.factor_learning_rate=1", "tables.weight.optimizer=sgd"]),
    ],
)
def test_an_option_of_an_optimizer_that_stays_is_taken(task: str, assignments: list[str]) -> None:
    check_replaced(load_task(task), load(f"task={task}", *assignments))


@pytest.mark.parametrize(
    ("assignments", "expected"),
    [
        (
            ["tables.weights.bound=1"],
            "unknown table 'weights'; valid are bias, weight; did you mean 'weight'?",
        ),
        (
            ["table.bound=2"],
            "table 'bias': bound = 2 applies only to SSP and asynchronous diloco: remove it (BSP takes "
            "backup and reduce)",
        ),
        (
            ["table.consistency=ssp", "table.reduce=sum"],
            "table 'bias': reduce = 'sum' applies only to BSP, switch and auto: remove it (SSP takes "
            "bound and policy)",
        ),
        (
            ["table.consistency=asp", "table.max_staleness=2"],
            "table 'bias': max_staleness = 2 applies only to policy 'reject': remove it (ASP takes policy)",
        ),
        (
            ["table.consistency=asp", "table.policy=reject", "table.lambda_=2"],
            "table 'bias': lambda_ = 2.0 applies only to policy 'compensate': remove it (ASP takes "
            "max_staleness and policy)",
        ),
        (
            ["table.backup=1", "tables.weight.backup=2"],
            "BSP tables with different numbers of backup workers [1, 2]: a clock closes for all "
            "tables at once, so give all of them the same backup",
        ),
        (
            ["tables.bias.backup=1", "tables.weight.consistency=asp"],
            "backup workers need every table to be BSP; set backup = 0 or use BSP",
        ),
        (
            ["tables.bias.backup=auto", "tables.weight.consistency=asp"],
            "backup workers need every table to be BSP; set backup = 0 or use BSP",
        ),
        (
            ["table.backup=auto", "tables.weight.backup=2"],
            "BSP tables with different numbers of backup workers [2, 'auto']: a clock closes for all "
            "tables at once, so give all of them the same backup",
        ),
        (
            ["table.backup=auto", "tables.weight.max_backup=2"],
            "BSP tables with different greatest numbers of backup workers [2, 8]: a clock closes for all "
            "tables at once, so give all of them the same max",
        ),
        (
            ["table.backup=2", "table.max_backup=4"],
            "table 'bias': max_backup = 4 applies only to BSP with backup 'auto': remove it (BSP takes "
            "backup and reduce)",
        ),
        (
            ["table.consistency=ssp", "table.max_bound=4"],
            "table 'bias': max_bound = 4 applies only to SSP with bound 'auto': remove it (SSP takes bound "
            "and policy)",
        ),
        (
            ["table.consistency=ssp", "table.bound=auto", "tables.weight.max_bound=4"],
            "tables under SSP('auto') with different greatest bounds [4, 8]: a job has one bound for all of "
            "them, so give all of them the same max",
        ),
        (
            ["table.consistency=asp", "table.policy=reject", "table.max_staleness=auto"],
            "table 'weight': max_staleness = 'auto' applies only to dense tables, whose pushes have all "
            "elements; give a number",
        ),
        (
            ["table.consistency=switch"],
            "table 'bias': consistency = 'switch': add switch_at, the number of clocks of the run under BSP, "
            "or plateau or uneven",
        ),
        (
            [
                "table.consistency=switch",
                "table.switch_at=plateau",
                "tables.weight.switch_at=6",
            ],
            "table 'weight' is under Switch at clock 6 beside 'bias' under Switch at a plateau: all tables "
            "of a job switch at one clock, so give all of them the same at",
        ),
        (
            ["table.consistency=auto", "table.switch_at=5"],
            "table 'bias': switch_at = 5 applies only to switch: remove it (AUTO takes policy and reduce and "
            "switch_rate)",
        ),
        (
            ["table.switch_at=5"],
            "table 'bias': switch_at = 5 applies only to switch: remove it (BSP takes backup and reduce)",
        ),
        (
            ["table.consistency=switch", "table.switch_at=5", "tables.weight.switch_at=6"],
            "table 'weight' is under Switch at clock 6 beside 'bias' under Switch at clock 5: all tables of "
            "a job switch at one clock, so give all of them the same at",
        ),
        (
            ["tables.bias.consistency=switch", "tables.bias.switch_at=5"],
            "table 'weight' is under BSP beside 'bias' under Switch at clock 5: all tables of a job switch "
            "at one clock, so give all of them the same at",
        ),
        (
            ["table.consistency=switch", "table.switch_at=5", "table.policy=compensate"],
            "table 'bias': Switch with the policy Compensate: updates under BSP have no base; use Accept, "
            "Scale or Reject with a number",
        ),
        (
            [
                "table.consistency=switch",
                "table.switch_at=5",
                "table.policy=reject",
                "table.max_staleness=auto",
            ],
            "table 'bias': Switch with Reject('auto'): its estimate begins with the launch; give a number",
        ),
        (
            ["table.consistency=switch", "table.switch_at=5", "table.compression=topk"],
            "table 'bias': compression = TopK(fraction=0.01) with Switch: its residuals belong to one "
            "consistency model; use 'bf16', 'fp16' or 'int8'",
        ),
        (
            ["table.consistency=switch", "table.switch_at=5", "table.pull_compression=bf16"],
            "table 'bias': pull_compression = Bf16() with Switch: applies to one consistency model; remove "
            "it",
        ),
        (
            ["table.optimizer=adm"],
            "unknown optimizer 'adm'; valid are sgd, momentum, nesterov, delayed_nesterov, adagrad, rmsprop, "
            "adam, adamw, ftrl, row_adagrad, replace; did you mean 'adam'?",
        ),
        (
            ["table.optimizer={name='adam', lrr=1}"],
            "unknown option of optimizer adam: 'lrr'; valid are lr, weight_decay, clip_value, "
            "beta1, beta2, eps; did you mean 'lr'?",
        ),
        (
            ["table.partition=hsh"],
            "unknown partition 'hsh'; valid are frequency, hash, layer, range; did you mean 'hash'?",
        ),
        (
            ["tables.weight.partition=frequency"],
            "table 'weight': partition 'frequency' needs sparse training data to measure",
        ),
        (["table.clip_norm=-1"], "table 'bias': clip_norm = -1.0: must be 0 or more"),
    ],
)
def test_an_impossible_table_is_named_with_the_way_out(
    assignments: list[str], expected: str
) -> None:
    # The error of a single table begins with its name.
    assert sentence(overridden, *assignments) in (expected, f"table 'bias': {expected}")


def test_a_tables_own_options_lie_over_those_of_all_tables() -> None:
    tables = overridden(
        "table.consistency=ssp",
        "table.bound=4",
        "tables.bias.bound=1",
        "tables.weight.optimizer={name='adam', lr=0.5}",
        "table.optimizer=ftrl",
        "tables.bias.clip_norm=2",
        "table.check_finite=false",
        "tables.weight.init=normal(0.5)",
    )
    assert tables["bias"].consistency == SSP(bound=1)
    assert tables["weight"].consistency == SSP(bound=4)
    assert tables["bias"].optimizer == mpips.FTRL()
    assert tables["weight"].optimizer == mpips.Adam(lr=0.5)
    assert (tables["bias"].clip_norm, tables["weight"].clip_norm) == (2.0, 0.0)
    assert not tables["bias"].check_finite
    assert tables["weight"].init == mpips.Initializer.parse("normal(0.5)")


def test_no_override_changes_nothing() -> None:
    tables = overridden()
    assert tables["bias"] == DenseTable("bias", (4,))
    assert tables["weight"] == EmbeddingTable("weight", 2)


@pytest.mark.parametrize(
    ("assignments", "model"),
    [
        (["table.consistency=bsp"], BSP()),
        (["table.reduce=sum", "table.backup=2"], BSP("sum", 2)),
        (["table.backup=auto"], BSP(backup="auto")),
        (["table.backup=auto", "table.max_backup=3"], BSP(backup="auto", max=3)),
        (["table.consistency=asp"], ASP()),
        (["table.consistency=asp", "table.policy=scale"], ASP(mpips.Scale())),
        (
            ["table.consistency=asp", "table.policy=reject", "table.max_staleness=3"],
            ASP(mpips.Reject(3)),
        ),
        (
            ["table.consistency=ssp", "table.policy=compensate", "table.lambda_=0.5"],
            SSP(2, mpips.Compensate(0.5)),
        ),
        (["table.consistency=ssp", "table.bound=auto"], SSP("auto")),
        (
            ["table.consistency=ssp", "table.bound=auto", "table.max_bound=4"],
            SSP("auto", max=4),
        ),
        (
            [
                "tables.bias.consistency=asp",
                "tables.bias.policy=reject",
                "tables.bias.max_staleness=auto",
            ],
            ASP(mpips.Reject("auto")),
        ),
        (
            ["table.consistency=switch", "table.switch_at=5"],
            mpips.Switch(BSP(), ASP(), at=5),
        ),
        (
            ["table.consistency=switch", "table.switch_at=plateau"],
            mpips.Switch(BSP(), ASP(), at="plateau"),
        ),
        (["table.consistency=auto"], mpips.Switch(BSP(), ASP(), at="uneven")),
        (
            ["table.consistency=auto", "table.reduce=sum", "table.policy=scale"],
            mpips.Switch(BSP("sum"), ASP(mpips.Scale()), at="uneven"),
        ),
        (
            [
                "table.consistency=switch",
                "table.switch_at=5",
                "table.reduce=sum",
                "table.switch_rate=0.5",
                "table.policy=reject",
                "table.max_staleness=3",
            ],
            mpips.Switch(BSP("sum"), ASP(mpips.Reject(3)), at=5, rate=0.5),
        ),
    ],
)
def test_consistency_is_what_the_options_say(assignments: list[str], model: Any) -> None:
    assert overridden(*assignments)["bias"].consistency == model


def test_a_number_of_clocks_replaces_a_tasks_own_bound_auto_with_its_greatest_one() -> None:
    tables = [DenseTable("bias", (4,), mpips.SGD(), SSP("auto", max=12))]
    (bias,) = apply_overrides(tables, load("table.bound=3"), None)
    assert bias.consistency == SSP(3)
    (bias,) = apply_overrides(tables, load("table.policy=scale"), None)
    assert bias.consistency == SSP("auto", mpips.Scale(), max=12)


def test_measured_frequencies_reach_the_table_that_asks_for_them() -> None:
    measured = FrequencyPartition.from_counts(np.array([1, 2]), np.array([10, 1]))
    asked = "tables.weight.partition=frequency"
    assert asks_for_measurement(load(asked))
    assert not asks_for_measurement(load("table.partition=range"))
    assert overridden(asked, measured=measured)["weight"].partition == measured


def test_dense_tables_can_be_replicated_and_embedding_tables_cannot() -> None:
    found = overridden("table.placement=replicated", "table.consistency=bsp")
    assert found["bias"].is_replicated
    assert not overridden("table.consistency=bsp")["bias"].is_replicated
    tables = [DenseTable("bias", (4,)), EmbeddingTable("weight", 2)]
    assert sentence(apply_overrides, tables, load("tables.weight.placement=replicated"), None) == (
        "table 'weight': remove placement = 'replicated': embedding tables lie on servers"
    )
    wrong = load("table.placement=replicated", "table.consistency=asp")
    assert "table 'bias': a replicated table needs consistency BSP()" in sentence(
        apply_overrides, tables, wrong, None
    )
