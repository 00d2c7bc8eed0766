"""Keras on its torch backend, for tests; a module that imports this one is skipped without them."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
if importlib.util.find_spec("keras") is None:
    pytest.skip("keras is not installed", allow_module_level=True)
os.environ["KERAS_BACKEND"] = "torch"

import keras

Arrays = tuple[Any, Any]


def data(n: int = 50) -> Arrays:
    """Rows of 4 numbers, and their classes."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=(n, 4)).astype(np.float32)
    return x, (x[:, 0] + x[:, 1] > 0).astype(np.int64)


def make_model(
    optimizer: Any, *more: Any, metrics: Any = ("accuracy",), name: str = "net", **compiled: Any
) -> Any:
    """A compiled model with equal values in each call; `more` are layers before its last."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(2)
    first = keras.layers.Dense(6, activation="tanh", name="first")
    layers = [keras.Input((4,)), first, *more, keras.layers.Dense(2, name="last")]
    model = keras.Sequential(layers, name=name)
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=list(metrics),
        **compiled,
    )
    return model


def weights(model: Any) -> list[Any]:
    """Copies of all values."""
    return [v.value.detach().numpy().copy() for v in model.weights]
