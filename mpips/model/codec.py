"""Codecs: how the updates of a table travel in fewer bytes.

A worker encodes the values of a push while it writes its records, and the server decodes them before it does
anything else (native/src/ring/codec.hpp, which also says what each of them rounds). Values on servers and in
checkpoints stay float32. Pulls may have a codec of their own, Bf16 or Int8: a server then also holds the
values in this codec, rounded to nearest, and workers decode what they read.

All codecs here keep nothing between two pushes: the update that arrives is a function of the update that was
pushed and, where rounding is stochastic, of (seed, table, worker, step of the run, number of the push in it).
So a restart repeats a push with the same bits, and results under BSP do not depend on the number of servers,
the transport or the timing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from msgspec import Meta

from mpips import _native
from mpips.errors import ConfigError
from mpips.model.accepted import check_fields, unknown_name

# The package exports these names, so users write mpips.Int8.
__all__ = ["Bf16", "Fp16", "Int8"]

BlockLength: TypeAlias = Annotated[int, Meta(ge=16, le=4096)]
# The keys of CODECS.
CodecName: TypeAlias = Literal["bf16", "fp16", "int8"]
_FP16_BLOCK = 128
VERSION_BLOCK = _native.BLOCK_FLOATS  # values that one version word guards
MOST_BLOCK = 4096  # values; of a record's header, 12 bits say where in its block it begins
LEAST_INT8_DIM = 16  # below it the scale of a row takes a quarter of the bytes or more


@dataclass(frozen=True)
class Bf16:
    """bfloat16: 2 bytes a value, with the range of float32 and 8 bits of precision; rounded to nearest."""

    name: ClassVar[str] = "bf16"

    def native(self, block: int | None = None) -> _native.Codec:
        """Return the codec of native code. `block`: length of a row of an embedding table, else None."""
        return _native.Codec(self.name, block or 1)


@dataclass(frozen=True)
class Fp16:
    """Half precision: 2 bytes a value and 11 bits of precision; rounded to nearest.

    128 values, or those of a row, share a power of two as their scale, so no value is beyond the range of
    half precision (65504), and only values below 2^-28 of the greatest one lose precision.
    """

    name: ClassVar[str] = "fp16"

    def native(self, block: int | None = None) -> _native.Codec:
        """Return the codec of native code. `block`: length of a row of an embedding table, else None."""
        return _native.Codec(self.name, block or _FP16_BLOCK)


@dataclass(frozen=True)
class Int8:
    """Whole numbers from -127 to 127: 1 byte a value, and a scale for each block; rounded stochastically.

    The mean of what arrives is the update itself, so the errors of many steps cancel. This is the stochastic
    quantization of QSGD (D. Alistarh et al., NIPS 2017) with the greatest magnitude of a block as its scale.

    Attributes:
        block: Number of values that share a scale, 16 to 4096. Each row of an embedding table is a block.
    """

    block: BlockLength = 128
    name: ClassVar[str] = "int8"

    def __post_init__(self) -> None:
        """Raise ConfigError for a block that is not accepted."""
        check_fields(self)

    def native(self, block: int | None = None) -> _native.Codec:
        """Return the codec of native code. `block`: length of a row of an embedding table, else None."""
        return _native.Codec(self.name, block or self.block)


Codec: TypeAlias = Bf16 | Fp16 | Int8
CODECS: dict[str, type[Codec]] = {c.name: c for c in (Bf16, Fp16, Int8)}


def codec_of(value: object) -> Codec | None:
    """Return the codec that a user has given, as a value, by its name, or as a mapping; None: none.

    Raises:
        ConfigError: It is none; the message lists those that exist.
    """
    if value is None or value == "none":
        return None
    if isinstance(value, Codec):
        return value
    given: Mapping[str, Any] = {"name": value} if isinstance(value, str) else {}
    if isinstance(value, Mapping):
        given = value
    if "name" not in given:
        shown = value.__name__ + ", a class" if isinstance(value, type) else repr(value)
        raise ConfigError(
            f"compression = {shown}: must be a codec such as Int8(), or a name: {', '.join(CODECS)}, none"
        )
    if given["name"] not in CODECS:
        raise unknown_name("compression", str(given["name"]), [*CODECS, "none"])
    kind, options = CODECS[given["name"]], {k: v for k, v in given.items() if k != "name"}
    try:
        return kind(**options)
    except TypeError:
        known = ", ".join(field.name for field in fields(kind)) or "no options"
        raise ConfigError(
            f"compression {kind.name!r} has {known}, not {', '.join(map(str, options))}"
        ) from None


def pull_codec_of(value: object) -> Bf16 | Int8 | None:
    """Return the codec of pulls that a user has given; None: none.

    Raises:
        ConfigError: There is no such codec, or it is not one for pulls.
    """
    try:
        codec = codec_of(value)
    except ConfigError as error:
        raise ConfigError(
            f"pull_{error}" if str(error).startswith("comp") else str(error)
        ) from None
    if isinstance(codec, Fp16):
        raise ConfigError("pull_compression = 'fp16': must be 'bf16', 'int8' or 'none'")
    if isinstance(codec, Int8) and VERSION_BLOCK % codec.block:
        raise ConfigError(
            f"pull_compression = {codec}: the block must be a power of two, from 16 to {MOST_BLOCK}"
        )
    return codec


def to_config(codec: Codec | None) -> dict[str, Any] | None:
    """Return the mapping from which `codec_of` makes an equal codec; None for None."""
    return None if codec is None else {"name": codec.name, **asdict(codec)}
