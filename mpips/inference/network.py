"""A dense model as a PyTorch module, with the scale of the features inside."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from mpips.data.columns import FLOAT32_MAX
from mpips.inference.dense import dense_layers
from mpips.tasks.features import MAX_DEVIATION

if TYPE_CHECKING:
    from mpips.inference.content import ModelContent


class Network(nn.Module):
    """Standardises raw features, and returns logits of the classes, or the predicted number.

    Attributes:
        mean, scale: Buffers, shape (d,), float32, or float64 if float32 would lose differences of a feature.
        layers: Linear layers with ReLU between them.
    """

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, widths: list[int], wide: bool) -> None:
        """Make a network of these widths, from the features to the classes, with scale 1.

        Args:
            widths: Number of features, widths of hidden layers, number of outputs.
            wide: Scale in float64.
        """
        super().__init__()
        kind = torch.float64 if wide else torch.float32
        self.register_buffer("mean", torch.zeros(widths[0], dtype=kind))
        self.register_buffer("scale", torch.ones(widths[0], dtype=kind))
        layers: list[nn.Module] = []
        for fan_in, fan_out in itertools.pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, float32, shape (n, k), or numbers, (n, 1), for raw features, shape (n, d).

        Raises:
            TypeError: `x` has fewer digits than the features need.
            ValueError: `x` contains NaN, infinity or a number beyond float32. Not checked while torch traces.
        """
        is_wide = self.mean.dtype == torch.float64
        if is_wide and x.is_floating_point() and x.dtype != torch.float64:
            raise TypeError(
                f"features of {x.dtype} lose differences between samples of this model's training data: give "
                "torch.float64"
            )
        raw = x.to(self.mean.dtype)
        traced = torch._C._get_tracing_state() is not None or torch.compiler.is_compiling()
        if not traced and not bool((raw.abs() <= FLOAT32_MAX).all()):
            raise ValueError("the features contain NaN, infinity or a number beyond float32")
        scaled = (raw - self.mean) * self.scale
        logits: torch.Tensor = self.layers(scaled.float().clamp(-MAX_DEVIATION, MAX_DEVIATION))
        return logits


def network_of(model: ModelContent) -> Network:
    """Return a loaded model of a dense task as a module in evaluation mode; its logits are those of the task.

    Raises:
        ConfigError: The model has no dense layers.
    """
    layers = dense_layers(model)
    network = Network(layers.widths, layers.mean.dtype == np.float64)
    network.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in layers.arrays().items()})
    return network.eval()
