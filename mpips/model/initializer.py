"""Initial values of parameters, and their definition in NumPy.

Each element is a pure function of a seed and of its position: (seed, key, column) in an embedding table,
(seed, index) in a dense table. So the value does not depend on the server that makes it, on the time, or on
the piece in which it is made. The functions `reference_rows` and `reference_range` define the results of the
C++ kernels bit for bit. They use only operations that IEEE 754 rounds in one way.

Random bits: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), started at the step of the element.
Normal values: quantiles by AS 241, PPND7 (Wichura, Applied Statistics 37, 1988). The xavier kinds:
Glorot and Bengio, AISTATS 2010.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpips import _native
from mpips.errors import ConfigError

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
UInt64 = npt.NDArray[np.uint64]

FORMS = (
    "zeros, constant(VALUE), uniform(LIMIT), normal(STD), "
    "xavier_uniform or xavier_uniform(GAIN), xavier_normal or xavier_normal(GAIN)"
)
KINDS = ("zeros", "constant", "uniform", "normal", "xavier_uniform", "xavier_normal")
ALIASES = {"xavier": "xavier_uniform"}
NEEDS_FANS = ("xavier_uniform", "xavier_normal")
DEFAULT_SCALES = {"zeros": 0.0, "xavier_uniform": 1.0, "xavier_normal": 1.0}


@dataclass(frozen=True)
class Initializer:
    """A distribution of initial values.

    Attributes:
        kind: One of `KINDS`.
        scale: The value (constant), half-width of [-scale, scale) (uniform), standard deviation (normal) or
            gain (xavier kinds); 0 for zeros.
    """

    kind: str
    scale: float

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"unknown initializer {self.kind!r}; write {FORMS}")
        if self.kind == "zeros" and self.scale != 0:
            raise ConfigError(f"initializer zeros: scale = {self.scale!r}: must be 0; leave it out")
        if not abs(self.scale) <= float(np.finfo(np.float32).max):
            raise ConfigError(
                f"initializer {self.kind}: scale = {self.scale!r}: must be a finite number that fits float32"
            )
        if self.kind != "constant" and self.scale < 0:
            raise ConfigError(f"initializer {self.kind}: scale = {self.scale!r}: must be 0 or more")

    @classmethod
    def parse(cls, text: str) -> Initializer:
        """Read one of `FORMS`, for example "uniform(0.01)" or "xavier".

        Raises:
            ConfigError: `text` has none of these forms.
        """
        match = re.fullmatch(r"\s*([a-z_]+)\s*(?:\(\s*([^()\s]+)\s*\))?\s*", text)
        wrong = ConfigError(f"initializer {text!r} is not understood; write {FORMS}")
        if match is None:
            raise wrong
        name, argument = match.groups()
        kind = ALIASES.get(name, name)
        superfluous = argument is not None and kind == "zeros"
        missing = argument is None and kind not in DEFAULT_SCALES
        if kind not in KINDS or superfluous or missing:
            raise wrong
        if argument is None:
            return cls(kind, DEFAULT_SCALES[kind])
        try:
            if "_" in argument or not argument.isascii():
                raise ValueError
            scale = float(argument)
        except ValueError:
            raise wrong from None
        return cls(kind, scale)

    @classmethod
    def from_config(cls, config: str | Mapping[str, Any]) -> Initializer:
        """Read a string (see `parse`) or a table such as {"kind": "uniform", "scale": 0.01}.

        Raises:
            ConfigError: A key or a value is wrong.
        """
        if isinstance(config, str):
            return cls.parse(config)
        unknown = sorted(set(config) - {"kind", "scale"})
        if unknown or not isinstance(config.get("kind"), str):
            raise ConfigError(
                f"initializer {dict(config)!r} is not understood; a table has kind and, "
                f"where it needs one, scale; accepted kinds: {', '.join(KINDS)}"
            )
        kind = ALIASES.get(config["kind"], config["kind"])
        scale = config.get("scale", DEFAULT_SCALES.get(kind))
        if isinstance(scale, bool) or not isinstance(scale, (int, float)):
            raise ConfigError(f"initializer {kind}: scale = {scale!r}: must be a number")
        return cls(kind, float(scale))

    def to_config(self) -> str:
        """Return the string from which `from_config` makes an equal value."""
        return str(self)

    def __str__(self) -> str:
        if self.scale == DEFAULT_SCALES.get(self.kind):
            return self.kind
        return f"{self.kind}({self.scale!r})"

    def native(self, seed: int, fan_in: int, fan_out: int) -> _native.Initializer:
        """Return the value that the C++ kernels take.

        Args:
            seed: From 0 to 2**64 - 1; each table needs its own, see `table_seed`.
            fan_in: Inputs of the layer; only the xavier kinds use it.
            fan_out: Outputs of the layer; only the xavier kinds use it.

        Raises:
            ConfigError: A number is out of range, or both fans of a xavier kind are 0.
        """
        if not 0 <= seed < 2**64:
            raise ConfigError(f"seed = {seed}: must be from 0 to 2**64 - 1")
        if self.kind not in NEEDS_FANS:
            fan_in = fan_out = 0
        if not (0 <= fan_in < 2**32 and 0 <= fan_out < 2**32):
            raise ConfigError(
                f"fan_in = {fan_in} and fan_out = {fan_out}: must be from 0 to 2**32 - 1"
            )
        if self.kind in NEEDS_FANS and fan_in + fan_out == 0:
            raise ConfigError(f"initializer {self.kind} needs a positive fan_in or fan_out")
        return _native.Initializer(self.kind, self.scale, seed, fan_in, fan_out)


def table_seed(seed: int, name: str) -> int:
    """Return the seed of table `name` in a job with `seed`, so that tables of equal shape differ.

    Returns:
        The first 8 bytes, little-endian, of the BLAKE2b digest of both.
    """
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def reference_rows(
    initializer: _native.Initializer, keys: npt.NDArray[np.int64], dim: int
) -> Float32:
    """Compute initial rows of an embedding table; the definition of `_native.initialize_rows`.

    Args:
        initializer: Kind, scale, seed and fans.
        keys: int64, shape (n,), any values.
        dim: Length of a row.

    Returns:
        float32, shape (n, dim); element (i, j) depends only on (seed, keys[i], j).
    """
    root = mix(_words(initializer.seed) ^ ROW_TAG)
    streams = mix(root + mix(keys.view(np.uint64)))
    columns = np.arange(dim, dtype=np.uint64)
    return _values(initializer, _bits(streams[:, np.newaxis], columns))


def reference_range(initializer: _native.Initializer, first: int, n: int) -> Float32:
    """Compute initial values of a piece of a dense tensor; the definition of `_native.initialize_range`.

    Args:
        initializer: Kind, scale, seed and fans.
        first: Index of the piece's first element in the tensor.
        n: Number of elements.

    Returns:
        float32, shape (n,); element i depends only on (seed, first + i).
    """
    stream = mix(_words(initializer.seed) ^ DENSE_TAG)
    steps = np.arange(n, dtype=np.uint64) + np.uint64(first)
    return _values(initializer, _bits(stream, steps))


# Constants of the arithmetic below, whose words wrap modulo 2**64.
STEP = np.uint64(0x9E3779B97F4A7C15)
ROW_TAG = np.uint64(0x6D706970732D726F)
DENSE_TAG = np.uint64(0x6D706970732D6465)


def _words(value: int) -> UInt64:
    return np.array([value], dtype=np.uint64)


def mix(x: UInt64) -> UInt64:
    """Return the finaliser of SplitMix64 of each word."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _bits(streams: UInt64, steps: UInt64) -> UInt64:
    return mix(streams + (steps + np.uint64(1)) * STEP)


def _values(initializer: _native.Initializer, bits: UInt64) -> Float32:
    if initializer.kind in ("zeros", "constant"):
        value = 0.0 if initializer.kind == "zeros" else initializer.scale
        return np.full(bits.shape, value, dtype=np.float32)
    if initializer.kind in ("uniform", "xavier_uniform"):
        centred = (bits >> np.uint64(40)).astype(np.int64) - 2**23
        return centred.astype(np.float32) * np.float32(2.0**-23) * _spread(initializer)
    return (np.float64(_spread(initializer)) * _quantiles(bits)).astype(np.float32)


def _spread(initializer: _native.Initializer) -> np.float32:
    """Return the half-width of a uniform kind, or the standard deviation of a normal kind."""
    if initializer.kind not in NEEDS_FANS:
        return np.float32(initializer.scale)
    numerator = 6.0 if initializer.kind == "xavier_uniform" else 2.0
    fans = float(initializer.fan_in) + float(initializer.fan_out)
    return np.float32(initializer.scale * math.sqrt(numerator / fans))


def _quantiles(bits: UInt64) -> Float64:
    """Return standard normal quantiles of (n + 1/2) / 2**52, n being the leading 52 bits."""
    p = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    q = p - 0.5
    r = 0.180625 - q * q
    central = q * _horner(CENTRAL[0], r) / _horner(CENTRAL[1], r)
    r = np.sqrt(-_log(np.where(q < 0.0, p, 1.0 - p)))
    near = _horner(NEAR[0], r - 1.6) / _horner(NEAR[1], r - 1.6)
    far = _horner(FAR[0], r - 5.0) / _horner(FAR[1], r - 5.0)
    tail = np.copysign(np.where(r <= 5.0, near, far), q)
    return np.where(np.abs(q) <= 0.425, central, tail)


def _log(x: Float64) -> Float64:
    """Return ln(x) to 1e-9. The logarithm of the C library is not used, since its rounding varies."""
    m, exponent = np.frexp(x)
    low = m < 0.70710678118654752
    m, exponent = np.where(low, m * 2.0, m), exponent - low
    s = (m - 1.0) / (m + 1.0)
    series = tuple(1.0 / odd for odd in (13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0))
    return exponent * 0.69314718055994531 + 2.0 * s * _horner(series, s * s)


def _horner(coefficients: tuple[float, ...], x: Float64) -> Float64:
    """Return the value at x of the polynomial with these coefficients, highest power first."""
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


# Numerator and denominator of the three rational functions of AS 241, highest power first.
CENTRAL = (
    (59.109374720, 159.29113202, 50.434271938, 3.3871327179),
    (67.187563600, 78.757757664, 17.895169469, 1.0),
)
NEAR = (
    (0.17023821103, 1.3067284816, 2.7568153900, 1.4234372777),
    (0.12021132975, 0.73700164250, 1.0),
)
FAR = (
    (0.017337203997, 0.42868294337, 3.0812263860, 6.6579051150),
    (0.012258202635, 0.24197894225, 1.0),
)
