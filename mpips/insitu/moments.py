"""Mean and standard deviation of the fields of a stream, over the samples for training that were produced.

Each producer adds its samples one after the other, and its moments are in the row with its counts: they are
those of the samples that count, whatever dies. Readers merge the moments of all producers in the order of
their numbers, so that equal rows give equal moments. Both use the merge of Chan, Golub and LeVeque ("Updating
Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979), which does not cancel as sums of
squares do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips.errors import ConfigError
from mpips.insitu.layout import Float32, SampleField, SampleLayout
from mpips.kernels import centred_sums

Float64 = NDArray[np.float64]
MomentsOf = Literal["field", "element", "none"]
# For all fields, or by name; fields that are not named have those of the whole field.
MomentsSpec: TypeAlias = MomentsOf | Mapping[str, MomentsOf]

_CHOICES = ("field", "element", "none")
_WORDS = 4  # float32 values in which a float64 is stored, 16 bits in each
_BLOCK = 256  # values whose mean is the first guess of that of a field
# Mean squares between which float32 neither overflows nor loses digits.
_SMALL, _LARGE = 1e-25, 1e25


class FieldMoments(msgspec.Struct, frozen=True, eq=False):
    """Mean and standard deviation of the fields of a stream.

    Attributes:
        n: Samples over which they were taken.
        mean: Mean by field, float64: shape () over all elements of all samples, or that of the field for each
            element by itself.
        std: Standard deviation (of the population) in the same form.
    """

    n: int
    mean: dict[str, Float64]
    std: dict[str, Float64]

    def normalise(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Return (values - mean) / std of a field; its values are all equal: values - mean.

        Args:
            name: The field.
            values: Shape (..., *shape of the field); float32 gives float32, other types give float64.

        Raises:
            KeyError: The field is unknown, or the stream takes no moments of it.
        """
        result = (values - self.mean[name]) / self._scale(name)
        return np.asarray(result, _result_type(values))

    def restore(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Return values of a field from normalised ones; the inverse of `normalise`, with its arguments."""
        result = values * self._scale(name) + self.mean[name]
        return np.asarray(result, _result_type(values))

    def _scale(self, name: str) -> Float64:
        std = self.std[name]
        return np.where(std > 0, std, 1.0)  # one value, or those of all elements


def _result_type(values: NDArray[Any]) -> type[np.floating[Any]]:
    return np.float32 if np.asarray(values).dtype == np.float32 else np.float64


class MomentsLayout:
    """Which moments a stream takes, and their places in a vector.

    Attributes:
        size: Number of means; there are as many sums of squares.
        words: float32 values in which both are stored.
    """

    def __init__(self, stream: str, layout: SampleLayout, of: MomentsSpec) -> None:
        """Check the choice.

        Raises:
            ConfigError: Names the stream, the value and what is accepted.
        """
        where = f"stream {stream!r}: moments"
        names = [field.name for field in layout.fields]
        chosen: dict[str, Any] = dict.fromkeys(names, "field")
        if isinstance(of, Mapping):
            for name in of:
                if name not in chosen:
                    raise ConfigError(
                        f"{where}: unknown field {name!r}; fields: {', '.join(names)}"
                    )
            chosen |= of
        else:
            chosen = dict.fromkeys(names, of)
        for value in chosen.values():
            if value not in _CHOICES:
                raise ConfigError(f"{where} = {value!r}: must be one of {', '.join(_CHOICES)}")
        self.chosen: dict[str, MomentsOf] = chosen
        self._fields = [field for field in layout.fields if chosen[field.name] != "none"]
        self._places: dict[str, slice] = {}
        at = 0
        for field in self._fields:
            n = field.count if chosen[field.name] == "element" else 1
            self._places[field.name] = slice(at, at + n)
            at += n
        self.size = at
        self.words = 2 * _WORDS * at
        self._weights = np.ones(at)  # values of a sample behind each mean
        for field in self._fields:
            if chosen[field.name] == "field":
                self._weights[self._places[field.name]] = field.count

    def zero(self) -> RunningMoments:
        """Return the moments of no sample."""
        return RunningMoments(0, np.zeros(self.size), np.zeros(self.size))

    def with_sample(
        self, moments: RunningMoments, arrays: Mapping[str, NDArray[Any]]
    ) -> RunningMoments:
        """Return the moments with one more sample, from the arrays that `SampleLayout.checked` returns."""
        if not self.size:
            return moments
        return self.merged(moments, self.of_sample(arrays))

    def of_sample(self, arrays: Mapping[str, NDArray[Any]]) -> RunningMoments:
        """Return the moments of one sample, from the arrays that `SampleLayout.checked` returns."""
        found = RunningMoments(1, np.zeros(self.size), np.zeros(self.size))
        with np.errstate(all="ignore"):
            for field in self._fields:
                place, values = self._places[field.name], arrays[field.name].reshape(-1)
                if self.chosen[field.name] == "element":
                    found.mean[place] = values
                else:
                    found.mean[place], found.squares[place] = self._moments(field, values)
        return found

    def _moments(self, field: SampleField, values: NDArray[Any]) -> tuple[float, float]:
        """Return mean and sum of squared differences from it."""
        if field.count == 1:
            return float(values[0]), 0.0
        if field.dtype == np.float32 and field.count >= 4 * _BLOCK:
            values = np.ascontiguousarray(values)
            # Differences from a number near the mean, so that nothing cancels.
            centre = float(np.float32(values[:_BLOCK].mean(dtype=np.float64)))
            sum_away, squares = centred_sums(values, centre)
            rest = sum_away / field.count
            if field.count * rest**2 > squares / 2:
                # The first values are far from the mean.
                centre = float(np.float32(centre + rest))
                sum_away, squares = centred_sums(values, centre)
                rest = sum_away / field.count
            if _SMALL < squares / field.count < _LARGE:
                return centre + rest, max(0.0, squares - field.count * rest**2)
        wide = values.astype(np.float64)
        mean = float(wide.mean())
        wide -= mean
        return mean, float(np.add.reduce(wide * wide))

    def merged(self, a: RunningMoments, b: RunningMoments) -> RunningMoments:
        """Return the moments of the samples of both, which have no sample in common."""
        if not a.n or not b.n:
            return b if not a.n else a
        share = b.n / (a.n + b.n)
        with np.errstate(all="ignore"):
            away = b.mean - a.mean
            both = self._weights * (a.n * share)
            return RunningMoments(
                a.n + b.n, a.mean + away * share, a.squares + b.squares + away * away * both
            )

    def stored(self, moments: RunningMoments) -> bytes:
        """Return the bytes of the vectors, without the number of samples."""
        return moments.mean.tobytes() + moments.squares.tobytes()

    def read(self, n: int, stored: bytes) -> RunningMoments:
        """Return the moments of `n` samples from what `stored` has returned; those of none for n = 0."""
        if not n:
            return self.zero()
        values = np.frombuffer(stored, np.float64)
        return RunningMoments(n, values[: self.size].copy(), values[self.size :].copy())

    def public(self, moments: RunningMoments) -> FieldMoments:
        """Return mean and standard deviation by field."""
        mean, std = {}, {}
        deviation = np.sqrt(moments.squares / (self._weights * max(1, moments.n)))
        for field in self._fields:
            shape = field.shape if self.chosen[field.name] == "element" else ()
            place = self._places[field.name]
            mean[field.name] = moments.mean[place].reshape(shape).copy()
            std[field.name] = deviation[place].reshape(shape)
        return FieldMoments(moments.n, mean, std)


class RunningMoments(msgspec.Struct, frozen=True, eq=False):
    """Moments that more samples can be merged into.

    Attributes:
        n: Number of samples.
        mean: Means, float64, shape (size,) of the MomentsLayout.
        squares: Sums of squared differences from the mean, float64, shape (size,).
    """

    n: int
    mean: Float64
    squares: Float64


def words_of(stored: bytes) -> Float32:
    """Return bytes as whole numbers of 16 bits, each of which float32 holds exactly."""
    return np.frombuffer(stored, np.uint16).astype(np.float32)


def bytes_of(words: Float32) -> bytes:
    """Return the bytes that `words_of` has stored."""
    return words.astype(np.uint16).tobytes()


def merged(layout: MomentsLayout, parts: Sequence[RunningMoments]) -> RunningMoments:
    """Return the moments of all samples of the parts, merged in their order."""
    total = layout.zero()
    for part in parts:
        total = layout.merged(total, part)
    return total
