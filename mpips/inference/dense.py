"""A model of `logistic`, `softmax` or `mlp` as scale of the features, weights and biases."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from mpips.errors import ConfigError
from mpips.inference.content import ModelContent, Numbers
from mpips.tasks.classifiers import LayeredTask
from mpips.tasks.features import DenseFeatures
from mpips.tasks.inputs import MatrixInputs
from mpips.tasks.linear import LinearMatrix
from mpips.tasks.logistic import Logistic
from mpips.tasks.outputs import OneLogit, OneTarget


class DenseLayers(Struct, frozen=True):
    """Standardised features x go through layers x W + b, with ReLU between them.

    The outputs are logits, or the predicted number.

    Attributes:
        mean: The number that is subtracted from each feature, shape (d,), float32 or float64.
        scale: The factor by which the difference is multiplied; the product is clipped to MAX_DEVIATION.
        weights: The weights of each layer, float32, shape (width before, width after).
        biases: The biases of each layer, float32, shape (width after,).
    """

    mean: Numbers
    scale: Numbers
    weights: list[Numbers]
    biases: list[Numbers]

    @property
    def widths(self) -> list[int]:
        """Number of features, widths of hidden layers, number of classes."""
        return [len(self.mean), *map(len, self.biases)]

    def arrays(self) -> dict[str, Numbers]:
        """Return the arrays by their names in the state dict of `mpips.inference.network.Network`."""
        found = {"mean": self.mean, "scale": self.scale}
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            # Layers of PyTorch have their outputs first; every second layer is a ReLU.
            found[f"layers.{2 * i}.weight"] = np.ascontiguousarray(weight.T)
            found[f"layers.{2 * i}.bias"] = bias
        return found


def is_dense(model: ModelContent) -> bool:
    """Return True if the model consists of layers that are dense tables."""
    return _features(model) is not None and bool(_names(model))


def dense_layers(model: ModelContent) -> DenseLayers:
    """Return the layers of a model.

    Raises:
        ConfigError: The model has other tables.
    """
    features, names = _features(model), _names(model)
    if features is None or not names:
        raise ConfigError(
            f"this model of task '{model.manifest.config['task']}' is no network of dense layers: only "
            "logistic, softmax and mlp with a dense table of weights become a module of PyTorch; "
            "model.tables has the values of any task"
        )
    weights = [np.asarray(model.tables[name]) for name in names]
    biases = [np.asarray(model.tables[name.replace("weight", "bias")]) for name in names]
    outputs = model.task.outputs  # type: ignore[attr-defined]
    if isinstance(outputs, OneTarget):
        # The last layer returns the number itself, not its standardised value.
        deviation, mean = outputs.deviation, outputs.mean
        weights[-1] = (weights[-1].astype(np.float64) * deviation).astype(np.float32)
        last = biases[-1].astype(np.float64)
        biases[-1] = (last * deviation + mean).astype(np.float32)
    if isinstance(outputs, OneLogit):
        # The logit of class 0 is 0, so that there is a logit for each class.
        weights[-1] = np.concatenate([np.zeros_like(weights[-1]), weights[-1]], axis=1)
        biases[-1] = np.concatenate([np.zeros_like(biases[-1]), biases[-1]])
    return DenseLayers(features.mean, features.scale, weights, biases)


def _features(model: ModelContent) -> DenseFeatures | None:
    """Return the scale of rows of numbers; None: the task has another form of features."""
    task = model.task
    if isinstance(task, LayeredTask) and isinstance(task.inputs, MatrixInputs):
        return task.inputs.features
    if isinstance(task, Logistic) and isinstance(task.model, LinearMatrix):
        return task.model.features
    return None


def _names(model: ModelContent) -> list[str]:
    """Return the names of the tables of weights, in order; [] if there are other tables."""
    names = [f"weight{i}" for i in range(len(model.tables) // 2)]
    if list(model.tables) == ["weight", "bias"]:
        names = ["weight"]
    wanted = [part for name in names for part in (name, name.replace("weight", "bias"))]
    return names if sorted(wanted) == sorted(model.tables) else []
