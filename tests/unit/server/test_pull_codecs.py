"""Pulls with a codec: workers receive the image of the values in the codec."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Rig, dense, floats, rows

from mpips import _native
from mpips.errors import ConfigError
from mpips.kernels import reference_codecs as reference
from mpips.model.codec import Bf16, Int8
from mpips.model.consistency import ASP, BSP
from mpips.model.optimizer import Adam, PythonRule
from mpips.model.partition import FrequencyPartition
from mpips.model.placement import place
from mpips.model.table import DenseTable

BLOCK = _native.BLOCK_FLOATS


def image(codec: Bf16 | Int8, values: np.ndarray) -> np.ndarray:
    """Return what a pull of these values receives."""
    native = codec.native()
    flat = values.reshape(-1)
    codes = reference.encode_nearest(native.kind, native.block, flat)
    return reference.decode(native.kind, native.block, codes, 0, flat.size).reshape(values.shape)


def row_images(codec: Bf16 | Int8, values: np.ndarray) -> np.ndarray:
    codes = reference.encode_nearest(codec.name, values.shape[1], values.reshape(-1))
    return reference.decode(codec.name, values.shape[1], codes, 0, values.size).reshape(
        values.shape
    )


def halve(values, state, update, step):
    values[:] = values / 2 - update


@pytest.mark.parametrize("codec", [Bf16(), Int8(), Int8(16), Int8(4096)], ids=str)
@pytest.mark.parametrize("n", [1, 127, BLOCK, 2 * BLOCK + 300])
@pytest.mark.parametrize("model", [ASP(), BSP()], ids=str)
def test_a_pull_receives_the_image_of_the_values(codec: Bf16 | Int8, n: int, model: object) -> None:
    table = dense(
        n, optimizer=Adam(0.1), init="normal(1.0)", consistency=model, pull_compression=codec
    )
    rig = Rig(table, slot_bytes=1 << 14)
    worker = rig.worker()
    handle = worker.table("w")
    seen = set()
    for step in range(3):
        found = handle.pull()
        assert found.tobytes() == image(codec, rig.values()).tobytes()
        seen.add(found.tobytes())
        handle.push(floats(n, step) + found)
        worker.clock()
    assert handle.pull().tobytes() == image(codec, rig.values()).tobytes()
    assert len(seen) == 3
    assert "direct" not in handle.paths


def test_values_that_are_set_and_rules_in_python_change_the_image() -> None:
    rig = Rig(dense(300, optimizer=PythonRule(halve), pull_compression="int8"))
    worker = rig.worker()
    rig.core.set_dense(0, floats(300))
    assert worker.table("w").pull().tobytes() == image(Int8(), floats(300)).tobytes()
    worker.table("w").push(floats(300, 1)).wait()
    assert worker.table("w").pull().tobytes() == image(Int8(), rig.values()).tobytes()


@pytest.mark.parametrize("codec", [Bf16(), Int8()], ids=str)
@pytest.mark.parametrize("dim", [16, 50])
def test_rows_arrive_rounded_and_initial_rows_are_equal_to_pulled_ones(
    codec: Bf16 | Int8, dim: int
) -> None:
    rig = Rig(rows(dim, init="normal(1.0)", pull_compression=codec), n_slots=4)
    handle = rig.worker().table("e")
    keys = np.array([4, -9, 4, 1 << 50, *range(200, 290)], np.int64)
    initial = handle.pull(keys)
    assert initial.tobytes() == handle.initial(keys).tobytes()
    update = floats(len(keys) * dim).reshape(-1, dim) / 7
    handle.push(keys, update).wait()
    found = handle.pull(keys)
    table = rig.table_rows()
    stored = np.array([table[key] for key in keys.tolist()], np.float32)
    assert found.tobytes() == row_images(codec, stored).tobytes()
    assert handle.prefetch(keys).wait().tobytes() == found.tobytes()


def test_the_bytes_that_workers_count_are_those_that_travel() -> None:
    n, found = BLOCK + 4096, {}
    for codec in (None, "bf16", "int8"):
        rig = Rig(dense(n, pull_compression=codec), rows(32, pull_compression=codec), n_slots=8)
        worker = rig.worker()
        worker.table("w").pull()
        worker.table("e").pull(np.arange(10))
        found[codec] = rig.writers[0].counters()["pulled_bytes"]
    assert found == {
        None: 4 * n + 1280,
        "bf16": 2 * n + 640,
        "int8": n + n // 128 * 4 + 10 * (4 + 32),
    }


@pytest.mark.parametrize("n_servers", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("partition", ["range", "layer", FrequencyPartition({"w": 3.0, "b": 1.0})])
@pytest.mark.parametrize("n", [1, 50, 120, 250, 300, 1000, 70_001, 70_120])
def test_shards_are_cut_between_blocks(n_servers: int, partition: object, n: int) -> None:
    options = {"partition": partition, "pull_compression": Int8(256)}
    tables = [DenseTable("w", (n,), **options), DenseTable("b", (77,), **options)]
    shards = place(tables, n_servers, 1, None, 0).dense["w"]
    assert [s.start for s in shards] == [0, *(s.stop for s in shards[:-1])]
    assert shards[-1].stop == n
    assert all(s.start % 256 == 0 and s.start < s.stop for s in shards)
    assert len({s.server for s in shards}) == len(shards)


def test_values_with_a_codec_cannot_be_viewed() -> None:
    rig = Rig(dense(40, pull_compression="bf16"))
    handle = rig.worker().table("w")
    assert handle.ready_views() is None
    for view in (handle.view, handle.views):
        with pytest.raises(ConfigError, match=r"has pull_compression = Bf16.*use pull"):
            view()


@pytest.mark.parametrize("codec", [Bf16(), Int8(128)], ids=str)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, -np.nan])
def test_infinity_and_nan_are_seen_by_workers(codec: Bf16 | Int8, value: float) -> None:
    """A sum of finite updates may be infinite. Bf16 shows the value, Int8 makes the whole block NaN."""
    values = np.linspace(-3, 3, 300, dtype=np.float32)
    values[150] = value
    values[151] = np.array([0x7F800001], np.uint32).view(np.float32)[0]  # a NaN by its last bit
    rig = Rig(dense(300, pull_compression=codec), rows(32, pull_compression=codec))
    rig.core.set_dense(0, values)
    found = rig.worker().table("w").pull()
    assert found.tobytes() == image(codec, values).tobytes()
    assert np.isnan(found[151])
    if isinstance(codec, Bf16):
        assert (found[150] == value) or np.isnan(value)
        assert np.isfinite(np.delete(found, [150, 151])).all()
    else:
        assert np.isnan(found[128:256]).all()
        assert np.isfinite(found[:128]).all()
        assert np.isfinite(found[256:]).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: dense(pull_compression="fp16"),
            "pull_compression = 'fp16': must be 'bf16', 'int8'",
        ),
        (lambda: dense(pull_compression="zip"), "unknown compression 'zip'"),
        (lambda: dense(pull_compression=3), "pull_compression = 3: must be a codec"),
        (lambda: dense(pull_compression=Int8(100)), "the block must be a power of two"),
        (lambda: rows(8, pull_compression="int8"), "pull_compression = 'int8' with dim = 8"),
        (lambda: rows(5000, pull_compression="bf16"), "rows may have up to 4096 values"),
        (
            lambda: dense(consistency=BSP(), placement="replicated", pull_compression="bf16"),
            "with placement = 'replicated'",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]


def test_a_pull_with_another_codec_than_that_of_the_table_is_refused() -> None:
    rig = Rig(rows(16, pull_compression="bf16"))
    out = np.empty((1, 16), np.float32)
    assert rig.writers[0].pull_rows(0, 0, np.array([3]), out, 0) == 1
    with pytest.raises(
        _native.ProtocolViolation, match="a pull with codec 0, its table has codec bf16"
    ):
        rig.drain()
