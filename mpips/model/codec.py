"""Codecs: how the updates of a table travel in fewer bytes.

A worker encodes the values of a push while it writes its records, and the server decodes them before it does
anything else (native/src/ring/codec.hpp, which also defines what each of them rounds). Values on servers and
in checkpoints stay float32. Pulls may have a codec of their own. With Bf16 or Int8 a server also holds the
values in this codec, rounded to nearest, and workers decode what they read. With OneBit or TopK workers read
differences to a copy that server and workers share (native/src/ring/common_view.hpp): dense tables under BSP
only.

Bf16, Fp16 and Int8 keep nothing between two pushes: the update that arrives is a function of the update that
was pushed and, where rounding is stochastic, of (seed, table, worker, step of the run, number of the push in
it). So a restart repeats a push with the same bits, and results under BSP do not depend on the number of
servers, the transport or the timing.

TopK, RandomK, OneBit and SharedInt8 are biased: they need error feedback. The worker's residual is what a
push does not send; it is added to the worker's next update (mpips.worker.feedback.residuals). Only dense
tables have them. With pulls the residual is what the values are ahead of the common copy. Results under BSP
depend neither on transport, timing nor restarts. With TopK and OneBit they do depend on the number of
servers, since each server's part of a tensor is encoded by itself.

SharedInt8 has one scale for each block, the same for all workers in a clock, so that servers add integers.
The scales of a clock follow from the pushes of the clock before (native/src/server/scale_shard.hpp).
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
__all__ = ["Auto", "Bf16", "Fp16", "Int8", "OneBit", "RandomK", "SharedInt8", "TopK"]

BlockLength: TypeAlias = Annotated[int, Meta(ge=16, le=4096)]
# The keys of CODECS.
CodecName: TypeAlias = Literal["bf16", "fp16", "int8", "topk", "randomk", "onebit", "shared_int8"]
Share: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
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

    def bytes_per_value(self, dim: int | None) -> float:
        """Return the bytes of a value with its part of the scale. `dim`: length of a row, or None."""
        return 2.0


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

    def bytes_per_value(self, dim: int | None) -> float:
        """Return the bytes of a value with its part of the scale. `dim`: length of a row, or None."""
        return 2.0 + 4.0 / (dim or _FP16_BLOCK)


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

    def bytes_per_value(self, dim: int | None) -> float:
        """Return the bytes of a value with its part of the scale. `dim`: length of a row, or None."""
        return 1.0 + 4.0 / (dim or self.block)


@dataclass(frozen=True)
class _Sparse:
    """Some values, as they are; the others stay in the residual."""

    fraction: Share = 0.01

    def __post_init__(self) -> None:
        """Raise ConfigError for a fraction that is not accepted."""
        check_fields(self)

    def native(self, block: int | None = None) -> _native.Codec:
        """Return the codec of native code. `block`: None, since rows have no such codec."""
        return _native.Codec("sparse", 1, self.fraction)

    def bytes_per_value(self, dim: int | None) -> float:
        """Return the bytes of a value: 4 and a distance for each one that is sent."""
        return _SPARSE_BYTES * self.fraction


@dataclass(frozen=True)
class TopK(_Sparse):
    """The values of the greatest magnitudes, as they are; the others stay in the residual.

    See D. Alistarh et al., "The convergence of sparsified gradient methods", NeurIPS 2018. The threshold is
    estimated, so a push sends up to 30 % more or fewer values.

    Attributes:
        fraction: Share of the values of each server's part that a push sends, above 0 and at most 1.
    """

    name: ClassVar[str] = "topk"


@dataclass(frozen=True)
class RandomK(_Sparse):
    """Values that are chosen at random, as they are; the others stay in the residual.

    See S. U. Stich et al., "Sparsified SGD with memory", NeurIPS 2018. The choice is a function of (seed,
    table, worker, step of the run, number of the push, number of the value).

    Attributes:
        fraction: Probability with which a value is sent, above 0 and at most 1.
    """

    name: ClassVar[str] = "randomk"


@dataclass(frozen=True)
class OneBit:
    """The sign of each value, and the mean magnitude of 512 values; the difference stays in the residual.

    1-bit SGD (F. Seide et al., Interspeech 2014) with the magnitudes of EF-signSGD (S. P. Karimireddy et al.,
    ICML 2019).
    """

    name: ClassVar[str] = "onebit"

    def native(self, block: int | None = None) -> _native.Codec:
        """Return the codec of native code. `block`: None, since rows have no such codec."""
        return _native.Codec("onebit", 512)

    def bytes_per_value(self, dim: int | None) -> float:
        """Return the bytes of a value with its part of the magnitude."""
        return 1 / 8 + 4 / 512


@dataclass(frozen=True)
class SharedInt8:
    """Whole numbers from -127 to 127 times a scale that all workers share: 1 byte a value; for BSP.

    Servers add whole numbers, so a sum has the same bits in whatever order updates arrive. The scale of a
    block is a power of two, agreed one clock ahead: it follows from the greatest magnitude that any worker
    had in the block in the clock before. The excess over 127 scales, and what rounding leaves, stay in the
    residual. The first clock is sent as float32. This is the idea of THC (M. Li et al., "THC: Accelerating
    Distributed Deep Learning Using Tensor Homomorphic Compression", NSDI 2024).

    Attributes:
        block: Number of values that share a scale, 16 to 4096.
    """

    block: BlockLength = 128
    name: ClassVar[str] = "shared_int8"

    def __post_init__(self) -> None:
        """Raise ConfigError for a block that is not accepted."""
        check_fields(self)

    def native(self, block: int | None = None) -> _native.Codec:
        """Return the codec of native code. `block`: None, since rows have no such codec."""
        return _native.Codec(self.name, self.block)

    def bytes_per_value(self, dim: int | None) -> float:
        """Return the bytes of a value with its part of the scale."""
        return 1.0 + 2.0 / self.block


_SPARSE_BYTES = 5.3  # of a value that is sent, at 1 %
Stateless: TypeAlias = Bf16 | Fp16 | Int8
Biased: TypeAlias = TopK | RandomK | OneBit | SharedInt8
Codec: TypeAlias = Stateless | Biased
STATELESS: dict[str, type[Stateless]] = {c.name: c for c in (Bf16, Fp16, Int8)}
CODECS: dict[str, type[Codec]] = {
    **STATELESS,
    **{c.name: c for c in (TopK, RandomK, OneBit, SharedInt8)},
}


@dataclass(frozen=True, init=False)
class Auto:
    """One of several codecs, or none: the job decides at its start by measured speeds.

    See mpips.model.auto_codec. The job prints what it has chosen and why, and a run directory stores it,
    since bits depend on it.

    Attributes:
        codecs: The codecs that it may choose, of Bf16, Fp16 and Int8.
    """

    codecs: tuple[Codec, ...]
    name: ClassVar[str] = "auto"

    def __init__(self, *codecs: Codec | str | Mapping[str, Any]) -> None:
        """Take the codecs, as values or by their names.

        Raises:
            ConfigError: `codecs` is empty, or one of them is not a codec.
        """
        found = tuple(one for one in map(_one_codec, codecs) if one is not None)
        if not found or len(found) < len(codecs):
            raise ConfigError(
                "Auto: list codecs, such as Auto(Bf16(), Int8()); none is always possible"
            )
        if biased := next((one for one in found if isinstance(one, Biased)), None):
            raise ConfigError(
                f"Auto: {biased} changes what is learned, so the job does not choose it by speed: list "
                f"{', '.join(STATELESS)}, or give {biased} itself as compression"
            )
        object.__setattr__(self, "codecs", found)

    def __str__(self) -> str:
        """Return the call that makes an equal value."""
        return f"Auto({', '.join(map(str, self.codecs))})"


PushCodec: TypeAlias = Codec | Auto
OwnPullCodec: TypeAlias = Bf16 | Int8 | TopK | OneBit
PullCodec: TypeAlias = OwnPullCodec | Auto


def codec_of(value: object) -> PushCodec | None:
    """Return the codec that a user has given, as a value, by its name, or as a mapping; None: none.

    {"name": "auto", "codecs": [...]} is Auto of these codecs.

    Raises:
        ConfigError: `value` is not a codec; the message lists those that exist.
    """
    if isinstance(value, Auto):
        return value
    if value == Auto.name:
        raise ConfigError(
            "compression = 'auto' needs a list of codecs: Auto(Bf16(), Int8()), in a job file "
            '{name = "auto", codecs = ["bf16", "int8"]}'
        )
    if isinstance(value, Mapping) and value.get("name") == "auto":
        codecs = value.get("codecs", ())
        if set(value) - {"name", "codecs"} or not isinstance(codecs, list | tuple):
            raise ConfigError("compression 'auto' has codecs, a list such as ['bf16', 'int8']")
        return Auto(*codecs)
    return _one_codec(value)


def _one_codec(value: object) -> Codec | None:
    """Return a codec as `codec_of` does, but not Auto.

    Raises:
        ConfigError: `value` is not such a codec; the message lists those that exist.
    """
    if value is None or value == "none":
        return None
    if isinstance(value, Codec):
        return value
    given: Mapping[str, Any] = {"name": value} if isinstance(value, str) else {}
    if isinstance(value, Mapping):
        given = value
    if not isinstance(given.get("name"), str):
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


def pull_codec_of(value: object) -> PullCodec | None:
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
    if isinstance(codec, Auto):
        return Auto(*(_checked_for_pulls(one) for one in codec.codecs))
    return None if codec is None else _checked_for_pulls(codec)


def common_codecs(push: object, pull: object) -> tuple[PushCodec | None, PullCodec | None]:
    """Return the codecs of pushes and pulls of all parameters of a model, as a user has given them.

    Raises:
        ConfigError: There is no such codec, or it is not one for pulls.
    """
    try:
        return codec_of(push), pull_codec_of(pull)
    except ConfigError as error:
        raise ConfigError(f"prepare: {error}") from None


def _checked_for_pulls(codec: Codec) -> OwnPullCodec:
    """Return the codec; raise ConfigError if it is not one for pulls."""
    if not isinstance(codec, OwnPullCodec):
        raise ConfigError(
            f"pull_compression = {codec.name!r}: must be 'bf16', 'int8', 'topk', 'onebit' or 'none'"
        )
    if isinstance(codec, Int8) and VERSION_BLOCK % codec.block:
        raise ConfigError(
            f"pull_compression = {codec}: the block must be a power of two, from 16 to {MOST_BLOCK}"
        )
    return codec


def check_differences(codec: PullCodec | None, is_dense: bool, is_bsp: bool) -> None:
    """Refuse pulls as differences for a table that can have no common copy.

    Args:
        codec: Codec of the table's pulls.
        is_dense: True for a dense table.
        is_bsp: True if its consistency is BSP.

    Raises:
        ConfigError: The codec is TopK or OneBit, and the table is not dense, or not under BSP.
    """
    if not isinstance(codec, Biased):
        return
    if not is_dense:
        raise ConfigError(
            f"pull_compression = {codec} is for dense tables: a worker cannot hold a copy of every row; use "
            "'bf16' or 'int8'"
        )
    if not is_bsp:
        raise ConfigError(
            f"pull_compression = {codec} needs consistency = 'bsp', whose clocks the differences follow; use "
            "'bf16' or 'int8' with other consistency"
        )


def to_config(codec: PushCodec | None) -> dict[str, Any] | None:
    """Return the mapping from which `codec_of` makes an equal codec; None for None."""
    if isinstance(codec, Auto):
        return {"name": "auto", "codecs": [to_config(one) for one in codec.codecs]}
    return None if codec is None else {"name": codec.name, **asdict(codec)}
