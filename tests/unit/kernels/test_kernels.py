"""Every kernel on every instruction set of this machine has the bits of its NumPy definition."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpips import kernels
from mpips.kernels import reference
from mpips.model.optimizer import OPTIMIZERS

# Lengths around whole, half and masked vectors of every width.
LENGTHS = [0, 1, 7, 8, 9, 15, 16, 17, 24, 31, 33, 1000]
NAMES = kernels.available_kernels()
RULES = list(OPTIMIZERS)
COMMON = {
    "plain": {},
    "clip": {"clip_value": 0.5},
    "decay": {"weight_decay": 0.1},
    "clip and decay": {"clip_value": 0.25, "weight_decay": 0.03},
}
OWN = {
    "momentum": {"momentum": 0.8},
    "nesterov": {"momentum": 0.8},
    "delayed_nesterov": {"momentum": 0.8, "every": 3},
    "adagrad": {"initial_accumulator": 0.1},
    "rmsprop": {"rho": 0.7},
    "adam": {"beta1": 0.7, "beta2": 0.95},
    "adamw": {"beta1": 0.7, "beta2": 0.95},
    "ftrl": {"l1": 0.3, "l2": 0.2, "beta": 0.5},
}


def config_of(rule, common="plain", **options):
    options = {"lr": 0.05, **OWN.get(rule, {}), **COMMON[common], **options}
    return OPTIMIZERS[rule](**options).native()


def array(n, seed, shift=0):
    """Return floats of many magnitudes, some zero, that start `shift` floats off a 64-byte line."""
    rng = np.random.default_rng(seed)
    memory = np.empty(n + 32, dtype=np.float32)
    start = (-memory.ctypes.data // 4) % 16 + shift
    out = memory[start : start + n]
    out[:] = rng.normal(size=n) * 10.0 ** rng.integers(-6, 3, size=n)
    out[rng.random(n) < 0.2] = 0.0
    return out


def state_of(config, n, shift=0):
    states = [array(n, 0, shift) for _ in range(config.n_state)]
    for k, state in enumerate(states):
        state[:] = config.initial_state(k)
    return states


def assert_same_bits(got, expected):
    """Check equality bit for bit; all NaN count as equal."""
    got, expected = np.asarray(got), np.asarray(expected)
    same = (got.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(got) & np.isnan(expected))
    assert same.all(), f"differ at {np.argwhere(~same)[:5].tolist()}"


def train(config, n, updates, scale, isa, shift=0, cuts=(), rate=1.0):
    """Return values and state after some updates; `isa` None: by the reference."""
    values, state = array(n, 1, shift), state_of(config, n, shift)
    for step in range(1, updates + 1):
        gradient = array(n, 1 + step, shift)
        for low, high in zip((0, *cuts), (*cuts, n), strict=True):
            part = [s[low:high] for s in state]
            args = (values[low:high], part, gradient[low:high], step, scale, rate)
            if isa is None:
                reference.update(config, *args)
            else:
                kernels.update(config, *args, kernels=isa)
    return [values, *state]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("common", COMMON)
@pytest.mark.parametrize(("scale", "rate"), [(1.0, 1.0), (0.125, 1.0), (1 / 3, 1 / 7)])
def test_update_equals_reference(isa, rule, common, scale, rate):
    config = config_of(rule, common)
    for n in LENGTHS:
        expected = train(config, n, 4, scale, None, rate=rate)
        for shift in (0, 1, 7):
            got = train(config, n, 4, scale, isa, shift, rate=rate)
            for a, b in zip(got, expected, strict=True):
                assert_same_bits(a, b)


@pytest.mark.parametrize("rule", RULES)
def test_update_leaves_memory_around_it_alone(isa, rule):
    config = config_of(rule, "clip and decay")
    for n in LENGTHS[:-1]:
        memory = [np.full(n + 40, 7.0, dtype=np.float32) for _ in range(1 + config.n_state)]
        inner = [m[20 : 20 + n] for m in memory]
        kernels.update(config, inner[0], inner[1:], array(n, 3), kernels=isa)
        for m in memory:
            assert (m[:20] == 7.0).all()
            assert (m[20 + n :] == 7.0).all()


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_update_does_not_depend_on_cuts(rule, data):
    n = data.draw(st.integers(1, 200))
    cuts = tuple(sorted(data.draw(st.lists(st.integers(0, n), max_size=4))))
    config = config_of(rule, "clip and decay")
    for isa in NAMES:
        whole = train(config, n, 2, 0.5, isa)
        pieces = train(config, n, 2, 0.5, isa, cuts=cuts)
        for a, b in zip(pieces, whole, strict=True):
            assert_same_bits(a, b)


FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=40), clipped=st.booleans())
def test_update_equals_reference_for_any_floats(rule, rows, clipped):
    config = config_of(rule, "clip and decay" if clipped else "decay")
    values, gradient = np.array(rows, dtype=np.float32).T.copy()
    expected, expected_state = values.copy(), state_of(config, len(values))
    reference.update(config, expected, expected_state, gradient)
    for isa in NAMES:
        got, state = values.copy(), state_of(config, len(values))
        kernels.update(config, got, state, gradient, kernels=isa)
        for a, b in zip([got, *state], [expected, *expected_state], strict=True):
            assert_same_bits(a, b)


@pytest.mark.parametrize("rule", RULES)
def test_nan_gradient_is_not_hidden_by_clipping(isa, rule):
    config = config_of(rule, "clip")
    values, gradient = np.ones(20, dtype=np.float32), np.ones(20, dtype=np.float32)
    gradient[[3, 18]] = np.nan
    kernels.update(config, values, state_of(config, 20), gradient, kernels=isa)
    assert np.flatnonzero(np.isnan(values)).tolist() == [3, 18]


@pytest.mark.parametrize("rule", ["adam", "adamw"])
@pytest.mark.parametrize(("beta1", "beta2"), [(0.9, 0.999), (0.0, 0.0), (0.99, 1 - 1e-9)])
def test_bias_correction_is_right_at_every_step(isa, rule, beta1, beta2):
    config = config_of(rule, beta1=beta1, beta2=beta2)
    # Steps around the ends of the table (final from about 16,000 on; 32768 entries) and far beyond.
    for step in [*range(1, 400), *range(15900, 17000, 7), 32767, 32768, 32769, 10**6, 2**40]:
        got = [array(3, 5), *(np.abs(array(3, k)) for k in (6, 7))]
        expected = [a.copy() for a in got]
        gradient = array(3, 8)
        kernels.update(config, got[0], got[1:], gradient, step, kernels=isa)
        reference.update(config, expected[0], expected[1:], gradient, step)
        for a, b in zip(got, expected, strict=True):
            assert_same_bits(a, b)


def test_steps_change_adam_and_delayed_nesterov_only():
    for rule in RULES:
        config = config_of(rule)
        early, late = (
            [array(5, 1), *(np.abs(array(5, k)) for k in range(config.n_state))] for _ in range(2)
        )
        kernels.update(config, early[0], early[1:], array(5, 9), step=1)  # not due
        kernels.update(config, late[0], late[1:], array(5, 9), step=51)  # due
        assert (early[0].tobytes() != late[0].tobytes()) == config.uses_step, rule
        assert config.uses_step == (rule in ("adam", "adamw", "delayed_nesterov"))


def test_add_and_scale_equal_reference(isa):
    for n in LENGTHS:
        for shift in (0, 3):
            got, expected = array(n, 1, shift), array(n, 1)
            kernels.add(got, array(n, 2, 1), kernels=isa)
            reference.add(expected, array(n, 2))
            assert_same_bits(got, expected)
            kernels.scale(got, 1 / 3, kernels=isa)
            reference.scale(expected, 1 / 3)
            assert_same_bits(got, expected)


def test_compensate_equals_reference_also_in_place(isa):
    for n in LENGTHS:
        gradient, values, base = (array(n, k, k) for k in range(3))
        expected, out = np.empty(n, np.float32), np.empty(n, np.float32)
        reference.compensate(expected, gradient, values, base, 0.04)
        kernels.compensate(out, gradient, values, base, 0.04, kernels=isa)
        assert_same_bits(out, expected)
        kernels.compensate(gradient, gradient, values, base, 0.04, kernels=isa)
        assert_same_bits(gradient, expected)


def test_compensate_is_nothing_without_staleness(isa):
    gradient, values = array(33, 1), array(33, 2)
    out = np.empty(33, np.float32)
    kernels.compensate(out, gradient, values, values.copy(), 0.5, kernels=isa)
    assert (out == gradient).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_all_finite_finds_the_bad_value_at_each_position(isa, bad):
    largest = np.finfo(np.float32).max
    for n in range(70):
        values = np.where(np.arange(n) % 2, largest, -largest).astype(np.float32)
        assert kernels.all_finite(values, kernels=isa)
        for i in range(n):
            values[i], kept = bad, values[i]
            assert not kernels.all_finite(values, kernels=isa), (n, i)
            assert not reference.all_finite(values)
            values[i] = kept


@pytest.mark.parametrize("bad", [np.nan, np.inf, -2.5, np.nextafter(np.float32(2), np.float32(3))])
def test_all_within_finds_what_is_greater_at_each_position(isa, bad):
    for n in range(40):
        values = np.where(np.arange(n) % 2, 2.0, -2.0).astype(np.float32)
        assert kernels.all_within(values, 2.0, kernels=isa)
        for i in range(n):
            values[i], kept = bad, values[i]
            assert not kernels.all_within(values, 2.0, kernels=isa), (n, i)
            assert not reference.all_within(values, 2.0)
            values[i] = kept


def test_all_finite_does_not_look_beyond_the_end(isa):
    for n in range(40):
        values = np.full(n + 20, np.nan, dtype=np.float32)
        values[10 : 10 + n] = 1.0
        assert kernels.all_finite(values[10 : 10 + n], kernels=isa)


@pytest.mark.parametrize("n", [0, 1, 31, 511, 512, 513, 1024, 5000])
def test_centred_sums_are_those_of_the_reference(isa, n):
    values = array(n, n) * 3 + 7
    for centre in (0.0, 7.1, float(np.float32(7.1))):
        found = kernels.centred_sums(values, centre, kernels=isa)
        assert found == reference.centred_sums(values, centre)
        away = (values - np.float32(centre)).astype(np.float64)
        assert found == pytest.approx((away.sum(), (away**2).sum()), rel=1e-5, abs=1e-3)


@pytest.mark.parametrize("past_caches", [False, True])
def test_copy_finite_copies_everything_and_tells_of_each_position(isa, past_caches):
    for n in range(1, 70):
        whole = np.empty(n + 32, np.float32)
        start = (
            -whole.ctypes.data // 4 % 16
        )  # stores that bypass the caches need a multiple of 64 bytes
        copied, expected = whole[start : start + n], np.empty(n, np.float32)
        values = array(n, n)
        assert kernels.copy_finite(copied, values, past_caches, kernels=isa)
        assert_same_bits(copied, values)
        for i, bad in itertools.product(range(n), (np.nan, np.inf, -np.inf)):
            values[i], kept = bad, values[i]
            copied[:] = 0.0
            assert not kernels.copy_finite(copied, values, past_caches, kernels=isa), (n, i)
            assert not reference.copy_finite(expected, values)
            assert_same_bits(copied, expected)
            values[i] = kept


def test_copy_finite_stays_inside_and_refuses_what_it_cannot_store(isa):
    whole = np.full(100, 7.0, np.float32)
    assert kernels.copy_finite(whole[10:43], np.zeros(33, np.float32), kernels=isa)
    assert (whole[:10] == 7.0).all()
    assert (whole[43:] == 7.0).all()
    start = -whole.ctypes.data // 4 % 16 + 1
    with pytest.raises(ValueError, match="64 bytes"):
        kernels.copy_finite(whole[start : start + 8], np.zeros(8, np.float32), True, kernels=isa)
    with pytest.raises(ValueError, match="src"):
        kernels.copy_finite(whole, np.zeros(8, np.float32), kernels=isa)


def test_arrays_are_never_converted():
    config = config_of("momentum")
    values, state, gradient = (np.zeros(8, np.float32) for _ in range(3))
    for wrong in (gradient.astype(np.float64), np.zeros(16, np.float32)[::2], [0.0] * 8):
        with pytest.raises(TypeError):
            kernels.update(config, values, [state], wrong)
        with pytest.raises(TypeError):
            kernels.update(config, wrong, [state], gradient)
        with pytest.raises(TypeError):
            kernels.add(wrong, gradient)


def test_read_only_arrays_are_refused():
    frozen = np.zeros(8, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="writeable"):
        kernels.add(frozen, np.ones(8, np.float32))
    with pytest.raises(ValueError, match="writeable"):
        kernels.update(config_of("sgd"), frozen, [], np.ones(8, np.float32))


def test_wrong_sizes_states_and_steps_are_refused():
    config = config_of("adam")
    a = np.zeros(8, np.float32)
    with pytest.raises(ValueError, match="gradient has 7 values, expected 8"):
        kernels.update(config, a, [a, a], a[:7])
    with pytest.raises(ValueError, match="state1 has 7 values, expected 8"):
        kernels.update(config, a, [a, a[:7]], a)
    with pytest.raises(ValueError, match="adam needs 2 states, not 1"):
        kernels.update(config, a, [a], a)
    with pytest.raises(ValueError, match="steps count from 1"):
        kernels.update(config, a, [a, a], a, step=0)
    with pytest.raises(ValueError, match="src has 7 values"):
        kernels.add(a, a[:7])
    with pytest.raises(ValueError, match="base has 7 values"):
        kernels.compensate(a, a, a, a[:7], 0.1)


def test_config_reads_back_what_it_was_given():
    for name, cls in OPTIMIZERS.items():
        optimizer = cls(**{"lr": 0.03, **OWN.get(name, {}), **COMMON["clip and decay"]})
        config = optimizer.native()
        assert (config.kind, config.n_state) == (name, cls.n_state)
        for field in dataclasses.fields(optimizer):
            assert getattr(config, field.name) == getattr(optimizer, field.name), field.name


def test_initial_state_is_zero_but_for_the_accumulator():
    for rule in RULES:
        config = config_of(rule)
        expected = [np.float32(0.1)] if rule == "adagrad" else [0.0] * config.n_state
        assert [config.initial_state(k) for k in range(config.n_state)] == expected
