"""The schema as the one source of options: descriptions, choices, and errors from annotations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, get_args

import msgspec
import numpy as np
import pytest
from msgspec import Meta, inspect

from mpips import ConfigError
from mpips.config.conversion import convert, takes_text
from mpips.config.options import SessionOptions
from mpips.config.schema import JobConfig
from mpips.config.triggers import Triggers
from mpips.data import READERS
from mpips.data.options import Format
from mpips.tasks import TASKS


def options(kind: type[msgspec.Struct], path: str = "") -> Iterator[tuple[str, inspect.Field]]:
    """The options of a struct and of the structs in it, with their full names."""
    for field in inspect.type_info(kind).fields:  # type: ignore[attr-defined]
        if isinstance(field.type, inspect.StructType):
            yield from options(field.type.cls, f"{path}{field.name}.")
        else:
            yield path + field.name, field


STRUCTS = {"": JobConfig, **{f"options of {name}": t.Options for name, t in TASKS.items()}}
OPTIONS = [(f"{where} {name}", f) for where, s in STRUCTS.items() for name, f in options(s)]


@pytest.mark.parametrize(("name", "field"), OPTIONS, ids=[name for name, _ in OPTIONS])
def test_every_option_is_described(name: str, field: inspect.Field) -> None:
    assert isinstance(field.type, inspect.Metadata)
    description = (field.type.extra_json_schema or {})["description"]
    assert description.endswith((".", "..."))
    assert description[0].isupper() or description.split()[0].rstrip(":").islower()


def test_the_schema_can_be_written_as_json_schema() -> None:
    definitions = msgspec.json.schema(JobConfig)["$defs"]
    epochs = definitions["TrainConfig"]["properties"]["epochs"]
    assert (epochs["type"], epochs["minimum"], epochs["default"]) == ("integer", 0, 0)
    assert all(
        section["description"].startswith("[")
        for name, section in definitions.items()
        if name != "JobConfig"
    )


def test_formats_are_those_of_the_readers() -> None:
    choice, _ = get_args(Format)
    assert get_args(choice) == ("auto", *READERS)


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    n: Annotated[int, Meta(ge=0)] = 0
    text: Annotated[str, Meta(pattern="^a")] = "a"


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    required: int
    weights: dict[str, Annotated[float, Meta(gt=0)]] = {}
    inner: dict[str, Inner] = {}
    many: tuple[Inner, ...] = ()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "it = {}: object missing required field required"),
        ({"required": 1, "weights": {"a.b": 0}}, "it.weights.a.b = 0: must be greater than 0"),
        ({"required": 1, "inner": {"x": {"n": -1}}}, "it.inner.x.n = -1: must be 0 or more"),
        (
            {"required": 1, "many": [{}, {"n": "1"}]},
            "it.many[1].n = '1': must be a whole number, 0 or more",
        ),
        (
            {"required": 1, "inner": {"x": {"text": "b"}}},
            "it.inner.x.text = 'b': expected str matching regex '^a'",
        ),
        ({"required": 1, "many": 3}, "it.many = 3: must be a list"),
    ],
)
def test_the_innermost_wrong_value_is_named(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        convert(raw, Outer, "it")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("task", True),
        ("data.format", True),
        ("data.index_base", False),
        ("tables.weight.init", True),
        ("tables.weight.policy", True),
        ("tables.weight", False),
        ("table.optimizer", True),
        ("table.optimizer.lr", False),
        ("train.epochs", False),
        ("options.x", False),
        ("no.such.option", False),
    ],
)
def test_options_that_take_only_text_are_known(path: str, expected: bool) -> None:
    assert takes_text(JobConfig, path.split(".")) is expected


def test_options_of_a_program_are_checked_as_those_of_a_file() -> None:
    made = SessionOptions(servers=np.int64(2), timeout_s=5, ring_slots=16.0).check()  # type: ignore[arg-type]
    assert made == SessionOptions(servers=2, timeout_s=5.0, ring_slots=16)
    assert [type(v) for v in (made.servers, made.timeout_s, made.ring_slots)] == [int, float, int]
    assert Triggers(1e3, np.float32(2)).check() == Triggers(1000, 2.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (SessionOptions(servers="two"), "servers = 'two': must be a whole number from 0 to 65535"),  # type: ignore[arg-type]
        (SessionOptions(servers=1.5), "servers = 1.5: must be a whole number from 0 to 65535"),  # type: ignore[arg-type]
        (SessionOptions(seed=2**63), f"seed = {2**63}: must be from 0 to {2**63 - 1}"),
        (
            Triggers(every_s=float("nan")),
            "every_s = nan: must be at least 0 and less than 1000000000",
        ),
        (
            Triggers(on_usr1="Exit"),
            "on_usr1 = 'Exit': must be one of continue, exit; did you mean 'exit'?",
        ),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_option_of_a_program_is_named(
    given: SessionOptions | Triggers, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        given.check()
    assert str(caught.value) == message


def test_a_prefix_names_the_section() -> None:
    with pytest.raises(ConfigError, match=r"^checkpoint\.grace_s = -1: must be from 0 to 3600$"):
        Triggers(grace_s=-1).check("checkpoint.")
