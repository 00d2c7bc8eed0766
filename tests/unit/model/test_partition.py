"""Partitions: complete, disjoint, balanced, and preserved by JSON."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpips._native import Partitioner
from mpips.errors import ConfigError
from mpips.model.partition import (
    PARTITIONS,
    FrequencyPartition,
    HashPartition,
    LayerPartition,
    Partition,
    RangePartition,
)
from mpips.model.partition_plan import Balance, PlannedPlacement, assign_longest_first

INT64 = np.iinfo(np.int64)
LINE_BYTES = 64

sizes_of_tensors = st.lists(st.one_of(st.integers(0, 70), st.integers(0, 10_000)), max_size=25).map(
    lambda sizes: {f"t{i}": size for i, size in enumerate(sizes)}
)
server_counts = st.integers(1, 40)


def check_complete(placement: PlannedPlacement, sizes: dict[str, int]) -> None:
    assert list(placement.pieces) == list(sizes)
    for name, pieces in placement.pieces.items():
        covered = 0
        for piece in pieces:
            assert 0 <= piece.server < placement.n_servers
            assert piece.start == covered < piece.stop
            covered = piece.stop
        assert covered == sizes[name]
        assert len({piece.server for piece in pieces}) == len(pieces)
    assert placement.balance().total == 4 * sum(sizes.values())


@given(sizes=sizes_of_tensors, n_servers=server_counts)
def test_range_cuts_at_lines_and_differs_by_one_line(sizes: dict[str, int], n_servers: int) -> None:
    placement = RangePartition().place(sizes, n_servers)
    check_complete(placement, sizes)
    for pieces in placement.pieces.values():
        assert all(piece.start % 16 == 0 for piece in pieces)
        n_bytes = [4 * (piece.stop - piece.start) for piece in pieces]
        n_bytes += [0] * (n_servers - len(n_bytes))
        assert max(n_bytes) - min(n_bytes) <= LINE_BYTES
    loads = placement.balance().per_server
    assert max(loads) - min(loads) <= LINE_BYTES


def test_range_spreads_small_tensors() -> None:
    placement = RangePartition().place({f"bias{i}": 10 for i in range(32)}, 8)
    assert placement.balance().per_server == (160,) * 8


@given(sizes=sizes_of_tensors, n_servers=server_counts)
def test_layer_keeps_tensors_whole_and_loads_within_the_bound(
    sizes: dict[str, int], n_servers: int
) -> None:
    placement = LayerPartition().place(sizes, n_servers)
    check_complete(placement, sizes)
    assert all(len(pieces) == (sizes[name] > 0) for name, pieces in placement.pieces.items())
    # Graham: a list schedule ends before mean + largest.
    balance = placement.balance()
    assert max(balance.per_server) <= balance.mean + 4 * max(sizes.values(), default=0)


def test_layer_balances_where_placing_in_order_does_not() -> None:
    sizes = {"a": 1, "b": 2, "c": 3, "d": 3, "e": 4, "f": 5}
    assert LayerPartition().place(sizes, 2).balance().per_server == (36, 36)
    assert LayerPartition().place(sizes, 3).balance().per_server == (24, 24, 24)


def test_longest_first_is_deterministic_and_respects_loads() -> None:
    assert assign_longest_first([1, 1, 1, 1], 2) == (0, 1, 0, 1)
    assert assign_longest_first([3, 1, 2], 2, loads=[0, 4]) == (0, 1, 0)


@given(
    sizes=sizes_of_tensors.filter(bool),
    n_servers=server_counts,
    rates=st.lists(st.sampled_from([0, 0.5, 1, 1000]), min_size=25, max_size=25),
)
def test_frequency_balances_bytes_times_updates(
    sizes: dict[str, int], n_servers: int, rates: list[float]
) -> None:
    updates = dict(zip(sizes, rates, strict=False))
    placement = FrequencyPartition(updates).place(sizes, n_servers)
    check_complete(placement, sizes)
    loads = [0.0] * n_servers
    for name, pieces in placement.pieces.items():
        for piece in pieces:
            loads[piece.server] += sizes[name] * updates[name]
    largest = max(sizes[name] * updates[name] for name in sizes)
    assert max(loads) <= sum(loads) / n_servers + largest


def test_frequency_separates_hot_tensors_and_spreads_idle_ones_by_bytes() -> None:
    sizes = {"hot": 10, "warm": 100, "idle1": 500, "idle2": 410}
    placement = FrequencyPartition({"hot": 99, "warm": 9.9, "idle1": 0, "idle2": 0}).place(sizes, 2)
    server = {name: pieces[0].server for name, pieces in placement.pieces.items()}
    assert server["hot"] != server["warm"]
    assert server["idle1"] == server["hot"]
    assert server["idle2"] == server["warm"]


def test_frequency_names_unmeasured_tensors() -> None:
    with pytest.raises(ConfigError, match="no measured updates of b, c"):
        FrequencyPartition({"a": 1}).place({"a": 1, "b": 1, "c": 1}, 2)


@pytest.mark.parametrize("n_servers", [1, 2, 3, 17, 300])
@pytest.mark.parametrize(("low", "high"), [(0, 1000), (-77, 1), (INT64.min, INT64.max), (5, 6)])
def test_key_ranges_are_ascending_and_even(low: int, high: int, n_servers: int) -> None:
    keys = np.unique(np.array([low + (high - 1 - low) * i // 999 for i in range(1000)], np.int64))
    partition = RangePartition(low, high)
    owners = partition.owners(keys, n_servers)
    assert (np.diff(owners.astype(int)) >= 0).all()
    assert owners.max() < n_servers
    if high - low >= 1000:
        assert max(partition.key_balance(keys, n_servers).per_server) <= 1000 / n_servers + 2
    for outside in (low - 1, high):
        if INT64.min <= outside <= INT64.max:
            with pytest.raises(KeyError, match=f"from {low} to {high - 1}"):
                partition.owners(np.array([outside]), n_servers)


def test_hash_partition_uses_every_server_evenly() -> None:
    balance = HashPartition().key_balance(np.arange(100_000) * 64, 10)
    assert balance.total == 100_000
    assert balance.max_over_mean < 1.05


def zipf_keys() -> tuple[np.ndarray, np.ndarray]:
    keys = np.arange(20_000, dtype=np.int64) * 7 - 3
    return keys, (1_000_000 / np.arange(50, 20_050)).astype(np.int64)


@pytest.mark.parametrize("n_servers", [2, 7, 32])
def test_measured_buckets_balance_updates_better_than_the_hash(n_servers: int) -> None:
    keys, counts = zipf_keys()
    partition = FrequencyPartition.from_counts(keys, counts)
    assert sum(partition.bucket_counts) == counts.sum()

    def imbalance(owners: np.ndarray) -> float:
        loads = np.bincount(owners, weights=counts, minlength=n_servers)
        return float(loads.max() / loads.mean())

    measured = imbalance(partition.owners(keys, n_servers))
    assert measured < 1.01
    assert measured < imbalance(HashPartition().owners(keys, n_servers))


def test_repeated_keys_are_summed() -> None:
    keys = np.array([5, 9, 5, 5], np.int64)
    summed = FrequencyPartition.from_counts(keys, np.array([1, 10, 100, 1000]), n_buckets=50)
    once = FrequencyPartition.from_counts(keys[:2], np.array([1101, 10]), n_buckets=50)
    assert summed == once


@pytest.mark.parametrize("n_servers", [1, 3, 8])
def test_unseen_buckets_are_spread_evenly(n_servers: int) -> None:
    keys, counts = np.arange(40, dtype=np.int64), np.full(40, 1000)
    partition = FrequencyPartition.from_counts(keys, counts, n_buckets=1000)
    seen = Partitioner.hash(1000).owners(keys)
    everything = np.arange(200_000, dtype=np.int64)
    buckets = Partitioner.hash(1000).owners(everything)
    unseen, first = np.unique(np.where(np.isin(buckets, seen), 1000, buckets), return_index=True)
    owners = partition.owners(everything[first[unseen < 1000]], n_servers)
    per_server = np.bincount(owners, minlength=n_servers)
    assert per_server.sum() == 1000 - np.unique(seen).size
    assert per_server.max() - per_server.min() <= 1


def test_fewer_buckets_than_servers_are_refused() -> None:
    partition = FrequencyPartition(bucket_counts=(1, 2, 3))
    with pytest.raises(ConfigError, match="3 buckets for 4 servers"):
        partition.partitioner(4)


EXAMPLES = (
    HashPartition(),
    LayerPartition(),
    RangePartition(),
    RangePartition(-5, 10**12),
    FrequencyPartition({"w": 3, "b": 0.5}),
    FrequencyPartition.from_counts(*zipf_keys(), n_buckets=64),
)


@pytest.mark.parametrize("partition", EXAMPLES, ids=repr)
def test_partition_survives_json(partition: Partition) -> None:
    config = json.loads(json.dumps(partition.to_config()))
    assert Partition.from_config(config) == partition
    assert len(repr(partition)) < 80
    assert partition.name in partition.describe()


def test_partitions_differ() -> None:
    assert all(left != right for left, right in pairwise(EXAMPLES))
    assert RangePartition(0, 10) != RangePartition(0, 11)


def test_every_strategy_is_listed_by_its_name() -> None:
    assert set(PARTITIONS) == {"frequency", "hash", "layer", "range"}
    for name, strategy in PARTITIONS.items():
        assert type(Partition.from_config(name)) is strategy


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("hush", "'hush'; valid are frequency, hash, layer, range; did you mean 'hash'"),
        ("", "unknown partition ''; valid are"),
        ({"low": 1}, "unknown partition None"),
        ({"name": "hash", "low": 1}, "'hash' has no option 'low'; it has none"),
        ({"name": "range", "lo": 1}, "'range' has no option 'lo'; it has low, high"),
        ({"name": "range", "low": 1}, "both low and high"),
        ({"name": "range", "low": 0, "high": 1.5}, "whole numbers"),
        (
            {"name": "range", "low": 3, "high": 3},
            "low = 3 and high = 3: must be low < high within int64",
        ),
        ({"name": "range", "low": 0, "high": 2**63}, "within int64"),
        ({"name": "frequency", "updates": {"w": -1}}, "count -1: must be a number from 0"),
        ({"name": "frequency", "updates": {"w": float("nan")}}, "count nan: must be a number"),
        ({"name": "frequency", "updates": [1]}, "must be a table and an array"),
        ({"name": "frequency", "bucket_counts": [1.5]}, "count 1.5: must be a whole number"),
        (
            {"name": "frequency", "bucket_counts": [0] * 65536},
            "has 65536 buckets: must be at most 65535",
        ),
    ],
)
def test_wrong_configurations_are_refused(config: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Partition.from_config(config)


def test_wrong_uses_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="'hash' does not split dense tables; use frequency, layer or range"
    ):
        HashPartition().place({"w": 1}, 2)
    with pytest.raises(ConfigError, match="embedding tables; use frequency, hash or range"):
        LayerPartition().partitioner(2)
    with pytest.raises(ConfigError, match="needs low and high"):
        RangePartition().partitioner(2)
    for n_servers in (0, 65536):
        with pytest.raises(ConfigError, match=f"n_servers = {n_servers}: must be from 1 to 65535"):
            RangePartition().place({"w": 1}, n_servers)
    with pytest.raises(ConfigError, match="'w': -1 elements: must be 0 or more"):
        LayerPartition().place({"w": -1}, 2)
    for keys, counts, message in (
        ([1], [1, 2], "do not match"),
        ([1], [-1], "count -1"),
    ):
        with pytest.raises(ConfigError, match=message):
            FrequencyPartition.from_counts(np.array(keys), np.array(counts))


def test_tables_can_be_printed() -> None:
    placement = RangePartition().place({"weight": 40, "b": 1}, 2)
    assert placement.describe().splitlines() == [
        "tensor  server  start  stop  bytes",
        "weight       1      0    16     64",
        "weight       0     16    40     96",
        "b            1      0     1      4",
        "",
        "server  bytes",
        "0          96",
        "1          68",
        "total 164 bytes, mean 82.0, max/mean 1.171",
    ]
    assert repr(placement) == "Placement(2 tensors in 3 pieces on 2 servers, max/mean 1.171)"
    assert placement == RangePartition().place({"weight": 40, "b": 1}, 2)
    assert placement != RangePartition().place({"weight": 41, "b": 1}, 2)


def test_balance_of_nothing_is_perfect() -> None:
    assert Balance("rows", (0, 0)).max_over_mean == 1.0
