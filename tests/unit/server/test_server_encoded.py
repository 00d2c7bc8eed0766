"""Pushes with a codec: what arrives is the codec's image of what was pushed, whatever lies between."""

from __future__ import annotations

import numpy as np
import pytest
from crash_rig import crash
from harness import Rig, dense, rows
from ring_attack import BASE, FIRST, LAST, PUSH_DENSE, PUSH_ROWS, STAGED, TICK, Attack

from mpips import _native
from mpips.errors import ConfigError
from mpips.kernels import reference_codecs as reference
from mpips.model.codec import Auto, Bf16, Codec, Fp16, Int8, TopK
from mpips.model.consistency import ASP, BSP, SSP, Compensate
from mpips.model.initializer import table_seed
from mpips.model.table import native_codec

AREA, ARRIVED, FITS, CLOSES = 64, 128, 32, 256
CODECS = [Bf16(), Fp16(), Int8(), Int8(16), Int8(4096)]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def image(codec: Codec, tensor: np.ndarray, key: int) -> np.ndarray:
    """Return what a server receives of a dense push."""
    native = codec.native()
    n = tensor.size
    codes = reference.encode(native.kind, native.block, tensor.reshape(-1), 0, n, key)
    return reference.decode(native.kind, native.block, codes, 0, n).reshape(tensor.shape)


def row_images(codec: Codec, keys: np.ndarray, values: np.ndarray, key: int) -> np.ndarray:
    """Return what a server receives of rows."""
    n, dim = values.shape
    codes = reference.encode_rows(codec.name, values, keys, key)
    return reference.decode(codec.name, dim, codes, 0, n * dim).reshape(n, dim)


def key_of(name: str, clock: int, number: int, worker: int = 0) -> int:
    """Return the key of a push in a job with seed 0."""
    return reference.random_key(table_seed(0, f"codec of {name}"), worker, clock, number)


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("n", [1, 15, 16, 257, 4000])
@pytest.mark.parametrize("model", [ASP(), SSP(1), BSP(reduce="sum")], ids=str)
def test_a_dense_push_arrives_as_its_image(codec: Codec, n: int, model: object) -> None:
    """A block of 4096 values takes several records here, and a record has 960 bytes."""
    rig = Rig(dense(n, consistency=model, compression=codec), n_slots=4)
    handle = rig.worker().table("w")
    expected = np.zeros(n, np.float32)
    for clock in range(3):
        for number in range(2):
            update = normal(n, seed=10 * clock + number)
            handle.push(update)
            expected -= image(codec, update, key_of("w", clock, number))
            update[...] = np.nan  # free at return
        handle._connection.clock()
    assert handle.paths == ["encoded"]
    if isinstance(model, BSP):
        # The server adds the pushes of a clock first.
        assert np.allclose(handle.pull(), expected, rtol=0, atol=1e-5)
    else:
        assert (handle.pull() == expected).all()


@pytest.mark.parametrize("codec", [Bf16(), Fp16(), Int8()], ids=str)
@pytest.mark.parametrize("dim", [16, 33])
@pytest.mark.parametrize("model", [ASP(), BSP()], ids=str)
def test_rows_arrive_as_the_images_of_their_sums(codec: Codec, dim: int, model: object) -> None:
    rig = Rig(rows(dim, consistency=model, compression=codec), n_slots=4)
    handle = rig.worker().table("e")
    keys = np.array([7, -3, 7, 1 << 60, 0, -3, 7, *range(100, 140)], np.int64)
    update = normal(len(keys), dim)
    handle.push(keys, update)
    handle._connection.clock()
    sums = {}
    for key, row in zip(keys.tolist(), update, strict=True):
        sums[key] = sums[key] + row if key in sums else row
    distinct = np.array(list(sums), np.int64)
    arrived = row_images(codec, distinct, np.stack(list(sums.values())), key_of("e", 0, 0))
    assert (handle.pull(distinct) == -arrived).all()


def test_every_push_draws_numbers_of_its_own() -> None:
    """Two equal pushes in one clock, and the same push in the next clock, are rounded differently."""
    rig = Rig(dense(500, compression=Int8()))
    handle, update, found = rig.worker().table("w"), normal(500), []
    for _ in range(2):
        for _ in range(2):
            before = handle.pull()
            handle.push(update)
            found.append((before - handle.pull()).tobytes())
        handle._connection.clock()
    assert len(set(found)) == 4


def test_a_record_that_must_wait_is_applied_in_its_turn() -> None:
    """Under BSP the push of worker 1 stays at the head of its ring until worker 0 has ended its clock."""
    table = dense(300, consistency=BSP(reduce="sum"), compression=Int8())
    rig = Rig(table, n_workers=2, n_slots=8)
    codec, updates = native_codec(table), [normal(300, seed=w) for w in range(2)]
    for w in (1, 0):
        writer = rig.writers[w]
        done = 0
        while done < 300:
            done = writer.push_encoded(0, 0, codec, updates[w], 0, 300, 5 + w, done)
        for _ in range(3):
            rig.drain()
        assert writer.tick(0)
        rig.drain()
    total = image(Int8(), updates[0], 5) + image(Int8(), updates[1], 6)
    assert (rig.values() == -total).all()


@pytest.mark.sampled
@pytest.mark.parametrize("load", ["encoded-bsp", "encoded-asp"])
def test_killed_at_many_points_the_bits_are_those_of_an_undisturbed_run(load: str) -> None:
    _, tried, kills = crash(load, "everywhere", 31)
    assert kills > tried


FORGED = {
    "no codec": ({"codec": 0}, "a push with codec 0, its table has codec int8"),
    "another codec": ({"codec": 1}, "a push with codec 1, its table has codec int8"),
    "unknown codec": ({"codec": 15}, "a push with codec 15, its table"),
    "outside its block": ({"codec": 3 | 128 << 4}, "a push that begins outside its block"),
    "far outside": ({"codec": 3 | 4095 << 4}, "a push that begins outside its block"),
    "another skew": ({"codec": 3 | 127 << 4}, "payload has 208 bytes, expected 212"),
    "too few": ({"count": 199}, "payload has 208 bytes, expected 207"),
    "wraps": ({"count": 2**32 - 1}, "payload has 208 bytes, expected"),
    "base": ({"flags": FIRST | LAST | BASE}, "flags that exclude each other"),
    "staged": ({"flags": FIRST | LAST | STAGED}, "flags that exclude each other"),
    "area": ({"flags": FIRST | LAST | AREA | ARRIVED}, "flags that exclude each other"),
    "fits": ({"flags": FIRST | LAST | FITS}, "flags that exclude each other"),
    "closes early": ({"flags": FIRST | CLOSES}, "flags that exclude each other"),
    "end only": ({"flags": LAST}, "out of order"),
    "kind": ({"kind": PUSH_ROWS}, "wrong kind"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_record_is_refused(name: str) -> None:
    """200 values in two blocks of Int8 take two scales and 200 bytes."""
    fields, message = FORGED[name]
    attack = Attack(dense(200, compression=Int8()), n_slots=4)
    payload = bytes(_native.encode(Int8().native(), normal(200), 0, 200, 1))
    attack.forge(0, payload, **{"kind": PUSH_DENSE, "count": 200, "codec": 3, **fields})
    attack.refused(message)


def test_a_codec_in_a_push_to_a_table_without_one_is_refused() -> None:
    attack = Attack(dense(8))
    attack.forge(0, bytes(16), kind=PUSH_DENSE, count=8, codec=1)
    attack.refused("a push with codec 1, its table has codec none")


@pytest.mark.parametrize("table", [0, 1])
def test_a_record_that_changes_while_it_waits_is_not_read_beyond_its_values(table: int) -> None:
    """Only a wrong worker does so. The server has decoded the record at its first look."""
    many = {"consistency": BSP(), "compression": Int8(16)}
    attack = Attack(dense(16, "w", **many), dense(400, "v", **many), n_workers=2, n_slots=4)
    codec = Int8(16).native()
    first = bytes(_native.encode(codec, normal(16), 0, 16, 1))
    attack.forge(0, first, kind=PUSH_DENSE, count=16, codec=3, clock=1)
    assert attack.rig.drain() == 0
    n = (16, 400)[table]
    second = bytes(_native.encode(codec, normal(n, seed=2), 0, n, 1))
    attack.forge(0, second, kind=PUSH_DENSE, count=n, codec=3, clock=0, table=table)
    assert attack.rig.drain() == 1
    for writer in attack.rig.writers[1:]:
        assert writer.tick(0)
    attack.forge(1, kind=TICK)
    attack.rig.drain()
    expected = image(Int8(16), normal((16, 400)[table], seed=2 if table else 0), 1) / 2
    assert (attack.rig.values(table) == -expected).all()


@pytest.mark.parametrize("scale", [np.inf, np.nan, -1.0, 3e38])
def test_any_payload_of_the_right_size_is_decoded_without_harm(scale: float) -> None:
    """A correct worker sends no such scale; values become what the arithmetic gives."""
    attack = Attack(dense(64, compression=Int8()), n_slots=4)
    payload = np.float32(scale).tobytes() + bytes(range(64))
    attack.forge(0, payload, kind=PUSH_DENSE, count=64, codec=3)
    with np.errstate(all="ignore"):
        assert attack.rig.drain() == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: dense(compression="zip"),
            "unknown compression 'zip'; valid are bf16, fp16, int8, topk, randomk, onebit, shared_int8, none",
        ),
        (lambda: dense(compression="int4"), "unknown compression 'int4'.*did you mean 'int8'"),
        (lambda: dense(compression=Int8), "compression = Int8, a class: must be a codec such as"),
        (lambda: dense(compression=8), "compression = 8: must be a codec such as Int8"),
        (lambda: dense(compression={"block": 3}), "must be a codec such as"),
        (
            lambda: dense(compression={"name": "bf16", "block": 3}),
            "'bf16' has no options, not block",
        ),
        (lambda: dense(compression={"name": "int8", "block": 5}), "block = 5: must be from 16 to"),
        (lambda: dense(compression={"name": "int8", "size": 5}), "'int8' has block, not size"),
        (lambda: TopK(0.0), "fraction = 0.0: must be"),
        (lambda: dense(compression={"name": "topk", "k": 5}), "'topk' has fraction, not k"),
        (lambda: rows(8, compression="topk"), "is for dense tables: a worker cannot hold"),
        (lambda: dense(pull_compression="randomk"), "'randomk': must be 'bf16', 'int8', 'topk'"),
        (lambda: dense(compression="topk", consistency="diloco"), "have no residual; use 'bf16'"),
        (lambda: Auto(Int8(), TopK()), "so the job does not choose it by speed"),
        (lambda: Int8(8192), "block = 8192: must be from 16 to 4096"),
        (lambda: rows(8, compression="int8"), "with dim = 8: needs rows of 16 values or more"),
        (lambda: rows(5000, compression="bf16"), "rows may have up to 4096 values"),
        (
            lambda: dense(compression="bf16", consistency=ASP(Compensate(0.5))),
            "with the policy Compensate",
        ),
        (lambda: dense(compression="bf16", check_finite=False), "needs check_finite = true"),
        (
            lambda: dense(compression="bf16", consistency=BSP(), placement="replicated"),
            "with placement = 'replicated'",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]


def test_a_name_a_mapping_and_a_value_are_the_same_codec() -> None:
    for given in ("int8", {"name": "int8"}, {"name": "int8", "block": 128}, Int8()):
        assert dense(compression=given).compression == Int8()
    assert dense(compression="none").compression is None
    assert rows(16, compression="fp16").compression == Fp16()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_refused_before_it_is_encoded(value: float) -> None:
    rig = Rig(dense(40, compression="int8"), rows(16, compression="fp16"))
    worker = rig.worker()
    update = np.zeros(40, np.float32)
    update[17] = value
    with pytest.raises(ValueError, match="at position 17 of 40"):
        worker.table("w").push(update)
    with pytest.raises(ValueError, match="of table 'e' contains"):
        worker.table("e").push([3], np.full((1, 16), value, np.float32))
    assert rig.writers[0].next_sequence == 0


def test_the_bytes_that_workers_count_are_those_that_travel() -> None:
    sizes = {}
    for codec in (None, "bf16", "fp16", "int8"):
        rig = Rig(dense(12800, compression=codec), n_slots=8)
        rig.worker().table("w").push(normal(12800)).wait()
        sizes[codec] = rig.writers[0].counters()["pushed_bytes"]
    assert sizes == {None: 51200, "bf16": 25600, "fp16": 26000, "int8": 13200}
