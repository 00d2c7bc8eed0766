"""Configuration: schema, TOML, --set, precedence, and the text of each error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from config_rig import load, sentence

from mpips import ConfigError
from mpips.config.conversion import UnknownKeyError
from mpips.config.options import SessionOptions
from mpips.config.schema import UNSET, JobConfig, load_config, parse_assignment
from mpips.session.session import make_options
from mpips.tasks import load_task
from mpips.training.preflight import task_options

TABLE_KEYS = (
    "optimizer, consistency, bound, max_bound, reduce, switch_at, switch_rate, backup, max_backup, policy, "
    "max_staleness, lambda_, steps, outer, "
    "fragments, delay, mix, asynchronous, steps_by_speed, partition, init, clip_norm, check_finite, "
    "placement, admit, evict, storage, compression, pull_compression, hash_buckets, row_dtype"
)


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        (
            "trail.epochs=1",
            "unknown key 'trail'; valid at the top are task, data, train, schedule, cluster, "
            "checkpoint, redundancy, monitor, slurm, run, producers, table, tables, options; "
            "did you mean 'train'?",
        ),
        (
            "train.epoch=1",
            "unknown key 'train.epoch'; valid in [train] are epochs, batch_size, eval_every, "
            "patience, metrics, metric, on_epoch_end, min_delta; "
            "did you mean 'train.epochs'?",
        ),
        (
            "tables.weight.bund=1",
            f"unknown key 'tables.weight.bund'; valid in [tables.weight] are {TABLE_KEYS}; "
            "did you mean 'tables.weight.bound'?",
        ),
        (
            "zzz=1",
            "unknown key 'zzz'; valid at the top are task, data, train, schedule, cluster, "
            "checkpoint, redundancy, monitor, slurm, run, producers, table, tables, options",
        ),
        (
            "redundancy.partner_mode=lag",
            "redundancy.partner_mode was removed: a replica always has what was acknowledged; delete it",
        ),
        (
            "redundancy.partner_lag_records=40",
            "redundancy.partner_lag_records was removed: a replica always has what was acknowledged; "
            "delete it",
        ),
        ("train.epochs=two", "train.epochs = 'two': must be a whole number, 0 or more"),
        ("train.epochs=1.5", "train.epochs = 1.5: must be a whole number, 0 or more"),
        ("train.epochs='5'", "train.epochs = '5': must be a whole number, 0 or more"),
        ("train.epochs=nan", "train.epochs = nan: must be a whole number, 0 or more"),
        ("cluster.servers=true", "cluster.servers = True: must be a whole number from 0 to 65535"),
        (
            "cluster.timeout_s=true",
            "cluster.timeout_s = True: must be a number from 0.1 to 10000000",
        ),
        ("cluster.timeout_s='5'", "cluster.timeout_s = '5': must be a number from 0.1 to 10000000"),
        ("cluster.checksums=1", "cluster.checksums = 1: must be true or false"),
        ("cluster.checksums='true'", "cluster.checksums = 'true': must be true or false"),
        ("data.index_base=true", "data.index_base = True: must be one of 0, 1, auto"),
        ("data.index_base=2", "data.index_base = 2: must be one of 0, 1, auto"),
        (
            "data.numeric=lgo",
            "data.numeric = 'lgo': must be one of auto, log, raw; did you mean 'log'?",
        ),
        (
            "data.format=svm",
            "data.format = 'svm': must be one of arrow, auto, criteo, csv, digits, hdf5, libsvm, npy, npz, "
            "parquet; did you mean 'libsvm'?",
        ),
        (
            "tables.weight.bound=x",
            "tables.weight.bound = 'x': must be a whole number from 0 to 2147483647 or 'auto'",
        ),
        ("tables.weight=3", "tables.weight = 3: must be a table"),
        ("tables=3", "tables = 3: must be a table"),
        ("data.categorical=[1]", "data.categorical[0] = 1: must be text"),
        ("table.optimizer=[3]", "table.optimizer = [3]: must be text or a table"),
        ("train=5", "train = 5: must be a table"),
        (
            "task.x=1",
            "--set task.x: task is a value, not a table; check the names before the dot",
        ),
        ("run.ranks=-1", "run.ranks = -1: must be 0 or more"),
        ("checkpoint.keep_last=0", "checkpoint.keep_last = 0: must be 1 or more"),
        (
            "checkpoint.every_s=1e9",
            "checkpoint.every_s = 1000000000.0: must be at least 0 and less than 1000000000",
        ),
        ("checkpoint.grace_s=inf", "checkpoint.grace_s = inf: must be from 0 to 3600"),
        (
            "checkpoint.on_usr1=exti",
            "checkpoint.on_usr1 = 'exti': must be one of continue, exit; did you mean 'exit'?",
        ),
        ("slurm.nodes=0", "slurm.nodes = 0: must be 1 or more"),
        ("table.lambda_=0", "table.lambda_ = 0: must be greater than 0 and at most 1e+18"),
        ("table.lambda_=nan", "table.lambda_ = nan: must be greater than 0 and at most 1e+18"),
        (
            "table.max_staleness=4294967296",
            "table.max_staleness = 4294967296: must be from 0 to 4294967295 or 'auto'",
        ),
        (
            "table.consistency=spp",
            "table.consistency = 'spp': must be one of asp, auto, bsp, diloco, local_sgd, ssp, switch; did "
            "you mean 'ssp'?",
        ),
        (
            "table.policy=rejcet",
            "table.policy = 'rejcet': must be one of accept, compensate, reject, scale; "
            "did you mean 'reject'?",
        ),
        ("tables.bias.bound=-1", "tables.bias.bound = -1: must be from 0 to 2147483647 or 'auto'"),
        ("table.reduce=avg", "table.reduce = 'avg': must be one of mean, sum"),
        ("table.backup=-1", "table.backup = -1: must be 0 or more or 'auto'"),
        ("train.epochs=-1", "train.epochs = -1: must be 0 or more"),
        ("train.batch_size=-1", "train.batch_size = -1: must be 0 or more"),
        (
            "cluster.transport=smh",
            "cluster.transport = 'smh': must be one of auto, local, p2p, rma, shm; did you mean 'shm'?",
        ),
        ("cluster.servers=-1", "cluster.servers = -1: must be from 0 to 65535"),
        ("cluster.timeout_s=nan", "cluster.timeout_s = nan: must be from 0.1 to 10000000"),
        ("cluster.ring_slots=1", "cluster.ring_slots = 1: must be from 2 to 65536"),
        ("cluster.slot_kib=0", "cluster.slot_kib = 0: must be from 1 to 65536"),
        ("cluster.staging_mib=0", "cluster.staging_mib = 0: must be from 1 to 16777216"),
        (
            "cluster.node_buffers_mib=0",
            "cluster.node_buffers_mib = 0: must be from 1 to 16777216",
        ),
        ("cluster.seed=-1", "cluster.seed = -1: must be from 0 to 9223372036854775807"),
        (
            "task=''",
            'no task is given; write task = "logistic" (`mpips train --help` lists the tasks)',
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
    expected = f"--set {text!r}: write key=value, such as train.epochs=5"
    assert sentence(parse_assignment, text) == expected


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("train.epochs=5", ("train.epochs", 5)),
        (" a = 0.5 ", ("a", 0.5)),
        ("a=true", ("a", True)),
        ('a="5"', ("a", "5")),
        ("a=asp", ("a", "asp")),
        ("a=", ("a", UNSET)),
        ("a=b=c", ("a", "b=c")),
        ("a=[1, 2]", ("a", [1, 2])),
        ('a={name = "adam", lr = 0.1}', ("a", {"name": "adam", "lr": 0.1})),
        ("a=uniform(0.1)", ("a", "uniform(0.1)")),
    ],
)
def test_an_assigned_value_is_toml_or_else_text(text: str, pair: tuple[str, Any]) -> None:
    assert parse_assignment(text) == pair


@pytest.mark.parametrize(
    ("assignment", "end"),
    [
        ("train.lr=1", "did you mean 'table.optimizer.lr'?"),
        ("lr=1", "did you mean 'table.optimizer.lr'?"),
        ("table.learning_rate=1", "did you mean 'table.optimizer.lr'?"),
        ("batch_size=1", "did you mean 'train.batch_size'?"),
        ("train.batchsize=1", "did you mean 'train.batch_size'?"),
        ("data.batchsize=1", "did you mean 'train.batch_size'?"),
        (
            "cluster.folder=x",
            "did you mean 'checkpoint.folder' or 'run.folder' or 'producers.folder'?",
        ),
        ("train.beta=1", "min_delta; did you mean 'table.optimizer.beta'?"),
    ],
)
def test_an_unknown_key_names_options_of_other_sections(assignment: str, end: str) -> None:
    given = [("task", "mlp"), ("data.train", "a"), parse_assignment(assignment)]
    with pytest.raises(UnknownKeyError) as caught:
        load_config(None, given)
    assert str(caught.value).endswith(end)


def test_options_of_the_task_are_suggested_too() -> None:
    given = [("task", "mine"), ("data.train", "a"), ("train.hidden", 1)]
    with pytest.raises(UnknownKeyError, match=r"did you mean 'options\.hidden'") as caught:
        load_config(None, given, lambda task: ["hidden"] if task == "mine" else [])
    assert caught.value.suggested == ("options.hidden",)
    with pytest.raises(UnknownKeyError, match=r"min_delta$"):
        load_config(None, given)


def test_a_file_lies_over_defaults_and_assignments_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('task = "mlp"\n[data]\ntrain = "digits"\n[train]\nepochs = 3\nbatch_size = 8\n')
    config = load_config(str(path), [("train.epochs", 4), ("train.epochs", 5)])
    assert (config.task, config.data.train) == ("mlp", "digits")
    assert (config.train.epochs, config.train.batch_size) == (5, 8)
    assert config.train.eval_every == "auto"
    assert config.cluster == SessionOptions()


def test_a_key_without_a_value_takes_back_what_the_file_has(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('task = "fm"\ndata.train = "a.svm"\ntable.bound = 2\ntrain.epochs = 9\n')
    pairs = [parse_assignment(text) for text in ("table.bound=", "train.epochs=", "run.name=")]
    config = load_config(str(path), pairs)
    assert (config.table.bound, config.train.epochs, config.run.name) == (None, 0, "")
    assert load("train.epochs=3", "train.epochs=", "train.epochs=4").train.epochs == 4
    expected = "unknown key 'table.bund'; valid in [table] are "
    assert sentence(load, "table.bund=").startswith(expected)


@pytest.mark.parametrize(
    ("assignment", "found"),
    [
        ("train.epochs=1e3", lambda c: c.train.epochs),
        ("checkpoint.every_steps=1e3", lambda c: c.checkpoint.every_steps),
        ("tables.weight.max_staleness=1e3", lambda c: c.tables["weight"].max_staleness),
    ],
)
def test_a_whole_number_may_be_written_as_1e3(assignment: str, found: Any) -> None:
    value = found(load(assignment))
    assert value == 1000
    assert type(value) is int


@pytest.mark.parametrize(
    ("text", "columns"), [("C*", ("C*",)), ("C1, C2", ("C1", "C2")), ("['a', 'b']", ("a", "b"))]
)
def test_one_value_is_a_list_of_one(text: str, columns: tuple[str, ...]) -> None:
    assert load(f"data.categorical={text}").data.categorical == columns


def test_the_same_goes_for_a_tasks_own_options() -> None:
    mlp = load_task("mlp")
    assert task_options(mlp, {"hidden": 64}).hidden == (64,)  # type: ignore[attr-defined]
    assert task_options(mlp, {"hidden": [1e2, 50]}).hidden == (100, 50)  # type: ignore[attr-defined]


def test_nested_values_of_optimizers_are_reached(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('task = "fm"\ndata.train = "a.svm"\n[table]\noptimizer = "adam"\n')
    config = load_config(str(path), [parse_assignment("table.optimizer.lr=0.1")])
    assert config.table.optimizer == {"name": "adam", "lr": 0.1}


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


def test_the_number_of_the_label_column_needs_no_quotes(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    for text, label in (("-1", "-1"), ('"-1"', "-1"), ("0", "0"), ('["a", "b"]', ("a", "b"))):
        path.write_text(f'task = "mlp"\n[data]\ntrain = "x.npy"\nlabel = {text}\n')
        assert load_config(str(path), []).data.label == label
    for wrong in ("true", "1.5"):
        path.write_text(f'task = "mlp"\n[data]\ntrain = "x.npy"\nlabel = {wrong}\n')
        with pytest.raises(ConfigError, match=r"data\.label = .*: must be text or a list"):
            load_config(str(path), [])
    given = [("task", "mlp"), ("data.train", "x.npy"), ("data.label", -1)]
    assert load_config(None, given).data.label == "-1"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("run.name=2021_05", "2021_05"),
        ("data.train=2021-05-01", "2021-05-01"),
        ("data.label=7", "7"),
        ("checkpoint.folder=1e3", "1e3"),
        ("tables.weight.init=0x10", "0x10"),
        ("run.name='quoted'", "quoted"),
        ("train.epochs=2_000", 2000),
        ("data.index_base=1", 1),
        ("data.index_base=auto", "auto"),
        ("options.hidden=1_0", 10),
        ("table.optimizer={name = 'sgd'}", {"name": "sgd"}),
    ],
)
def test_what_an_option_takes_as_text_is_no_number(text: str, value: object) -> None:
    assert parse_assignment(text)[1] == value


@pytest.mark.parametrize("line", ['partner_mode = "sync"', "partner_lag_records = 1024"])
def test_a_job_file_with_a_removed_option_is_refused_in_one_sentence(
    tmp_path: Path, line: str
) -> None:
    file = tmp_path / "job.toml"
    file.write_text(f'task = "mlp"\ndata.train = "digits"\n[redundancy]\npartner = true\n{line}\n')
    with pytest.raises(ConfigError) as caught:
        load_config(str(file), [])
    assert str(caught.value) == (
        f"redundancy.{line.split()[0]} was removed: a replica always has what was acknowledged; delete it"
    )
