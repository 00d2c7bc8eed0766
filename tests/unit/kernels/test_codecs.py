"""Codecs: every instruction set gives the bytes of the NumPy definition, wherever a tensor is cut."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_digests import assert_same_bytes
from numpy.typing import NDArray

from mpips import _native
from mpips.kernels import available_kernels
from mpips.kernels import reference_codecs as reference

Float32 = NDArray[np.float32]
CODECS = [("bf16", 1), ("fp16", 128), ("int8", 128), ("int8", 16), ("int8", 4096)]
KEY = 0x0123456789ABCDEF
FLT_MAX = np.finfo(np.float32).max
TINY = np.float32(1.4e-45)


def tensors() -> dict[str, Float32]:
    """Return tensors of odd lengths with easy and with difficult values."""
    rng = np.random.default_rng(5)
    normal = rng.standard_normal(1000).astype(np.float32)
    wide = (normal[:777] * 10.0 ** rng.integers(-44, 38, 777)).astype(np.float32)
    ties = np.float32(1) + np.arange(512, dtype=np.float32) / 256 / 2
    return {
        "normal": normal,
        "wide": wide,
        "ties": ties,
        "zeros": np.zeros(300, np.float32),
        "negative zeros": np.full(129, -0.0, np.float32),
        "equal": np.full(257, -3.25, np.float32),
        "denormal": (rng.integers(-9, 9, 200) * TINY).astype(np.float32),
        "one large": np.where(np.arange(300) == 140, FLT_MAX, normal[:300]).astype(np.float32),
        "largest": np.where(normal[:130] > 0, FLT_MAX, -FLT_MAX).astype(np.float32),
        "whole": rng.integers(-127, 128, 400).astype(np.float32),
        "one": np.array([0.1], np.float32),
    }


def encoded(kind: str, block: int, tensor: Float32, begin: int, end: int) -> NDArray[np.uint8]:
    return _native.encode(_native.Codec(kind, block), tensor, begin, end, KEY)


def decoded(kind: str, block: int, codes: NDArray[np.uint8], skew: int, count: int) -> Float32:
    out = np.full(count, np.nan, np.float32)
    _native.decode(_native.Codec(kind, block), codes, skew, out)
    return out


@pytest.mark.parametrize("name", tensors())
@pytest.mark.parametrize(("kind", "block"), CODECS)
def test_bytes_and_values_are_those_of_the_definition(kind: str, block: int, name: str) -> None:
    tensor = tensors()[name]
    n = len(tensor)
    cuts = sorted({0, 1, 15, 16, 127, 128, 129, n // 2, n - 1, n} & set(range(n + 1)))
    for begin in cuts:
        for end in (c for c in cuts if c >= begin):
            found = encoded(kind, block, tensor, begin, end)
            expected = reference.encode(kind, block, tensor, begin, end, KEY)
            assert found.tobytes() == expected.tobytes(), (begin, end)
            values = decoded(kind, block, found, begin % block, end - begin)
            wanted = reference.decode(kind, block, expected, begin % block, end - begin)
            assert values.tobytes() == wanted.tobytes(), (begin, end)
            assert np.isfinite(values).all()


@pytest.mark.parametrize("name", tensors())
@pytest.mark.parametrize(("kind", "block"), CODECS)
def test_pulls_round_to_nearest(kind: str, block: int, name: str) -> None:
    tensor = tensors()[name]
    found = _native.encode_nearest(_native.Codec(kind, block), tensor)
    assert found.tobytes() == reference.encode_nearest(kind, block, tensor).tobytes()
    assert len(found) == _native.encoded_bytes(_native.Codec(kind, block), 0, len(tensor))
    values = decoded(kind, block, found, 0, len(tensor))
    assert np.isfinite(values).all()
    if kind == "int8" and name == "normal":
        greatest = np.repeat(
            [np.abs(tensor[i : i + block]).max() for i in range(0, 1000, block)], block
        )[:1000]
        assert (np.abs(values - tensor) <= greatest / 254 * 1.0001).all()


@pytest.mark.parametrize("kernels", available_kernels())
def test_every_instruction_set_gives_the_same_bytes(kernels: str) -> None:
    assert_same_bytes(
        kernels,
        "test_codecs",
        """
for kind, block in t.CODECS:
    for x in t.tensors().values():
        codes = t.encoded(kind, block, x, 0, len(x))
        digest.update(codes.tobytes() + t.decoded(kind, block, codes, 0, len(x)).tobytes())
        digest.update(t._native.encode_nearest(t._native.Codec(kind, block), x).tobytes())
""",
    )


@pytest.mark.parametrize("kind", ["bf16", "fp16", "int8"])
@pytest.mark.parametrize("dim", [1, 7, 16, 100])
def test_rows_are_blocks_with_their_keys_as_numbers(kind: str, dim: int) -> None:
    rng = np.random.default_rng(dim)
    rows = rng.standard_normal((9, dim)).astype(np.float32)
    keys = np.array([0, 5, -1, 1 << 62, -(1 << 63), 3, 17, 2, 1], np.int64)
    codec = _native.Codec(kind, dim)
    found = _native.encode_rows(codec, rows, keys, KEY)
    assert found.tobytes() == reference.encode_rows(kind, rows, keys, KEY).tobytes()
    out = np.empty(9 * dim, np.float32)
    _native.decode(codec, found, 0, out)
    assert np.abs(out - rows.reshape(-1)).max() <= np.abs(rows).max() * {"int8": 1 / 127}.get(
        kind, 2**-8
    )
    # The bytes of a row do not depend on the rows beside it.
    swapped = _native.encode_rows(codec, rows[::-1].copy(), keys[::-1].copy(), KEY)
    back = np.empty(9 * dim, np.float32)
    _native.decode(codec, swapped, 0, back)
    assert back.reshape(9, dim)[::-1].tobytes() == out.tobytes()


@pytest.mark.parametrize(("kind", "block"), CODECS)
def test_values_do_not_depend_on_where_a_tensor_is_cut(kind: str, block: int) -> None:
    tensor = tensors()["normal"]
    whole = decoded(kind, block, encoded(kind, block, tensor, 0, 1000), 0, 1000)
    for cut in (1, 16, 100, 128, 500, 999):
        parts = [
            decoded(kind, block, encoded(kind, block, tensor, a, b), a % block, b - a)
            for a, b in ((0, cut), (cut, 1000))
        ]
        assert np.concatenate(parts).tobytes() == whole.tobytes()


def test_the_error_is_within_the_precision_of_the_codec() -> None:
    tensor = tensors()["normal"]
    greatest = np.array([np.abs(tensor[i : i + 128]).max() for i in range(0, 1000, 128)])
    step = np.repeat(greatest, 128)[:1000]
    for kind, block, bound in (
        ("bf16", 1, np.abs(tensor) * 2.0**-8),
        ("fp16", 128, np.maximum(np.abs(tensor) * 2.0**-11, step * 2.0**-39)),
        ("int8", 128, step / 127 * 1.0001),
    ):
        codes = encoded(kind, block, tensor, 0, 1000)
        error = np.abs(decoded(kind, block, codes, 0, 1000) - tensor)
        assert (error <= bound).all(), kind


def test_whole_numbers_stay_exact() -> None:
    """Int8: if the greatest magnitude of a block is 127, its scale is 1."""
    whole = tensors()["whole"].copy()
    whole[::100] = 127
    for kind, block in (("bf16", 1), ("fp16", 128), ("int8", 4096)):
        codes = encoded(kind, block, whole, 0, len(whole))
        assert (decoded(kind, block, codes, 0, len(whole)) == whole).all()


def test_stochastic_rounding_has_no_bias_and_no_pattern() -> None:
    """Means over keys, over values and over neighbours; the bounds are five standard deviations."""
    fractions = np.linspace(0, 1, 200, dtype=np.float32)
    tensor = np.concatenate([[np.float32(127)], fractions, -fractions])
    codec, n = _native.Codec("int8", 4096), 4000
    out, up = np.empty(len(tensor), np.float32), np.empty((n, 400), np.float32)
    for key in range(n):
        _native.decode(codec, _native.encode(codec, tensor, 0, len(tensor), key), 0, out)
        up[key] = out[1:] - np.floor(tensor[1:])
    assert set(np.unique(up)) <= {0.0, 1.0}
    p = tensor[1:] - np.floor(tensor[1:])
    deviation = np.sqrt(p * (1 - p) / n)
    assert (np.abs(up.mean(axis=0) - p) <= 5 * deviation + 2.0**-16).all()
    # Neighbours, and equal places under neighbouring keys, are independent.
    centred = (up - p) / np.sqrt(np.maximum(p * (1 - p), 1e-9))
    inner = centred[:, (p > 0.05) & (p < 0.95)]
    assert abs((inner[:, 1:] * inner[:, :-1]).mean()) < 5 / np.sqrt(inner[:, 1:].size)
    assert abs((inner[1:] * inner[:-1]).mean()) < 5 / np.sqrt(inner[1:].size)


def test_keys_of_pushes_differ_and_are_those_of_the_definition() -> None:
    seen = set()
    for words in np.ndindex(3, 4, 5, 6):
        key = _native.random_key(*words)
        assert key == reference.random_key(*words)
        seen.add(key)
    assert len(seen) == 3 * 4 * 5 * 6
    assert _native.random_key(2**64 - 1, 2**16, 2**40, 7) == reference.random_key(
        2**64 - 1, 2**16, 2**40, 7
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _native.Codec("zip", 1), "codec = 'zip': must be one of none, bf16, fp16, int8"),
        (lambda: _native.Codec("int8", 0), "block = 0: must be 1 to 4096"),
        (lambda: _native.Codec("int8", 4097), "block = 4097"),
        (lambda: encoded("int8", 16, np.zeros(5, np.float32), 3, 6), "out of range"),
        (lambda: encoded("int8", 16, np.zeros(5, np.float32), 4, 3), "out of range"),
        (lambda: encoded("none", 16, np.zeros(5, np.float32), 0, 5), "of a codec"),
        (lambda: decoded("int8", 16, np.zeros(20, np.uint8), 16, 16), "skew = 16"),
        (lambda: decoded("int8", 16, np.zeros(19, np.uint8), 0, 16), "take 20 bytes, not 19"),
    ],
)
def test_wrong_arguments_are_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
