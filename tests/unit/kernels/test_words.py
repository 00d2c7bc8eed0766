"""Kernels of word vectors against their definition in NumPy, bit by bit, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from mpips import _native
from mpips.kernels import available_kernels
from mpips.kernels import reference_words as reference

N_WORDS = 12


def sentences(seed: int, n_chunks: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens of chunks with sentence ends in them, and where they start."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(-1, N_WORDS, n).astype(np.int32)
    inner = np.sort(rng.integers(0, n + 1, n_chunks - 1))
    return tokens, np.concatenate([[0], inner, [n]]).astype(np.int64)


def sampled(seed: int = 0, n: int = 60) -> tuple[np.ndarray, ...]:
    """Return sampled words, reach, starts and keys of three chunks."""
    tokens, starts = sentences(seed, 3, n)
    keys = reference.chunk_keys(7, 2, np.arange(3))
    thresholds = np.full(N_WORDS, 3 << 30, np.uint64)
    return (*reference.sample_words(tokens, starts, keys, thresholds, 4), keys)


def rows(seed: int, n: int, dim: int, scale: float) -> np.ndarray:
    """Return rows with zeros from `dim` to the next multiple of 16."""
    values = np.zeros((n, -(-dim // 16) * 16), np.float32)
    values[:, :dim] = np.random.default_rng(seed).normal(0, scale, (n, dim))
    return values


def test_kept_words_are_those_of_the_definition() -> None:
    tokens, starts = sentences(1, 4, 500)
    keys = reference.chunk_keys(3, 0, np.array([0, 5, 6, 2**40]))
    thresholds = np.linspace(0, 2**32, N_WORDS).astype(np.uint64)
    found = _native.sample_words(tokens, starts, keys, thresholds, 5)
    wanted = reference.sample_words(tokens, starts, keys, thresholds, 5)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    words, reach, begins = found
    assert len(begins) == 5
    assert 0 not in words  # probability 0
    assert np.array_equal(words[words == N_WORDS - 1], tokens[tokens == N_WORDS - 1])
    assert set(reach[words >= 0]) == {1, 2, 3, 4, 5}


def test_words_are_numbered_in_order_of_appearance() -> None:
    places = np.full(5, -1, np.int32)
    words = np.array([3, -1, 1, 3, 1], np.int32)
    assert _native.number_words(words, places, 0).tolist() == [3, 1]
    assert _native.number_words(np.array([1, 4], np.int32), places, 2).tolist() == [4]
    assert places.tolist() == [-1, 1, -1, 0, 2]


@pytest.mark.parametrize("kernels", available_kernels())
@pytest.mark.parametrize("skip_gram", [True, False])
@pytest.mark.parametrize(("dim", "negative"), [(1, 5), (16, 0), (21, 3), (100, 6)])
def test_examples_are_trained_as_defined(
    kernels: str, skip_gram: bool, dim: int, negative: int
) -> None:
    words, reach, starts, keys = sampled()
    places = np.random.default_rng(2).permutation(N_WORDS).astype(np.int32)
    pool = np.array([0, 3, 3, 13, 12, 7, 5], np.int32)
    # Large values reach both ends of the tables.
    inputs, outputs = rows(3, N_WORDS, dim, 1.5), rows(4, N_WORDS + 2, dim, 1.5)
    mine, theirs = (inputs.copy(), outputs.copy()), (inputs.copy(), outputs.copy())
    tables = reference.sigmoid_table(), reference.loss_table()
    found = _native.train_words(
        words, reach, starts, keys, places, *mine, pool, *tables, skip_gram, negative, 0.1, kernels
    )

    loss, n = 0.0, 0
    for c, key in enumerate(keys.tolist()):
        chunk = slice(starts[c], starts[c + 1])
        samples = reference.NegativeSamples(key, pool.tolist())
        for context, word in reference.examples(
            words[chunk].tolist(), reach[chunk].tolist(), skip_gram
        ):
            targets = [int(places[word]), *(samples.next() for _ in range(negative))]
            loss += reference.train_example(
                *theirs, places[np.array(context)].tolist(), targets, 0.1
            )
            n += 1
    assert found == (loss, n)
    assert n > 20
    assert np.array_equal(mine[0], theirs[0])
    assert np.array_equal(mine[1], theirs[1])
    assert not mine[0][:, dim:].any()


def test_the_step_is_the_gradient_of_the_loss() -> None:
    # Differences of a loss written in float64, without tables.
    rng = np.random.default_rng(5)
    inputs, outputs = rng.normal(0, 0.5, (2, 16)), rng.normal(0, 0.5, (4, 16))

    def loss(h: np.ndarray, o: np.ndarray) -> float:
        dots = o @ h.mean(axis=0)
        return float(np.log1p(np.exp(-dots[0])) + np.log1p(np.exp(dots[1:])).sum())

    a, b = inputs.astype(np.float32), outputs.astype(np.float32)
    found = reference.train_example(a, b, [0, 1], [0, 1, 2, 3], 1.0)
    assert found == pytest.approx(loss(inputs, outputs), rel=2e-2)
    for i, k in [(0, 0), (3, 9)]:
        more, less = outputs.copy(), outputs.copy()
        more[i, k], less[i, k] = more[i, k] + 1e-5, less[i, k] - 1e-5
        slope = (loss(inputs, more) - loss(inputs, less)) / 2e-5
        assert outputs[i, k] - b[i, k] == pytest.approx(slope, abs=5e-3)
    # The change of the mean is applied to both inputs, as in the program of Mikolov et al.
    more, less = inputs.copy(), inputs.copy()
    more[:, 4], less[:, 4] = more[:, 4] + 1e-5, less[:, 4] - 1e-5
    slope = (loss(more, outputs) - loss(less, outputs)) / 2e-5
    assert inputs[0, 4] - a[0, 4] == pytest.approx(slope, abs=1e-2)
    assert inputs[1, 4] - a[1, 4] == pytest.approx(slope, abs=1e-2)


def test_rate_0_measures_without_a_change() -> None:
    words, reach, starts, keys = sampled()
    inputs, outputs = rows(3, N_WORDS, 20, 1.0), rows(4, N_WORDS, 20, 1.0)
    before = inputs.copy(), outputs.copy()
    places, pool = np.arange(N_WORDS, dtype=np.int32), np.arange(N_WORDS, dtype=np.int32)
    tables = reference.sigmoid_table(), reference.loss_table()
    given = (words, reach, starts, keys, places, inputs, outputs, pool, *tables, True, 5, 0.0, None)
    first = _native.train_words(*given)
    assert _native.train_words(*given) == first
    assert np.array_equal(inputs, before[0])
    assert np.array_equal(outputs, before[1])


def test_a_row_that_is_not_there_is_refused() -> None:
    words, reach, starts, keys = sampled()
    inputs, outputs = rows(3, N_WORDS, 20, 1.0), rows(4, N_WORDS, 20, 1.0)
    tables = reference.sigmoid_table(), reference.loss_table()
    places, pool = np.arange(N_WORDS, dtype=np.int32), np.array([0], np.int32)

    def train(places: np.ndarray, pool: np.ndarray, starts: np.ndarray) -> None:
        _native.train_words(
            words, reach, starts, keys, places, inputs, outputs, pool, *tables, True, 2, 0.1, None
        )

    for bad_places, bad_pool, bad_starts in [
        (places + 1, pool, starts),
        (places - 1, pool, starts),
        (places[:3], pool, starts),
        (places, np.array([N_WORDS], np.int32), starts),
        (places, np.empty(0, np.int32), starts),
        (places, pool, starts[:-1]),
        (places, pool, starts[::-1].copy()),
    ]:
        with pytest.raises(ValueError, match=r"row|below|pool|starts"):
            train(bad_places.astype(np.int32), bad_pool, bad_starts)
