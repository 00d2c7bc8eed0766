"""`fit` of a prepared model does what Keras does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras_rig import data, keras, make_model, weights
from script_rig import script_job

import mpips
import mpips.keras
from mpips.errors import ConfigError

optimizers = keras.optimizers

RULES: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optimizers.SGD(0.1),
    "decay": lambda: optimizers.SGD(0.1, weight_decay=0.01),
    "momentum": lambda: optimizers.SGD(0.05, momentum=0.9),
    "nesterov": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adagrad": lambda: optimizers.Adagrad(0.1, initial_accumulator_value=0.0),
    # Keras adds epsilon to the root that is not corrected.
    "adam": lambda: optimizers.Adam(0.01, epsilon=1e-14),
    "adam decay": lambda: optimizers.Adam(0.01, weight_decay=0.1, epsilon=1e-14),
    "adamw": lambda: optimizers.AdamW(0.01, beta_1=0.8, beta_2=0.99, epsilon=1e-14),
    "schedule": lambda: optimizers.SGD(optimizers.schedules.ExponentialDecay(0.2, 5, 0.5)),
    "clipped": lambda: optimizers.SGD(0.5, clipnorm=0.05),
    "clipped as one": lambda: optimizers.SGD(0.5, global_clipnorm=0.05),
}


def close(found: Any, wanted: Any, tolerance: float) -> None:
    for got, value in zip(found, wanted, strict=True):
        assert np.abs(got - value).max() <= tolerance * max(np.abs(value).max(), 0.1)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_that_of_keras(name: str) -> None:
    x, y = data()
    named: dict[str, Any] = {"batch_size": 8, "epochs": 4, "shuffle": False, "verbose": 0}
    plain = make_model(RULES[name]())
    wanted = plain.fit(x, y, **named).history
    with script_job():
        model = mpips.keras.prepare(make_model(RULES[name]()))
        history = model.fit(x, y, **named).history
        assert model.optimizer.iterations == plain.optimizer.iterations == 28
        close(weights(model), weights(plain), 1e-5)
        close(model.get_weights(), weights(model), 0.0)
    for key, values in wanted.items():
        np.testing.assert_allclose(history[key], values, rtol=1e-4)


@pytest.mark.parametrize("consistency", ["ssp", "asp"])
def test_other_consistency_models_do_the_same_with_one_worker(consistency: str) -> None:
    x, y = data()
    plain = make_model(optimizers.SGD(0.1))
    wanted = plain.fit(x, y, shuffle=False, verbose=0).history
    with script_job():
        model = mpips.keras.prepare(make_model(optimizers.SGD(0.1)), consistency=consistency)
        history = model.fit(x, y, shuffle=False, verbose=0).history
        close(weights(model), weights(plain), 2e-6)
    np.testing.assert_allclose(history["loss"], wanted["loss"], rtol=1e-5)


def test_local_steps_are_refused() -> None:
    with (
        script_job(),
        pytest.raises(ConfigError, match="must be 'bsp', 'ssp', 'asp' or 'auto' with Keras"),
    ):
        mpips.keras.prepare(make_model(optimizers.SGD(0.1)), consistency=mpips.DiLoCo(4))


def test_moving_averages_frozen_layers_and_unused_variables() -> None:
    def layers() -> Any:
        keras.utils.set_random_seed(8)
        frozen = keras.layers.Dense(6, name="frozen", trainable=False)
        norm = keras.layers.BatchNormalization(name="norm")
        still = keras.layers.BatchNormalization(name="still", trainable=False)
        return frozen, norm, still

    x, y = data()
    plain = make_model(optimizers.SGD(0.1), *layers())
    before = weights(plain)
    plain.fit(x, y, batch_size=10, epochs=2, shuffle=False, verbose=0)
    with script_job() as script:
        model = mpips.keras.prepare(make_model(optimizers.SGD(0.1), *layers()))
        model.fit(x, y, batch_size=10, epochs=2, shuffle=False, verbose=0)
        close(weights(model), weights(plain), 1e-5)
        names = [v.path for v in model.weights]
        for name, got, value in zip(names, weights(model), before, strict=True):
            frozen = name.startswith(("net/frozen", "net/still")) or "frozen/" in name
            assert np.array_equal(got, value) == ("still" in name or frozen), name
        assert script.worker is not None
        averages = script.worker.table("net.norm.moving_mean").pull()
        np.testing.assert_array_equal(averages, weights(model)[names.index("net/norm/moving_mean")])


class Two(keras.Model):
    """A model with its own call and training step, and a layer without a part in the loss."""

    def __init__(self) -> None:
        super().__init__(name="two")
        self.used = keras.layers.Dense(2, name="used")
        self.unused = keras.layers.Dense(3, name="unused")

    def call(self, x: Any, training: bool = False) -> Any:
        self.unused(x)
        return self.used(x)

    def train_step(self, data: Any) -> Any:
        x, y = data
        self.zero_grad()
        loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        loss.backward()
        variables = self.trainable_variables
        self.optimizer.apply([v.value.grad for v in variables], variables)
        return {"mine": loss.detach()}


def test_a_model_that_is_not_built_with_a_training_step_of_its_own() -> None:
    x, y = data()

    def fitted(prepare: Callable[[Any], Any]) -> Any:
        keras.backend.clear_session()
        keras.utils.set_random_seed(2)
        model = prepare(Two())
        model.compile(optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(True))
        return model, model.fit(x, y, batch_size=10, shuffle=False, verbose=0).history

    with pytest.warns(UserWarning, match="Gradients do not exist"):
        plain, wanted = fitted(lambda model: model)
    with script_job():
        model, history = fitted(mpips.keras.prepare)
        close(weights(model), weights(plain), 2e-6)
    np.testing.assert_allclose(history["mine"], wanted["mine"], rtol=1e-5)


def test_batches_by_hand_and_values_at_any_time() -> None:
    x, y = data()
    plain = make_model(optimizers.SGD(0.1))
    with script_job():
        model = mpips.keras.prepare(make_model(optimizers.SGD(0.1)))
        np.testing.assert_allclose(
            model.evaluate(x, y, verbose=0), plain.evaluate(x, y, verbose=0), rtol=1e-5
        )
        for step in range(5):
            assert mpips.keras.steps() == step
            found = model.train_on_batch(x, y)
            np.testing.assert_allclose(found, plain.train_on_batch(x, y), rtol=1e-4)
            close(model.get_weights(), weights(plain), 2e-6)
            close([model(x).detach().numpy()], [plain(x).detach().numpy()], 1e-5)
        close([model.predict(x, verbose=0)], [plain.predict(x, verbose=0)], 1e-5)
        np.testing.assert_allclose(model.test_on_batch(x, y), plain.test_on_batch(x, y), rtol=1e-4)


def test_a_loop_with_the_gradients_of_the_script() -> None:
    x, y = data()

    def trained(model: Any) -> list[Any]:
        for _ in range(3):
            model.zero_grad()
            model.loss(y, model(x, training=True)).backward()
            variables = model.trainable_variables
            model.optimizer.apply([v.value.grad for v in variables], variables)
        return weights(model)

    wanted = trained(make_model(optimizers.SGD(0.1)))
    with script_job():
        model = mpips.keras.prepare(make_model(optimizers.SGD(0.1)))
        assert mpips.keras.steps() == 0
        trained(model)
        close(model.get_weights(), wanted, 2e-6)


def test_rates_that_callbacks_set_count_from_the_next_step() -> None:
    def rates() -> list[Any]:
        half = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
        less = keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=0, min_delta=9.0)
        return [half, less]

    x, y = data()
    named: dict[str, Any] = {"epochs": 4, "validation_split": 0.2, "shuffle": False, "verbose": 0}
    plain = make_model(optimizers.SGD(0.4))
    wanted = plain.fit(x, y, callbacks=rates(), **named).history
    with script_job():
        model = mpips.keras.prepare(make_model(optimizers.SGD(0.4)))
        history = model.fit(x, y, callbacks=rates(), **named).history
        close(weights(model), weights(plain), 2e-6)
    assert history["learning_rate"] == wanted["learning_rate"]
    np.testing.assert_allclose(history["val_loss"], wanted["val_loss"], rtol=1e-5)


def test_the_best_values_of_early_stopping_are_those_of_the_model() -> None:
    x, y = data()
    named: dict[str, Any] = {"epochs": 9, "shuffle": False, "verbose": 0}

    def fitted(model: Any) -> list[Any]:
        early = keras.callbacks.EarlyStopping(
            monitor="loss", mode="max", patience=2, restore_best_weights=True
        )
        model.fit(x, y, callbacks=[early], **named)
        assert early.stopped_epoch == 2
        return model.get_weights()

    wanted = fitted(make_model(optimizers.SGD(0.1)))
    with script_job():
        model = mpips.keras.prepare(make_model(optimizers.SGD(0.1)))
        close(fitted(model), wanted, 2e-6)
        close([model(x).detach().numpy()], [model.predict(x, verbose=0)], 1e-6)


def test_a_file_of_a_prepared_model_is_one_of_keras(tmp_path: Path) -> None:
    x, y = data()
    with script_job():
        model = mpips.keras.prepare(make_model(optimizers.SGD(0.1)))
        kinds = type(model), type(model.optimizer)
        model.fit(x, y, verbose=0)
        model.train_on_batch(x, y)
        model.save(tmp_path / "model.keras")
        model.save_weights(tmp_path / "values.weights.h5")
        assert (type(model), type(model.optimizer)) == kinds
        found = keras.models.load_model(tmp_path / "model.keras")
        assert type(found) is keras.Sequential
        assert type(found.optimizer).__mro__[0].__name__ == "SGD"
        close(weights(found), weights(model), 0.0)
        found.fit(x, y, verbose=0)
    other = make_model(optimizers.SGD(0.1))
    other.load_weights(tmp_path / "values.weights.h5")
    close(weights(other), model.get_weights(), 0.0)


def test_values_that_are_loaded_before_the_first_fit_are_the_initial_ones(tmp_path: Path) -> None:
    x, y = data()
    other = make_model(optimizers.SGD(0.1))
    other.fit(x, y, verbose=0)
    other.save_weights(tmp_path / "values.weights.h5")
    with script_job():
        model = mpips.keras.prepare(make_model(optimizers.SGD(0.1)))
        model.load_weights(tmp_path / "values.weights.h5")
        close([model.predict(x, verbose=0)], [other.predict(x, verbose=0)], 1e-6)


def test_a_model_with_codecs_trains_like_one_without() -> None:
    x, y = data()
    options: dict[str, Any] = {"epochs": 6, "shuffle": False, "verbose": 0}
    found = {}
    for codec in (None, "bf16", "int8"):
        with script_job() as script:
            model = mpips.keras.prepare(
                make_model(optimizers.Adam(0.01)), compression=codec, pull_compression=codec
            )
            found[codec] = model.fit(x, y, **options).history["loss"]
            assert script.worker is not None
            name = model.trainable_variables[0].path.replace("/", ".")
            assert script.worker.table(name).paths == ["shared" if codec is None else "encoded"]
    for codec in ("bf16", "int8"):
        assert found[codec] != found[None]
        np.testing.assert_allclose(found[codec], found[None], rtol=0.05)


def test_a_replicated_model_has_the_bits_of_one_on_servers() -> None:
    x, y = data()
    found = {}
    for placement in ("servers", "replicated", mpips.Replicated(check_every=2)):
        with script_job() as script:
            norm = keras.layers.BatchNormalization(name="norm")
            model = make_model(optimizers.Adam(0.01), norm)
            mpips.keras.prepare(model, placement=placement)
            model.fit(x, y, epochs=2, shuffle=False, verbose=0)
            found[str(placement)] = b"".join(value.tobytes() for value in weights(model))
            assert script.worker is not None
            for v in model.weights:
                paths = script.worker.table(v.path.replace("/", ".")).paths
                replicated = placement != "servers" and v.trainable
                assert paths == ["replicated" if replicated else "shared"], v.path
    assert len(set(found.values())) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"consistency": "asp"}, "prepare: a replicated table needs consistency BSP"),
        ({"placement": "here"}, "prepare: placement = 'here': must be 'servers', 'replicated'"),
    ],
)
def test_a_placement_that_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with script_job(), pytest.raises(ConfigError, match=message):
        mpips.keras.prepare(
            make_model(optimizers.SGD(0.1)), **{"placement": "replicated", **options}
        )


def test_an_unknown_codec_is_refused() -> None:
    with script_job(), pytest.raises(ConfigError, match="prepare: unknown compression 'int4'"):
        mpips.keras.prepare(make_model(optimizers.SGD(0.1)), compression="int4")
