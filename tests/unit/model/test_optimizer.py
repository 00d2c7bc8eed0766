"""Optimizers: closed forms, sparsity, and clear errors."""

from __future__ import annotations

import dataclasses
import math
import sys

import numpy as np
import pytest

from mpips import kernels
from mpips.errors import ConfigError
from mpips.model.optimizer import (
    FTRL,
    OPTIMIZERS,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    DelayedNesterov,
    Momentum,
    Nesterov,
    PythonRule,
    RMSProp,
    from_config,
)


class Trainer:
    """Values that one optimizer updates, on the selected kernels."""

    def __init__(self, optimizer, values):
        self.config = optimizer.native()
        self.values = np.array(values, dtype=np.float32)
        self.state = [
            np.full_like(self.values, self.config.initial_state(k))
            for k in range(self.config.n_state)
        ]
        self.step = 0

    def push(self, gradient, scale=1.0):
        self.step += 1
        gradient = np.broadcast_to(np.float32(gradient), self.values.shape).copy()
        kernels.update(self.config, self.values, self.state, gradient, self.step, scale)
        return self.values


# The value of each state after the first gradient, 0.5, in the order of the names.
FIRST_STATES = {
    SGD: {},
    Momentum: {"momentum": 0.5},
    Nesterov: {"momentum": 0.5},
    DelayedNesterov: {"momentum": 0.5, "buffer": 0.0},
    Adagrad: {"accumulator": 0.25},
    RMSProp: {"mean_square": 0.1 * 0.25},
    Adam: {"m": 0.1 * 0.5, "v": 0.001 * 0.25},
    AdamW: {"m": 0.1 * 0.5, "v": 0.001 * 0.25},
    FTRL: {"z": 0.5, "n": 0.25},
}


@pytest.mark.parametrize("cls", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
def test_states_are_what_their_names_say(cls):
    trainer = Trainer(cls(), [0.0])
    trainer.push(0.5)
    assert cls.state_names == tuple(FIRST_STATES[cls])
    assert [float(s[0]) for s in trainer.state] == pytest.approx([*FIRST_STATES[cls].values()])


def test_sgd_takes_a_step_against_the_gradient():
    assert Trainer(SGD(0.5), [1.0, 2.0]).push([2.0, -4.0]).tolist() == [0.0, 4.0]


def test_scale_comes_before_clip_and_clip_before_decay():
    optimizer = SGD(1.0, clip_value=1.0, weight_decay=0.5)
    # 8 * 0.25 = 2, clipped to 1, and 0.5 * 4 of decay.
    assert Trainer(optimizer, [4.0]).push([8.0], scale=0.25).tolist() == [1.0]


def test_momentum_velocity_is_a_geometric_sum():
    trainer = Trainer(Momentum(1.0, 0.5), [0.0])
    assert [trainer.push(1.0)[0] for _ in range(3)] == [-1.0, -2.5, -4.25]


def test_nesterov_looks_one_velocity_ahead():
    trainer = Trainer(Nesterov(1.0, 0.5), [0.0])
    assert [trainer.push(1.0)[0] for _ in range(2)] == [-1.5, -3.25]


def test_adagrad_rate_falls_as_root_of_the_sum_of_squares():
    trainer = Trainer(Adagrad(1.0, initial_accumulator=9.0), [0.0])
    assert trainer.push(4.0)[0] == np.float32(-4 / 5)
    assert trainer.state[0][0] == 25.0


def test_rmsprop_first_step_is_lr_over_root_of_one_minus_rho():
    values = Trainer(RMSProp(0.1, rho=0.75), [0.0, 0.0]).push([5.0, -0.01])
    np.testing.assert_allclose(values, [-0.2, 0.2], rtol=1e-5)


def test_adam_moves_by_lr_whatever_the_scale_of_a_constant_gradient():
    trainer = Trainer(Adam(0.1), [0.0, 0.0, 0.0])
    for step in range(1, 20):
        values = trainer.push([1e-3, 7.0, -1e5])
        np.testing.assert_allclose(values, [-0.1 * step, -0.1 * step, 0.1 * step], rtol=1e-4)


def test_adamw_decays_geometrically_without_gradient_and_adam_does_not():
    decoupled = Trainer(AdamW(0.1, weight_decay=0.5), [1.0])
    for _ in range(10):
        decoupled.push(0.0)
    np.testing.assert_allclose(decoupled.values, 0.95**10, rtol=1e-5)
    coupled = Trainer(Adam(0.1, weight_decay=0.5), [1.0])
    np.testing.assert_allclose(coupled.push(0.0), 0.9, rtol=1e-5)


CONVERGING = [
    SGD(0.3),
    Momentum(0.1, 0.5),
    Nesterov(0.1, 0.5),
    DelayedNesterov(0.1, 0.5, every=3),
    Adagrad(1.0),
    RMSProp(0.003),
    Adam(0.03),
    AdamW(0.03, weight_decay=0.0),
    FTRL(1.0),
]


def test_every_optimizer_is_in_the_convergence_test():
    assert [type(o) for o in CONVERGING] == list(OPTIMIZERS.values())


@pytest.mark.parametrize("optimizer", CONVERGING, ids=lambda o: o.name)
def test_all_reach_the_minimum_of_a_quadratic(optimizer):
    target = np.array([1.0, -2.0, 0.5], dtype=np.float32)
    curvature = np.array([1.0, 0.5, 2.0], dtype=np.float32)
    trainer = Trainer(optimizer, [0.3, 0.0, -0.1])
    for _ in range(2000):
        trainer.push(curvature * (trainer.values - target))
    np.testing.assert_allclose(trainer.values, target, atol=5e-3)


def test_ftrl_first_step_from_zero_is_the_papers():
    # z = g, n = g^2: w = -(z - sgn(z) l1) / ((beta + |g|) / alpha + l2)
    trainer = Trainer(FTRL(0.5, beta=1.0, l1=0.5, l2=2.0), [0.0, 0.0])
    values = trainer.push([3.0, -3.0])
    np.testing.assert_allclose(values, [-2.5 / 10, 2.5 / 10], rtol=1e-6)
    assert trainer.state[0].tolist() == [3.0, -3.0]
    assert trainer.state[1].tolist() == [9.0, 9.0]


def test_ftrl_without_regularisers_is_adagrad_with_beta_for_eps():
    ftrl, adagrad = Trainer(FTRL(0.1, beta=1.0), [0.2]), Trainer(Adagrad(0.1, eps=1.0), [0.2])
    rng = np.random.default_rng(3)
    for gradient in rng.normal(size=200).astype(np.float32):
        ftrl.push(gradient)
        adagrad.push(gradient)
        np.testing.assert_allclose(ftrl.values, adagrad.values, rtol=1e-3, atol=1e-5)


def test_ftrl_sets_weights_of_weak_features_to_exactly_zero():
    rng = np.random.default_rng(0)
    target = np.where(np.arange(200) < 20, 2.0, 0.0).astype(np.float32)
    trainer = Trainer(FTRL(0.5, l1=8.0), np.zeros(200))
    for _ in range(300):
        noise = rng.normal(scale=0.1, size=200).astype(np.float32)
        trainer.push(trainer.values - target + noise)
    assert (trainer.values[:20] > 1.0).all()
    assert (trainer.values[20:] == 0.0).all()
    dense = Trainer(FTRL(0.5), np.zeros(200))
    assert (dense.push(1e-3) != 0.0).all()


def test_ftrl_weight_of_z_within_l1_is_zero_and_beyond_is_not():
    just_over = np.nextafter(np.float32(1.0), np.float32(2.0))
    values = Trainer(FTRL(0.1, l1=1.0), np.zeros(4)).push([1.0, -1.0, just_over, -just_over])
    assert values[:2].tolist() == [0.0, 0.0]
    assert values[2] < 0 < values[3]


def test_ftrl_goes_on_from_the_initial_weights():
    initial = np.random.default_rng(1).normal(scale=0.01, size=64).astype(np.float32)
    trainer = Trainer(FTRL(0.1, l1=0.01, l2=0.1), initial)
    trainer.push(1e-6)
    np.testing.assert_allclose(trainer.values, initial, atol=2e-6)


def test_ftrl_leaves_weights_without_gradient_exactly_as_they_are():
    initial = np.random.default_rng(1).normal(scale=0.01, size=64).astype(np.float32)
    trainer = Trainer(FTRL(0.1, l1=1.0, l2=0.1), initial)
    gradient = np.zeros(64, dtype=np.float32)
    gradient[::2] = 5.0
    for _ in range(50):
        trainer.push(gradient)
    assert (trainer.values[1::2] == initial[1::2]).all()
    assert (trainer.state[0][1::2] == 0.0).all()
    assert (trainer.values[::2] < initial[::2] - 0.1).all()


@pytest.mark.parametrize("cls", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_config_form_gives_the_same_value_back(cls):
    optimizer = cls(lr=0.25, weight_decay=0.125, clip_value=3)
    config = optimizer.to_config()
    assert config["name"] == cls.name
    assert from_config(config) == optimizer
    assert from_config({"name": cls.name}) == from_config(cls.name) == cls()


def test_integers_become_floats():
    optimizer = from_config({"name": "ftrl", "lr": 1, "l1": np.float32(2.0)})
    assert optimizer == FTRL(1.0, l1=2.0)
    assert [type(v) for v in dataclasses.astuple(optimizer)] == [float] * 6


def test_values_are_frozen_and_hashable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SGD().lr = 1.0
    assert len({Adam(), Adam(), AdamW()}) == 2


NUMBERS = [(c, f.name) for c in OPTIMIZERS.values() for f in dataclasses.fields(c)]


@pytest.mark.parametrize(("cls", "field"), NUMBERS, ids=lambda v: getattr(v, "name", v))
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -0.1, 1e30, "0.1", None, True, [1]])
def test_bad_hyperparameters_are_refused_in_one_sentence(cls, field, bad):
    with pytest.raises(ConfigError) as caught:
        cls(**{field: bad})
    message = str(caught.value)
    assert message.startswith(f"optimizer {cls.name}: {field} = {bad!r}: must be ")
    assert " from " in message or " at least " in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("cls", "field", "bad"),
    [
        (Momentum, "momentum", 1.0),
        (Nesterov, "momentum", 1.5),
        (Adam, "beta1", 1.0),
        (AdamW, "beta2", 1.0),
        (RMSProp, "rho", 1.0),
        (Adam, "eps", 0.0),
        (Adagrad, "eps", 0.0),
        (FTRL, "lr", 0.0),
        (FTRL, "beta", 0.0),
    ],
)
def test_limits_that_would_divide_by_zero_or_never_forget_are_refused(cls, field, bad):
    with pytest.raises(ConfigError, match=f"{field} = {bad!r}"):
        cls(**{field: bad})


def test_accepted_extremes_stay_finite():
    large, small = 1e18, 1e-18
    for ftrl in (FTRL(large, small), FTRL(small, large), FTRL(large, large), FTRL(small, small)):
        assert np.isfinite(Trainer(ftrl, [0.01, -0.01, 0.0]).push([1e-3, 0.0, 1e-3])).all()
    assert np.isfinite(Trainer(AdamW(large, 1 - 2**-53, 1 - 2**-53, 1e-30), [0.0]).push(1.0)).all()


def test_unknown_names_and_keys_tell_the_nearest():
    with pytest.raises(ConfigError, match=r"'adm'; valid are sgd, .*; did you mean 'adam'\?"):
        from_config({"name": "adm"})
    with pytest.raises(ConfigError, match="did you mean 'adagrad'"):
        from_config("AdaGrad")
    with pytest.raises(ConfigError, match=r"'learning'; valid are lr, .*beta1"):
        from_config({"name": "adam", "learning": 0.1})
    with pytest.raises(ConfigError, match="did you mean 'beta1'"):
        from_config({"name": "adam", "beta_1": 0.1})
    for nameless in ({}, {"name": 3}, {"name": ["adam"]}):
        with pytest.raises(ConfigError, match="unknown optimizer"):
            from_config(nameless)


MODULE = """
constant = 3
def halve(values, state, gradient, step):
    values *= 0.5
    state[0][:] += step * gradient
class Rules:
    @staticmethod
    def nothing(values, state, gradient, step):
        pass
def forgetful(values, state, gradient, step):
    return values - gradient
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = "rules_of_a_user"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_python_rule_is_found_by_name_and_works_in_place(module):
    config = {"name": f"{module}:halve", "n_state": 1}
    rule = from_config(config)
    assert rule.to_config() == config
    assert from_config(rule.to_config()) == rule
    values, state = np.ones(4, np.float32), np.zeros((1, 4), np.float32)
    rule(values, state, np.ones(4, np.float32), 3)
    assert values.tolist() == [0.5] * 4
    assert state.tolist() == [[3.0] * 4]
    assert from_config(f"{module}:Rules.nothing").n_state == 0


def test_python_rule_that_returns_new_values_is_an_error(module):
    rule = from_config(f"{module}:forgetful")
    with pytest.raises(TypeError, match=f"{module}:forgetful must change its arrays in place"):
        rule(np.ones(2, np.float32), [], np.ones(2, np.float32), 1)


def test_python_rule_that_cannot_be_found_says_why(module):
    with pytest.raises(ConfigError, match=r"'no_such_module' cannot be imported .*PYTHONPATH"):
        from_config("no_such_module:rule")
    with pytest.raises(ConfigError, match=f"{module}' has no 'quarter'"):
        from_config(f"{module}:quarter")
    with pytest.raises(ConfigError, match="is 3, not a function"):
        from_config(f"{module}:constant")
    with pytest.raises(ConfigError, match="cannot be imported"):
        from_config(":halve")
    with pytest.raises(ConfigError, match=r"'lr'; valid are n_state"):
        from_config({"name": f"{module}:halve", "lr": 0.1})


@pytest.mark.parametrize("n_state", [-1, 1.0, "1", True, None])
def test_python_rule_needs_a_count_of_states(n_state):
    with pytest.raises(ConfigError, match=r"n_state = .*must be a whole number"):
        PythonRule(lambda *_: None, n_state)


def test_python_rule_looks_the_same_in_every_process():
    def rule(values, state, gradient, step):
        pass

    text = repr(PythonRule(rule, 1))
    assert "0x" not in text
    assert f"{__name__}:" in text
    assert PythonRule(rule, name="mine").name == "mine"
    with pytest.raises(ConfigError, match="must be callable"):
        PythonRule(3)
