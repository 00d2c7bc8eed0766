"""Digests of samples: contents count, and nothing that differs between the processes of a job."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque, namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch

from mpips.torch.sample_digests import digest_of_sample

Pair = namedtuple("Pair", "first second")


@dataclass
class Record:
    key: str
    values: Any


class Slots:
    __slots__ = ("one",)

    def __init__(self, one: Any) -> None:
        self.one = one


def of(i: int) -> list[Any]:
    """Return values of many kinds, which differ for each i."""
    return [
        *(i, float(i), str(i), bytes([i]), bytearray([i]), complex(i), i > 0),
        *(torch.tensor([i]), torch.tensor(i, dtype=torch.bfloat16), torch.tensor([i + 1j]).conj()),
        *(torch.zeros(i + 1), torch.arange(i, 8)[::2], torch.nn.Parameter(torch.tensor(1.0 * i))),
        *(np.array([i]), np.float32(i), np.array([str(i), None], object), np.zeros(i)),
        np.array([(i, 1.0)], dtype=[("a", "i4"), ("b", "f8")]),
        *([i, 2], (1, [i]), {"a": i}, {i: 1}, {str(i), "b"}, deque([i]), range(i), Pair(1, i)),
        *(Record("a", torch.tensor([i])), Slots([i]), [{"text": (str(i), [torch.ones(i)])}]),
    ]


def test_contents_of_all_kinds_count() -> None:
    one, again, other = (list(map(digest_of_sample, of(i))) for i in (0, 0, 1))
    assert one == again
    assert len(set(one + other)) == 2 * len(one)


def test_order_counts_in_lists_but_not_in_dicts_and_sets() -> None:
    assert digest_of_sample([1, 2]) != digest_of_sample([2, 1])
    assert digest_of_sample({"a": 1, "b": 2}) == digest_of_sample({"b": 2, "a": 1})
    assert digest_of_sample({"a": 1, "b": 2}) != digest_of_sample({"a": 2, "b": 1})


def test_paths_of_webdataset_and_addresses_do_not_count(tmp_path: Path) -> None:
    one, other = ({"__key__": "a", "__url__": url, "x": 1} for url in ("/node1/a", "/node2/a"))
    assert digest_of_sample(one) == digest_of_sample(other)
    assert digest_of_sample(one) != digest_of_sample({**one, "__key__": "b"})
    assert digest_of_sample([object(), print]) == digest_of_sample([object(), print])


def test_a_value_within_itself_ends() -> None:
    value: list[Any] = [1]
    value += [value, Record("a", value)]
    assert digest_of_sample(value) == digest_of_sample(value)


@pytest.mark.long
def test_the_hash_seed_of_the_process_does_not_count() -> None:
    code = (
        "from mpips.torch.sample_digests import digest_of_sample as d\n"
        "print(d([{'a', 'b', 'c', 1}, {'x': {'d', 'e'}}]))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
