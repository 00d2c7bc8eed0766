"""Entries of hashed samples: logarithms with the bits of the C library, and checks of what is outside."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mpips._native import interleave

N = 40_000


def logarithms(numbers: np.ndarray) -> np.ndarray:
    """Return the logarithms as samples have them; no number is nan."""
    n = len(numbers)
    keys, values = np.empty(n, np.int64), np.empty(n, np.float32)
    fields, lengths = np.empty(n, np.int32), np.empty(n, np.int64)
    column = (np.ascontiguousarray(numbers, np.float64), 5, None, None)
    assert interleave([column], n, None, [True], keys, values, fields, lengths) == n
    return values


def expected(numbers: np.ndarray) -> np.ndarray:
    logs = [math.copysign(math.log1p(abs(v)), v) for v in numbers.tolist()]
    return np.array(logs, np.float64).astype(np.float32)


def middles(random: np.random.Generator) -> np.ndarray:
    """Return numbers whose logarithms lie as near as possible to the middle between two float32."""
    floats = np.exp(random.uniform(-6, 4.4, N)).astype(np.float32)
    middle = (floats.astype(np.float64) + np.nextafter(floats, np.float32(9e9))) / 2
    near = np.expm1(middle) * random.choice([-1, 1], N)
    steps = random.integers(-3, 4, N)
    for _ in range(3):
        away = np.where(steps > 0, np.inf, -np.inf)
        near = np.where(steps == 0, near, np.nextafter(near, away))
        steps -= np.sign(steps)
    return near


@pytest.mark.parametrize("kind", ["cells", "counts", "sizes", "powers", "small", "middles"])
def test_bits_are_those_of_the_library(kind: str) -> None:
    random = np.random.default_rng(11)
    powers = np.ldexp(1.0, np.arange(-30, 127))
    numbers = {
        "cells": lambda: random.normal(0, 100, N).round(3),
        "counts": lambda: random.integers(-5, 10**6, N).astype(np.float64),
        "sizes": lambda: np.exp(random.uniform(-80, 88, N)) * random.choice([-1, 1], N),
        "powers": lambda: np.concatenate([powers + d for d in (-1, 0, 1)] + [-powers]),
        "small": lambda: np.concatenate([random.uniform(-0.04, 0.04, N), [0.0, -0.0, 2.0**-6]]),
        "middles": lambda: middles(random),
    }[kind]()
    found, wanted = logarithms(numbers), expected(numbers)
    assert (found.view(np.int32) == wanted.view(np.int32)).all()


@pytest.mark.parametrize("n", [1, 3, 4, 15, 16, 17, 1000])
def test_codes_and_records_beyond_their_arrays_are_refused(n: int) -> None:
    random = np.random.default_rng(n)
    keys = np.arange(100, 105)

    def entries(codes: np.ndarray, own: np.ndarray | None, n_keys: int = 5) -> np.ndarray:
        n_own = len(codes) if own is None else len(own)
        found = np.zeros(n_own, np.int64)
        column = (None, 0, codes.astype(np.int32), keys[:n_keys])
        more = np.zeros(n_own, np.float32), np.zeros(n_own, np.int32), np.zeros(n_own, np.int64)
        interleave([column], len(codes), own, [False], found, *more)
        return found

    codes = random.integers(0, 5, n)
    own = np.sort(random.integers(0, n, n)).astype(np.int64)
    assert entries(codes, None).tolist() == keys[codes].tolist()
    assert entries(codes, own).tolist() == keys[codes[own]].tolist()
    for place in {0, n // 2, n - 1}:
        for code in (5, -1, 2**31 - 1, -(2**31)):
            wrong = codes.copy()
            wrong[place] = code
            with pytest.raises(ValueError, match="a code lies outside of its keys"):
                entries(wrong, None)
        for record in (n, -1, 2**63 - 1, -(2**63)):
            outside = own.copy()
            outside[place] = record
            with pytest.raises(ValueError, match="own names a record that is not there"):
                entries(codes, outside)
    with pytest.raises(ValueError, match="a code lies outside of its keys"):
        entries(codes, None, n_keys=0)
