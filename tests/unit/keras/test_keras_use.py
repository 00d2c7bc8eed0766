"""What `mpips.keras` refuses, each in one sentence."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from keras_rig import data, keras, make_model
from script_rig import script_job

import mpips.keras
from mpips.errors import CapabilityError, ConfigError
from mpips.keras.backend import check_backend

optimizers = keras.optimizers


class Mine(optimizers.SGD):
    """An optimizer with an update of its own."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.assign_sub(variable, gradient)


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (lambda: optimizers.RMSprop(), r"optimizer RMSprop: servers cannot apply it; use one of"),
        (lambda: optimizers.Lion(), r"optimizer Lion: servers cannot apply it"),
        (lambda: Mine(), r"optimizer Mine: its own update cannot run on servers"),
        (lambda: optimizers.Adam(amsgrad=True), r"Adam: amsgrad = True: must be False"),
        (lambda: optimizers.SGD(use_ema=True), r"SGD: use_ema = True: must be False"),
        (lambda: optimizers.SGD(gradient_accumulation_steps=2), r"gradient_accumulation_steps = 2"),
        (lambda: optimizers.SGD(loss_scale_factor=8.0), r"loss_scale_factor = 8.0: must be None"),
        (lambda: optimizers.Adagrad(weight_decay=0.1), r"Adagrad: weight_decay = 0.1: must be"),
        (lambda: optimizers.SGD(0.1, momentum=0.9, weight_decay=0.1), r"SGD: weight_decay = 0.1"),
        (
            lambda: optimizers.LossScaleOptimizer(optimizers.SGD()),
            r"optimizer LossScaleOptimizer: servers cannot",
        ),
    ],
)
def test_optimizers_without_a_rule(optimizer: Any, words: str) -> None:
    with script_job(), pytest.raises(ConfigError, match=words):
        mpips.keras.prepare(make_model(optimizer()))


def test_a_rate_that_no_rule_accepts() -> None:
    def script() -> None:
        with script_job():
            x, y = data()
            model = mpips.keras.prepare(make_model(optimizers.SGD(-0.1)))
            model.fit(x, y, verbose=0)

    with pytest.raises(ConfigError, match=r"SGD: .*lr = -0.1.*: must be from 0"):
        script()


def refused(words: str, use: Any) -> None:
    def script() -> None:
        with script_job():
            use(*data())

    with pytest.raises(ConfigError, match=words):
        script()


def test_what_is_no_model_or_is_prepared_twice_or_too_late() -> None:
    def twice(x: Any, y: Any) -> None:
        mpips.keras.prepare(mpips.keras.prepare(make_model("sgd")))

    def late(x: Any, y: Any) -> None:
        mpips.keras.prepare(make_model("sgd")).fit(x, y, verbose=0)
        mpips.keras.prepare(make_model("sgd"))

    refused("model is int: must be a keras.Model", lambda x, y: mpips.keras.prepare(3))
    refused("prepared already", twice)
    refused("prepare comes too late", late)
    with pytest.raises(ConfigError, match=r"mpips\.keras\.prepare.*mpips\.init"):
        mpips.keras.prepare(make_model("sgd"))


def test_a_compile_that_comes_too_late_or_compiles_the_step() -> None:
    def late(x: Any, y: Any) -> None:
        model = mpips.keras.prepare(make_model("sgd"))
        model.fit(x, y, verbose=0)
        model.compile("sgd", "mse")

    refused("compile comes too late", late)
    refused(
        "jit_compile = True: must be False",
        lambda x, y: mpips.keras.prepare(make_model("sgd", jit_compile=True)),
    )


def test_a_loss_that_is_a_sum_over_the_batch() -> None:
    def use(x: Any, y: Any) -> None:
        model = make_model("sgd")
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True, reduction="sum"))
        mpips.keras.prepare(model)

    refused("reduction = 'sum' has no mean over the workers", use)


def test_an_optimizer_that_has_made_steps() -> None:
    def stepped(x: Any, y: Any) -> None:
        model = make_model("sgd")
        model.fit(x, y, verbose=0)
        mpips.keras.prepare(model)

    refused("has made steps before prepare", stepped)


def test_variables_that_servers_cannot_hold() -> None:
    def constrained(x: Any, y: Any) -> None:
        layer = keras.layers.Dense(3, kernel_constraint="non_neg")
        mpips.keras.prepare(make_model("sgd", layer)).fit(x, y, verbose=0)

    def double(x: Any, y: Any) -> None:
        layer = keras.layers.Dense(3, dtype="float64")
        mpips.keras.prepare(make_model("sgd", layer)).fit(x, y, verbose=0)

    def unbuilt(x: Any, y: Any) -> None:
        keras.backend.clear_session()
        model = keras.Sequential([keras.layers.Dense(2)])
        mpips.keras.prepare(model).predict(x, verbose=0)

    def thawed(x: Any, y: Any) -> None:
        layer = keras.layers.Dense(3, trainable=False)
        model = mpips.keras.prepare(make_model("sgd", layer))
        model.fit(x, y, verbose=0)
        layer.trainable = True
        model.fit(x, y, verbose=0)

    refused(r"has a constraint \(NonNeg\)", constrained)
    refused("is float64: parameters must be float32", double)
    refused("has no variables yet: build it", unbuilt)
    refused("was made or became trainable after the job had started", thawed)


def test_values_that_are_set_after_the_start() -> None:
    def later(x: Any, y: Any) -> None:
        model = mpips.keras.prepare(make_model("sgd"))
        model.fit(x, y, verbose=0)
        model.set_weights([w * 0 for w in model.get_weights()])
        model.fit(x, y, verbose=0)

    refused("was changed in place after the job had started", later)


@pytest.mark.parametrize("kind", ["keras", "torch", "torch, zeroed first"])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_loop_with_another_optimizer(kind: str, is_compiled: bool) -> None:
    def use(x: Any, y: Any) -> None:
        model = keras.Sequential([keras.Input((x.shape[1],)), keras.layers.Dense(3)])
        if is_compiled:
            model.compile("adam", "sparse_categorical_crossentropy")
        model = mpips.keras.prepare(model)
        if kind == "keras":
            adam = keras.optimizers.Adam(0.01)
        else:
            adam = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(2):
            if kind == "torch, zeroed first":
                adam.zero_grad()
            loss = model(x).square().mean()
            if kind != "torch, zeroed first":
                model.zero_grad()
            loss.backward()
            if kind == "keras":
                weights = model.trainable_weights
                with torch.no_grad():
                    adam.apply([v.value.grad for v in weights], weights)
            else:
                adam.step()

    refused("was changed by another optimizer than its own", use)


def test_gradients_that_are_summed_before_the_first_step() -> None:
    with script_job():
        x, _ = data()
        model = mpips.keras.prepare(make_model(keras.optimizers.SGD(0.25)))
        for _ in range(3):
            model(x).square().mean().backward()
        weights = model.trainable_weights
        with torch.no_grad():
            model.optimizer.apply([v.value.grad for v in weights], weights)
        model(x)
        assert mpips.keras.steps() == 1


def test_training_steps_that_do_not_apply_the_optimizer_once() -> None:
    class Never(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            return {"loss": 0.0}

    class Twice(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            super().train_step(data)
            return super().train_step(data)

    def fit(kind: Any) -> Any:
        def use(x: Any, y: Any) -> None:
            keras.backend.clear_session()
            model = kind([keras.Input((4,)), keras.layers.Dense(2)])
            model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True))
            mpips.keras.prepare(model).fit(x, y, verbose=0)

        return use

    refused(r"did not call apply\(\) of its optimizer", fit(Never))
    refused("applied the optimizer twice", fit(Twice))


def test_a_list_of_callbacks_that_is_made_already() -> None:
    def use(x: Any, y: Any) -> None:
        model = mpips.keras.prepare(make_model("sgd"))
        model.fit(x, y, verbose=0, callbacks=keras.callbacks.CallbackList([]))

    refused("callbacks is a CallbackList", use)


def test_gradients_that_are_not_finite_are_named() -> None:
    def script() -> None:
        with script_job():
            x, y = data()
            mpips.keras.prepare(make_model("sgd")).fit(x * np.nan, y, verbose=0)

    with pytest.raises(ValueError, match=r"'net\.last\.bias' contains nan"):
        script()


@pytest.mark.parametrize(
    ("version", "backend", "words"),
    [
        ("2.15.0", "torch", "keras 2.15.0 is too old"),
        ("3.9.0", "jax", "Keras computes with jax: mpips.keras needs its torch backend"),
    ],
)
def test_another_keras(version: str, backend: str, words: str) -> None:
    fake = SimpleNamespace(__version__=version, backend=SimpleNamespace(backend=lambda: backend))
    with pytest.raises(CapabilityError, match=words):
        check_backend(fake)
    check_backend(sys.modules["keras"])
