"""Logarithms of hashed numbers: the float32 next to the double of the C library, bit by bit."""

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
