"""DCN-V2: cross layers beside a network.

Wang et al., "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank
Systems", WWW 2021, in its parallel form with full matrices. With the inputs x_0, cross layer l computes
x_{l+1} = x_0 * (x_l W_l + b_l) + x_l, the product element by element, so that layer l adds products of l + 2
inputs. An output is that of the network and a weighted sum of the last x.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Meta

from mpips.model.table import DenseTable, Table
from mpips.tasks.base import Float32
from mpips.tasks.mixed import MixedOptions, MixedStep, MixedTask, SideOutputs
from mpips.tasks.options import Count
from mpips.tasks.proposals import Proposal, among


class CrossOptions(MixedOptions, frozen=True, forbid_unknown_fields=True):
    """[options] of the task `dcnv2`."""

    cross: Annotated[Count, Meta(description="Number of cross layers.")] = 2


class Cross:
    """The side with the cross layers.

    Attributes:
        outputs: float32, shape (n, k).
    """

    def __init__(self, step: MixedStep) -> None:
        """Pull the layers and compute their outputs."""
        self._step = step
        worker, x = step.worker, step.inputs
        layers = range(step.options.cross)
        self._weights = [worker.table(f"cross_weight{i}").pull() for i in layers]
        self._biases = [worker.table(f"cross_bias{i}").pull() for i in layers]
        self._output = worker.table("cross_output").pull()
        self._xs: list[Float32] = [x]
        self._products: list[Float32] = []
        for weight, bias in zip(self._weights, self._biases, strict=True):
            self._products.append(self._xs[-1] @ weight + bias)
            self._xs.append(x * self._products[-1] + self._xs[-1])
        self.outputs: Float32 = self._xs[-1] @ self._output

    def push(self, error: Float32) -> Float32:
        """Push the gradients of the layers, the last one first; return that by the inputs."""
        step, x = self._step, self._step.inputs
        step.push_dense("cross_output", self._xs[-1].T @ error, self._output)
        by_x: Float32 = error @ self._output.T
        by_inputs = np.zeros_like(x)
        for i in reversed(range(len(self._weights))):
            by_products = by_x * x
            step.push_dense(f"cross_weight{i}", self._xs[i].T @ by_products, self._weights[i])
            table = step.worker.table(f"cross_bias{i}")
            table.push(by_products.sum(axis=0), base=self._biases[i])
            by_inputs += by_x * self._products[i]
            by_x = by_x + by_products @ self._weights[i].T
        return by_inputs + by_x


class DcnV2(MixedTask):
    """A network and cross layers on the same inputs."""

    name = "dcnv2"
    Options = CrossOptions

    def proposals(self) -> list[Proposal]:
        """Propose also the number of cross layers."""
        return [
            *super().proposals(),
            among("cross", self._options.cross, [1, 2, 3], "degree of the products of columns"),
        ]

    def side_tables(self) -> list[Table]:
        """Return `cross_weight<i>`, shape (width, width), `cross_bias<i>` and `cross_output`."""
        width, optimizer = self._width, self.adagrad()
        tables: list[Table] = []
        for i in range(self._options.cross):
            tables += [
                DenseTable(
                    f"cross_weight{i}", (width, width), optimizer=optimizer, init="xavier_normal"
                ),
                DenseTable(f"cross_bias{i}", (width,), optimizer=optimizer),
            ]
        shape = (width, self.outputs.n)
        output = DenseTable("cross_output", shape, optimizer=optimizer, init="xavier_normal")
        return [*tables, output]

    def sides(self, step: MixedStep) -> SideOutputs:
        """Return the cross layers."""
        return [Cross(step)]
