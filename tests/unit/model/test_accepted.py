"""Accepted values: checked against annotations, and written in words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import numpy as np
import pytest
from msgspec import Meta

from mpips import BSP, SSP, Compensate, ConfigError, Reject
from mpips.model.accepted import accepted, check_fields, unknown_name
from mpips.model.consistency import AUTO, MODELS, POLICIES, ConsistencyName, PolicyName

Count = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(ge=0, lt=1)]


@dataclass
class Fields:
    count: Count = 1
    share: Share = 0.5
    name: Literal["mean", "sum"] = "mean"
    other: Any = None


@pytest.mark.parametrize(
    ("hint", "value", "words"),
    [
        (Count, 0, "1 or more"),
        (Count, 0.5, "a whole number, 1 or more"),
        (Count, True, "a whole number, 1 or more"),
        (Count, "3", "a whole number, 1 or more"),
        (Count | None, 0, "1 or more"),
        (Share, 1.0, "at least 0 and less than 1"),
        (Share, math.nan, "at least 0 and less than 1"),
        (Share, None, "a number at least 0 and less than 1"),
        (Annotated[float, Meta(gt=0)], 0, "greater than 0"),
        (Annotated[float, Meta(le=0.5)], 1, "at most 0.5"),
        (Annotated[int, Meta(ge=2, le=2**63 - 1)], 1, "from 2 to 9223372036854775807"),
        (float, "x", "a number"),
        (float, 1.0, None),
        (bool, 1, "true or false"),
        (str, 1, "text"),
        (str | dict[str, int], 1, "text or a table"),
        (tuple[int, ...], 1, "a list"),
        (Literal[0, "auto"], 2, "one of 0, auto"),
        (Literal["mean", "sum"], "Mean", "one of mean, sum; did you mean 'mean'?"),
        (Annotated[str, Meta(pattern="^a")], "b", None),
        (Annotated[tuple[int, ...], Meta(min_length=1)], [], None),
    ],
)
def test_what_is_accepted_is_named(hint: Any, value: object, words: str | None) -> None:
    assert accepted(hint, value) == words


@pytest.mark.parametrize(
    "values",
    [
        {"count": np.int64(3), "share": np.float32(0.5), "name": np.str_("sum")},
        {"share": 0},
        {"share": -0.0},
        {"share": np.longdouble(0.5)},
        {"other": object()},
    ],
)
def test_numbers_of_numpy_count_as_numbers(values: dict[str, Any]) -> None:
    check_fields(Fields(**values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": np.int64(0)}, "it.count = 0: must be 1 or more"),
        ({"count": np.bool_(True)}, "it.count = True: must be a whole number, 1 or more"),
        ({"count": 1.0}, "it.count = 1.0: must be a whole number, 1 or more"),
        ({"share": math.nan}, "it.share = nan: must be at least 0 and less than 1"),
        ({"share": 1j}, "it.share = 1j: must be a number at least 0 and less than 1"),
        ({"name": "men"}, "it.name = 'men': must be one of mean, sum; did you mean 'mean'?"),
    ],
)
def test_a_field_that_is_not_accepted_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_fields(Fields(**values), "it.")
    assert str(caught.value) == message


def test_an_unknown_name_lists_the_valid_ones_in_their_order() -> None:
    error = unknown_name("rule", "ADA", ["sgd", "adam"])
    assert str(error) == "unknown rule 'ADA'; valid are sgd, adam; did you mean 'adam'?"
    assert str(unknown_name("rule", None, ["sgd"])) == "unknown rule None; valid are sgd"


def test_names_of_models_and_policies_are_those_of_the_classes() -> None:
    assert get_args(ConsistencyName) == (*MODELS, AUTO)
    assert get_args(PolicyName) == tuple(POLICIES)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SSP(bound=-1), "bound = -1: must be from 0 to 2147483647 or 'auto'"),
        (lambda: SSP(bound=2**31), "bound = 2147483648: must be from 0 to 2147483647 or 'auto'"),
        (
            lambda: SSP(bound=True),
            "bound = True: must be a whole number from 0 to 2147483647 or 'auto'",
        ),
        (lambda: BSP("avg"), "reduce = 'avg': must be one of mean, sum"),  # type: ignore[arg-type]
        (lambda: BSP(backup=-1), "backup = -1: must be 0 or more or 'auto'"),
        (lambda: BSP(backup="auto", max=256), "max = 256: must be from 1 to 255"),
        (
            lambda: BSP(backup=2, max=4),
            "max = 4 with backup = 2: applies only to backup = 'auto'; remove it",
        ),
        (
            lambda: Reject(1.0),  # type: ignore[arg-type]
            "max_staleness = 1.0: must be a whole number from 0 to 4294967295 or 'auto'",
        ),
        (lambda: Compensate(0), "lambda_ = 0: must be greater than 0 and at most 1e+18"),
        (lambda: Compensate(math.inf), "lambda_ = inf: must be greater than 0 and at most 1e+18"),
        (lambda: SSP(policy=Reject), "policy = Reject is a class: give a value, Reject()"),  # type: ignore[arg-type]
        (lambda: SSP(policy="scale"), "policy = 'scale': must be a value such as Scale()"),  # type: ignore[arg-type]
    ],
)
def test_consistency_models_check_their_values(make: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value) == message


def test_consistency_models_take_numbers_of_numpy() -> None:
    assert SSP(bound=np.int32(3)) == SSP(3)  # type: ignore[arg-type]
    assert Compensate(np.float32(0.5)) == Compensate(0.5)  # type: ignore[arg-type]
