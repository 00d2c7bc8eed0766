"""A model of `softmax` or `mlp` as scale of the features, weights and biases."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from mpips.errors import ConfigError
from mpips.inference.model import Model, Numbers
from mpips.tasks.classifiers import DenseTask
from mpips.tasks.outputs import OneTarget


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


def is_dense(model: Model) -> bool:
    """Return True if the model consists of dense layers."""
    return isinstance(model.task, DenseTask) and bool(_names(model))


def dense_layers(model: Model) -> DenseLayers:
    """Return the layers of a model.

    Raises:
        ConfigError: The task has no dense layers.
    """
    task, names = model.task, _names(model)
    if not isinstance(task, DenseTask) or not names:
        raise ConfigError(
            f"task '{model.manifest.config['task']}' is no network of dense layers: only softmax and mlp "
            "become a module of PyTorch; model.tables has the values of any task"
        )
    weights = [np.asarray(model.tables[name]) for name in names]
    biases = [np.asarray(model.tables[name.replace("weight", "bias")]) for name in names]
    if isinstance(task.outputs, OneTarget):
        # The last layer returns the number itself, not its standardised value.
        deviation, mean = task.outputs.deviation, task.outputs.mean
        weights[-1] = (weights[-1].astype(np.float64) * deviation).astype(np.float32)
        last = biases[-1].astype(np.float64)
        biases[-1] = (last * deviation + mean).astype(np.float32)
    return DenseLayers(task.features.mean, task.features.scale, weights, biases)


def _names(model: Model) -> list[str]:
    """Return the names of the tables of weights, in order; [] if there are other tables."""
    names = [f"weight{i}" for i in range(len(model.tables) // 2)]
    if list(model.tables) == ["weight", "bias"]:
        names = ["weight"]
    wanted = [part for name in names for part in (name, name.replace("weight", "bias"))]
    return names if sorted(wanted) == sorted(model.tables) else []
