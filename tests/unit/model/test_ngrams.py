"""Keys of n-grams: the definition word by word, places before the beginning, and values that are refused."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from mpips.errors import ConfigError
from mpips.model.ngrams import START, NgramHash

MASK = 2**64 - 1
STEP = 0x9E3779B97F4A7C15


def mixed(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def defined(hashes: NgramHash, tokens: list[int], i: int) -> int:
    """Return the key of the last place of a sequence under the i-th hash, by the definition in the module."""
    order, head = hashes.orders[i // hashes.heads], i % hashes.heads
    padded = [hashes.padding] * order + tokens
    word = mixed((mixed((hashes.seed + STEP) & MASK) ^ (order * 2**32 + head)) + STEP & MASK)
    for token in padded[-order:]:
        word = mixed((word ^ (token & MASK)) + STEP & MASK)
    return i * hashes.rows + (word >> 1) % hashes.rows


@pytest.mark.parametrize("rows", [1, 1000, 2**40, 2**61 - 1])
@pytest.mark.parametrize("pad_id", [None, 0, -7])
def test_keys_are_those_of_the_definition(rows, pad_id):
    hashes = NgramHash((1, 2, 3), 1 + (rows < 2**60), rows, seed=2**64 - 3, pad_id=pad_id)
    tokens = [5, -1, 2**40, -(2**63), 2**63 - 1, 5]
    keys = hashes.keys(np.array([tokens]))
    assert keys.shape == (1, 6, hashes.n_hashes)
    for t in range(6):
        wanted = [defined(hashes, tokens[: t + 1], i) for i in range(hashes.n_hashes)]
        assert keys[0, t].tolist() == wanted


def test_keys_never_change():
    # Rows of checkpoints have these keys.
    keys = NgramHash((2, 3), 2, 1000, seed=1).keys(np.array([[3, 1, 4]]))
    wanted = [[[732, 1575, 2704, 3936], [469, 1817, 2934, 3222], [443, 1613, 2574, 3776]]]
    assert keys.tolist() == wanted


def test_hashes_have_rows_of_their_own_and_depend_on_the_order_of_tokens():
    hashes, random = NgramHash((2, 3), 2, 2**40), np.random.default_rng(1)
    tokens = random.integers(0, 50, (4, 500))
    keys = hashes.keys(tokens)
    for i in range(4):
        assert (keys[..., i] // hashes.rows == i).all()
    pairs = {tuple(pair) for row in tokens for pair in pairwise(row)}
    at = {
        tuple(pair): key
        for row, own in zip(tokens, keys[..., 0], strict=True)
        for *pair, key in zip(row[:-1], row[1:], own[1:], strict=True)
    }
    assert len(set(at.values())) == len(pairs)  # so (a, b) and (b, a) have different rows
    # Heads and seeds differ in their collisions.
    small = [NgramHash((2,), 2, 8, seed).keys(tokens) % 8 for seed in (0, 1)]
    for one, other in ((small[0][..., 0], small[0][..., 1]), (small[0][..., 0], small[1][..., 0])):
        assert abs((one == other).mean() - 1 / 8) < 0.05


def test_no_n_gram_has_tokens_of_two_sequences():
    hashes = NgramHash((2, 3), 1, 2**40)
    tokens = np.arange(12).reshape(3, 4)
    whole = hashes.keys(tokens)
    for i in range(3):
        assert np.array_equal(whole[i], hashes.keys(tokens[i : i + 1])[0])
        assert np.array_equal(whole[i], hashes.keys(tokens[i]))


def test_padding_before_a_sequence_changes_no_key():
    hashes = NgramHash((2, 4), 1, 2**40, pad_id=0)
    tokens, padded = np.array([[7, 8, 9]]), np.array([[0, 0, 7, 8, 9]])
    present = hashes.present(padded, None)
    assert present.tolist() == [[False, False, True, True, True]]
    assert np.array_equal(hashes.keys(padded, present)[:, 2:], hashes.keys(tokens))
    # A mask leaves out whatever is there.
    masked = NgramHash((2, 4), 1, 2**40)
    flags = np.array([[False, False, True, True, True]])
    junk = np.array([[START, 5, 7, 8, 9]])
    assert np.array_equal(
        masked.keys(junk, masked.present(junk, flags))[:, 2:], masked.keys(tokens)
    )
    assert masked.present(junk, None) is None
    assert hashes.present(tokens, np.ones((1, 3), bool)) is None


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (1, 1), (3,), (2, 2, 3)])
def test_any_shape_has_keys(shape):
    hashes = NgramHash((2, 8), 3, 10)
    keys = hashes.keys(np.ones(shape, np.int64))
    assert keys.shape == (*shape, 6)
    assert ((keys >= 0) & (keys < 60)).all()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"orders": ()}, r"orders = \(\): must be ascending whole numbers from 1 to 64"),
        ({"orders": (3, 2)}, r"orders = \(3, 2\)"),
        ({"orders": (2, 2)}, r"orders = \(2, 2\)"),
        ({"orders": 2}, "orders = 2"),
        ({"orders": (65,)}, r"orders = \(65,\)"),
        ({"heads": 0}, "heads = 0: must be a whole number, 1 or more"),
        ({"rows": 1.5}, "rows = 1.5"),
        ({"rows": 2**62}, f"rows = {2**62} with 2 hashes .* at most {(2**63 - 1) // 2}"),
        ({"seed": -1}, "seed = -1: must be a whole number from 0"),
        ({"pad_id": 2**63}, "pad_id = 9223372036854775808: must be an int64 number or None"),
        ({"pad_id": "x"}, "pad_id = 'x'"),
    ],
)
def test_other_values_are_refused(values, sentence):
    with pytest.raises(ConfigError, match=sentence):
        NgramHash(**{"orders": (2, 3), "heads": 1, "rows": 100, **values})
