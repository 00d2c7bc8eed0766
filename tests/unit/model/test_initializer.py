"""Initial values: equal to the NumPy definition in all bits, in any order and any pieces."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpips import _native
from mpips.errors import ConfigError
from mpips.model.initializer import (
    KINDS,
    Initializer,
    reference_range,
    reference_rows,
    table_seed,
)
from mpips.model.table import DenseTable

INT64 = np.iinfo(np.int64)
TEXTS = ("zeros", "constant(0.5)", "uniform(0.01)", "normal(0.05)", "xavier", "xavier_normal(1.5)")

seeds = st.integers(0, 2**64 - 1)
texts = st.sampled_from(TEXTS)


def rows_of(initializer: _native.Initializer, keys: np.ndarray, dim: int) -> np.ndarray:
    out = np.full((keys.size, dim), np.nan, np.float32)
    _native.initialize_rows(initializer, keys, out)
    return out


def range_of(initializer: _native.Initializer, first: int, n: int) -> np.ndarray:
    out = np.full(n, np.nan, np.float32)
    _native.initialize_range(initializer, first, out)
    return out


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    return left.dtype == right.dtype and left.tobytes() == right.tobytes()


@given(
    text=texts,
    seed=seeds,
    keys=st.lists(st.integers(INT64.min, INT64.max), max_size=20),
    dim=st.integers(0, 40),
    fan_in=st.integers(1, 2**32 - 1),
)
def test_rows_are_the_definition(
    text: str, seed: int, keys: list[int], dim: int, fan_in: int
) -> None:
    initializer = Initializer.parse(text).native(seed, fan_in, 7)
    keys_array = np.array(keys, dtype=np.int64)
    expected = reference_rows(initializer, keys_array, dim)
    assert same_bits(rows_of(initializer, keys_array, dim), expected)


@given(text=texts, seed=seeds, first=st.integers(0, 2**64 - 1), n=st.integers(0, 300))
def test_ranges_are_the_definition(text: str, seed: int, first: int, n: int) -> None:
    initializer = Initializer.parse(text).native(seed, 30, 20)
    assert same_bits(range_of(initializer, first, n), reference_range(initializer, first, n))


@pytest.mark.parametrize("text", TEXTS)
def test_large_samples_are_the_definition(text: str) -> None:
    # These are enough values for all branches of the normal quantile except the far tail.
    initializer = Initializer.parse(text).native(11, 30, 20)
    expected = reference_range(initializer, 0, 500_000)
    assert same_bits(range_of(initializer, 0, 500_000), expected)


@given(text=texts, seed=seeds, cuts=st.lists(st.integers(0, 1000), max_size=6))
def test_any_cut_of_a_tensor_gives_the_same_bits(text: str, seed: int, cuts: list[int]) -> None:
    initializer = Initializer.parse(text).native(seed, 30, 20)
    ends = [*sorted(cuts), 1000]
    starts = [0, *ends[:-1]]
    pieces = [
        range_of(initializer, 5 + start, end - start)
        for start, end in zip(starts, ends, strict=True)
    ]
    assert same_bits(np.concatenate(pieces), range_of(initializer, 5, 1000))


@pytest.mark.parametrize("text", TEXTS)
def test_rows_do_not_depend_on_who_asks_first(text: str) -> None:
    initializer = Initializer.parse(text).native(3, 30, 20)
    keys = np.random.default_rng(0).integers(INT64.min, INT64.max, 200)
    together = rows_of(initializer, keys, 24)
    order = np.random.default_rng(1).permutation(200)
    assert same_bits(rows_of(initializer, keys[order], 24), together[order])
    # A narrower table has the same first columns.
    assert same_bits(rows_of(initializer, keys, 10), together[:, :10].copy())


def test_every_place_and_seed_has_a_value_of_its_own() -> None:
    unit = Initializer.parse("normal(1)")
    keys = np.arange(-5000, 5000, dtype=np.int64)
    rows = [rows_of(unit.native(seed, 1, 1), keys, 8) for seed in (0, 1, 2**63)]
    dense = range_of(unit.native(0, 1, 1), 0, 80_000)
    samples = np.stack([*(sample.ravel() for sample in rows), dense])
    assert abs(np.corrcoef(samples) - np.eye(4)).max() < 0.02
    assert abs(np.corrcoef(rows[0].T) - np.eye(8)).max() < 0.06
    # Compare neighbouring keys column by column, without the last and without the first.
    assert abs(np.corrcoef(rows[0][1:, 0], rows[0][:-1, 0])[0, 1]) < 0.06
    assert np.unique(rows[0]).size > 79_900


N_SAMPLES = 400_000


@pytest.mark.parametrize(
    ("text", "deviation", "limit"),
    [
        ("uniform(0.01)", 0.01 / math.sqrt(3), 0.01),
        ("normal(0.05)", 0.05, 0.05 * 8.3),
        ("xavier", math.sqrt(2 / 400), math.sqrt(6 / 400)),
        ("xavier_uniform(2)", 2 * math.sqrt(2 / 400), 2 * math.sqrt(6 / 400)),
        ("xavier_normal", math.sqrt(2 / 400), math.sqrt(2 / 400) * 8.3),
    ],
)
@pytest.mark.parametrize("dense", [True, False])
def test_moments(text: str, deviation: float, limit: float, dense: bool) -> None:
    initializer = Initializer.parse(text).native(42, 300, 100)
    keys = np.arange(N_SAMPLES // 16, dtype=np.int64)
    sample = (
        range_of(initializer, 0, N_SAMPLES) if dense else rows_of(initializer, keys, 16).ravel()
    ).astype(np.float64)
    # Allow five standard errors each; the fourth moment distinguishes uniform from normal.
    assert abs(sample.mean()) < 5 * deviation / math.sqrt(N_SAMPLES)
    assert sample.std() == pytest.approx(deviation, rel=5 / math.sqrt(2 * N_SAMPLES))
    kurtosis = 3.0 if "normal" in text else 1.8
    assert (sample**4).mean() / deviation**4 == pytest.approx(kurtosis, rel=0.03)
    assert abs(sample).max() <= np.float32(limit)


def test_uniform_is_half_open() -> None:
    sample = range_of(Initializer.parse("uniform(1)").native(5, 1, 1), 0, 4_000_000)
    assert -1.0 <= sample.min() < -0.999999
    assert 0.999999 < sample.max() < 1.0


def index_with_bits(bits: int) -> int:
    """Return the index in the dense tensor of seed 0 whose element is made from `bits`."""

    def unmixed(word: int) -> int:
        for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
            word ^= (word >> shift) ^ (word >> 2 * shift)
            word = word * pow(factor, -1, 2**64) % 2**64
        return word

    def mixed(word: int) -> int:
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
        return word ^ word >> 31

    stream, step = mixed(0x6D706970732D6465), 0x9E3779B97F4A7C15
    return ((unmixed(bits) - stream) * pow(step, -1, 2**64) - 1) % 2**64


@pytest.mark.parametrize("exponent", range(13, 64))
@pytest.mark.parametrize("upper", [False, True])
def test_normal_values_are_the_normal_quantiles(exponent: int, upper: bool) -> None:
    # From the farthest tail, p = 2^-51, to the centre, p = 1/2.
    bits = 2**64 - 1 - 2**exponent if upper else 2**exponent
    p = ((bits >> 12) + 0.5) / 2**52
    initializer = Initializer.parse("normal(1)").native(0, 0, 0)
    (value,) = range_of(initializer, index_with_bits(bits), 1)
    assert value == pytest.approx(NormalDist().inv_cdf(p), rel=1e-6, abs=1e-15)
    expected = reference_range(initializer, index_with_bits(bits), 1)
    assert same_bits(np.array([value]), expected)


def test_zeros_and_constants() -> None:
    assert (range_of(Initializer.parse("zeros").native(1, 0, 0), 3, 50) == 0).all()
    assert (range_of(Initializer.parse("constant(-0.25)").native(1, 0, 0), 3, 50) == -0.25).all()


@pytest.mark.parametrize(
    ("text", "kind", "scale"),
    [
        ("zeros", "zeros", 0.0),
        ("constant(0.5)", "constant", 0.5),
        (" uniform( 1e-2 ) ", "uniform", 0.01),
        ("normal(.05)", "normal", 0.05),
        ("xavier", "xavier_uniform", 1.0),
        ("xavier(1.5)", "xavier_uniform", 1.5),
        ("xavier_uniform", "xavier_uniform", 1.0),
        ("xavier_normal", "xavier_normal", 1.0),
    ],
)
def test_texts_are_understood(text: str, kind: str, scale: float) -> None:
    initializer = Initializer.parse(text)
    assert initializer == Initializer(kind, scale)
    assert Initializer.from_config(initializer.to_config()) == initializer
    assert Initializer.from_config({"kind": kind, "scale": scale}) == initializer


@pytest.mark.parametrize(
    "text",
    [
        "",
        "uniforms(1)",
        "uniform",
        "uniform()",
        "uniform(x)",
        "zeros(1)",
        "normal(1",
        "normal(1,2)",
    ],
)
def test_other_texts_are_refused_with_the_accepted_forms(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Initializer.parse(text)
    assert repr(text) in str(caught.value)
    assert all(kind in str(caught.value) for kind in KINDS)


@pytest.mark.parametrize(
    "config",
    [{}, {"kind": "uniform"}, {"kind": "uniform", "scale": "1"}, {"kind": "zeros", "std": 1}],
)
def test_wrong_tables_are_refused(config: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="initializer"):
        Initializer.from_config(config)


@pytest.mark.parametrize("text", ["uniform(-1)", "normal(nan)", "constant(inf)", "constant(1e39)"])
def test_impossible_scales_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="scale"):
        Initializer.parse(text)


def test_impossible_numbers_are_refused() -> None:
    xavier = Initializer.parse("xavier")
    for seed, fan_in in ((-1, 1), (2**64, 1), (0, -1), (0, 2**32), (0, 0)):
        with pytest.raises(ConfigError):
            xavier.native(seed, fan_in, 0)
    with pytest.raises(ValueError, match="must be one of zeros, constant"):
        _native.Initializer("ones", 1.0, 0, 1, 1)
    with pytest.raises(ValueError, match="needs a positive fan"):
        _native.Initializer("xavier_normal", 1.0, 0, 0, 0)


def test_tables_get_seeds_of_their_own() -> None:
    made = {table_seed(seed, name) for seed in range(50) for name in ("w1", "w2", "1", "11")}
    assert len(made) == 200
    assert table_seed(1, "w1") == table_seed(1, "w1") == 15016607653568508845


@pytest.mark.parametrize(
    ("shape", "fans"),
    [
        ((), (1, 1)),
        ((7,), (7, 7)),
        ((3, 5), (3, 5)),
        ((4, 3, 5), (12, 20)),  # a window of 4, 3 channels to 5
        ((3, 3, 64, 128), (576, 1152)),
    ],
)
def test_fans_of_a_convolution_count_its_window_on_both_sides(
    shape: tuple[int, ...], fans: tuple[int, int]
) -> None:
    assert DenseTable("w", shape).fans == fans
