"""Configuration: schema, TOML, --set, precedence, and what each error says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import mpips
from mpips import ASP, BSP, SSP, ConfigError, DenseTable, EmbeddingTable
from mpips.config import JobConfig, load_config, parse_assignment
from mpips.model.partition import FrequencyPartition
from mpips.options import SessionOptions
from mpips.overrides import apply_overrides, asks_for_measurement
from mpips.session import make_options

TABLE_KEYS = (
    "optimizer, consistency, bound, reduce, backup, policy, max_staleness, lambda_, partition, "
    "init, clip_norm, check_finite"
)


def load(*assignments: str) -> JobConfig:
    pairs = [parse_assignment(text) for text in assignments]
    return load_config(None, [("task", "logistic"), ("data.train", "a.svm"), *pairs])


def overridden(*assignments: str, measured: FrequencyPartition | None = None) -> dict[str, Any]:
    tables = [DenseTable("bias", (4,)), EmbeddingTable("weight", 2)]
    return {t.name: t for t in apply_overrides(tables, load(*assignments), measured)}


def sentence(call: Any, *arguments: Any, **keywords: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*arguments, **keywords)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        (
            "trian.epochs=1",
            "unknown key 'trian'; valid at the top are task, data, train, cluster, checkpoint, "
            "redundancy, slurm, run, table, tables, options; did you mean 'train'?",
        ),
        (
            "train.epoch=1",
            "unknown key 'train.epoch'; valid in [train] are epochs, batch_size, eval_every; "
            "did you mean 'train.epochs'?",
        ),
        (
            "tables.weight.bund=1",
            f"unknown key 'tables.weight.bund'; valid in [tables.weight] are {TABLE_KEYS}; "
            "did you mean 'tables.weight.bound'?",
        ),
        (
            "zzz=1",
            "unknown key 'zzz'; valid at the top are task, data, train, cluster, checkpoint, "
            "redundancy, slurm, run, table, tables, options",
        ),
        ("train.epochs=two", "train.epochs = 'two': expected int, got str"),
        ("train.epochs=1.5", "train.epochs = 1.5: expected int, got float"),
        ("cluster.servers=true", "cluster.servers = True: expected int, got bool"),
        ("tables.weight.bound=x", "tables.weight.bound = 'x': expected int | null, got str"),
        ("tables.weight=3", "tables.weight = 3: expected object, got int"),
        ("tables=3", "tables = 3: expected object, got int"),
        ("data.categorical=[1]", "data.categorical[0] = 1: expected str, got int"),
        ("train=5", "train = 5: expected object, got int"),
        ("task.x=1", "--set task.x: task is a value, not a table"),
        ("train.epochs=-1", "train.epochs = -1: 0 or more is accepted"),
        ("train.batch_size=-1", "train.batch_size = -1: 0 or more is accepted"),
        (
            "cluster.transport=smh",
            "transport = 'smh': auto, shm, rma, p2p, local are accepted; did you mean 'shm'?",
        ),
        ("cluster.servers=-1", "servers = -1: 0 to 65535 is accepted"),
        ("cluster.timeout_s=nan", "timeout_s = nan: 0.1 to 10000000.0 is accepted"),
        ("cluster.ring_slots=1", "ring_slots = 1: 2 to 65536 is accepted"),
        ("cluster.slot_kib=0", "slot_kib = 0: 1 to 65536 is accepted"),
        ("cluster.staging_mib=0", "staging_mib = 0: 1 to 16777216 is accepted"),
        ("cluster.remote_staging_mib=-1", "remote_staging_mib = -1: 0 to 16777216 is accepted"),
        ("cluster.seed=-1", "seed = -1: 0 to 9223372036854775807 is accepted"),
        (
            "task=''",
            'no task is given; write task = "logistic" (or softmax, mlp, fm, module:Class)',
        ),
        ("data.train=''", "no training data is given; set data.train (or --train FILE)"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_what_is_accepted(
    assignment: str, expected: str
) -> None:
    assert sentence(load, assignment) == expected


@pytest.mark.parametrize("text", ["abc", "=3", " = 3", ""])
def test_an_assignment_needs_key_and_value(text: str) -> None:
    expected = f"--set {text!r}: key=value is accepted, such as train.epochs=5"
    assert sentence(parse_assignment, text) == expected


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("train.epochs=5", ("train.epochs", 5)),
        (" a = 0.5 ", ("a", 0.5)),
        ("a=true", ("a", True)),
        ('a="5"', ("a", "5")),
        ("a=asp", ("a", "asp")),
        ("a=", ("a", "")),
        ("a=b=c", ("a", "b=c")),
        ("a=[1, 2]", ("a", [1, 2])),
        ('a={name = "adam", lr = 0.1}', ("a", {"name": "adam", "lr": 0.1})),
        ("a=uniform(0.1)", ("a", "uniform(0.1)")),
    ],
)
def test_an_assigned_value_is_toml_or_else_text(text: str, pair: tuple[str, Any]) -> None:
    assert parse_assignment(text) == pair


def test_a_file_lies_over_defaults_and_assignments_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('task = "mlp"\n[data]\ntrain = "digits"\n[train]\nepochs = 3\nbatch_size = 8\n')
    config = load_config(str(path), [("train.epochs", 4), ("train.epochs", 5)])
    assert (config.task, config.data.train) == ("mlp", "digits")
    assert (config.train.epochs, config.train.batch_size, config.train.eval_every) == (5, 8, 0)
    assert config.cluster == SessionOptions()


def test_a_resolved_configuration_reads_back_as_itself() -> None:
    config = load("tables.weight.bound=3", "cluster.timeout_s=5", "options.l2=0.1")
    assert msgspec.convert(msgspec.to_builtins(config), JobConfig) == config


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "no.toml")
    assert sentence(load_config, missing, []) == (
        f"{missing}: cannot be read: No such file or directory"
    )
    assert sentence(load_config, str(tmp_path), []) == f"{tmp_path}: cannot be read: Is a directory"
    path = tmp_path / "bad.toml"
    path.write_bytes(b"task = ")
    assert sentence(load_config, str(path), []).startswith(f"{path}: is not valid TOML: ")
    path.write_bytes(b'task = "\xff"')
    assert sentence(load_config, str(path), []) == f"{path}: is not a text file in UTF-8"


def test_an_unknown_option_of_run_lists_all() -> None:
    known = ", ".join(SessionOptions.__struct_fields__)
    text = sentence(make_options, {"server": 1})
    assert text == f"unknown option 'server'; valid are {known}"


@pytest.mark.parametrize(
    ("assignments", "expected"),
    [
        (
            ["tables.wieght.bound=1"],
            "unknown table 'wieght'; valid are bias, weight; did you mean 'weight'?",
        ),
        (
            ["table.consistency=spp"],
            "unknown consistency 'spp'; valid are asp, bsp, ssp; did you mean 'ssp'?",
        ),
        (
            ["table.bound=2"],
            "table 'bias': bound = 2 does nothing under consistency 'bsp'; it takes backup, reduce",
        ),
        (
            ["table.consistency=ssp", "table.reduce=sum"],
            "table 'bias': reduce = 'sum' does nothing under consistency 'ssp'; "
            "it takes bound, policy",
        ),
        (
            ["table.consistency=asp", "table.max_staleness=2"],
            "table 'bias': max_staleness = 2 does nothing under consistency 'asp'; it takes policy",
        ),
        (
            ["table.consistency=asp", "table.policy=reject", "table.lambda_=2"],
            "table 'bias': lambda_ = 2.0 does nothing under consistency 'asp' with policy "
            "'reject'; it takes max_staleness, policy",
        ),
        (
            ["table.consistency=asp", "table.policy=rejcet"],
            "unknown staleness policy 'rejcet'; valid are accept, compensate, reject, scale; "
            "did you mean 'reject'?",
        ),
        (
            ["table.consistency=ssp", "table.bound=-1"],
            "bound = -1: a whole number from 0 to 2^31-1 is accepted",
        ),
        (["table.reduce=avg"], "reduce = 'avg': 'mean' or 'sum' is accepted"),
        (["table.backup=-1"], "backup = -1: a number from 0 up is accepted"),
        (
            ["table.backup=1", "tables.weight.backup=2"],
            "BSP tables with different numbers of backup workers [1, 2]: a clock closes for all "
            "tables at once, so give all the same",
        ),
        (
            ["tables.bias.backup=1", "tables.weight.consistency=asp"],
            "backup workers need every table to be BSP",
        ),
        (
            ["table.optimizer=adm"],
            "unknown optimizer 'adm'; valid are sgd, momentum, nesterov, adagrad, rmsprop, adam, "
            "adamw, ftrl; did you mean 'adam'?",
        ),
        (
            ["table.optimizer={name='adam', lrr=1}"],
            "unknown option of optimizer adam: 'lrr'; valid are lr, weight_decay, clip_value, "
            "beta1, beta2, eps; did you mean 'lr'?",
        ),
        (
            ["table.partition=hsh"],
            "no partition is named 'hsh' (did you mean 'hash'?); there are frequency, hash, "
            "layer, range",
        ),
        (
            ["tables.weight.partition=frequency"],
            "table 'weight': partition 'frequency' needs sparse training data to measure",
        ),
        (["table.clip_norm=-1"], "table 'bias': clip_norm = -1.0; 0 or more is accepted"),
    ],
)
def test_an_impossible_table_is_named_with_the_way_out(
    assignments: list[str], expected: str
) -> None:
    # What is wrong with one table is said with its name.
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
    ],
)
def test_consistency_is_what_the_options_say(assignments: list[str], model: Any) -> None:
    assert overridden(*assignments)["bias"].consistency == model


def test_measured_frequencies_reach_the_table_that_asks_for_them() -> None:
    measured = FrequencyPartition.from_counts(np.array([1, 2]), np.array([10, 1]))
    asked = "tables.weight.partition=frequency"
    assert asks_for_measurement(load(asked))
    assert not asks_for_measurement(load("table.partition=range"))
    assert overridden(asked, measured=measured)["weight"].partition == measured
