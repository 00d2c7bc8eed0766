"""The suite `network`: codecs, and their gain on links of 10, 1 and 0.1 Gb/s."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.bench.launching import Options, on_nodes, why_not_on_nodes
from mpips.bench.measure import Comparison, Findings, measure_alternately, rates
from mpips.errors import CapabilityError
from mpips.model.codec import CODECS, STATELESS, SharedInt8
from mpips.testing.nodes import Nodes

Float32 = NDArray[np.float32]

ENCODED = 16 << 20  # values, 64 MiB
_QUICK_ENCODED = 1 << 16
_PIECE = 1 << 16  # values of a record
_RECORD_BYTES = 65_472  # of a record's payload, as in a job with slots of 64 KiB
_SHARE = 0.01  # of the values that a codec which chooses values sends
_EXPONENT = 123  # of shared scales: 2^-4, so that normal values have codes up to about 90
LINKS = {"10g": 1e10, "1g": 1e9, "01g": 1e8}  # bits per second
TIMEOUT_S = 900.0
_RANKS = (1, 1)  # scheduler and server; a worker
BETWEEN_NODES = (
    *(
        name
        for codec in CODECS
        for name in (f"wire_bytes_{codec}", *(f"step_{link}_{codec}" for link in LINKS))
    ),
    *(f"step_{link}_auto" for link in LINKS),
)


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure codecs in this process, then steps of a worker whose server is on another node.

    Args:
        suite: "network".
        options: Repetitions and sizes.
        nodes: 1: no nodes; otherwise two imitated ones, if this machine can imitate them.

    Raises:
        CapabilityError: `nodes` is 2 and this machine cannot imitate nodes or limit links.
    """
    found = Findings()
    n = _QUICK_ENCODED if options.quick else ENCODED
    values = np.random.default_rng(1).standard_normal(n, np.float32)
    for name in STATELESS:
        found.add(measure_codec(name, values, options))
    for name in (name for name in CODECS if name not in STATELESS):
        found.add(measure_feedback(name, values, options))
    reason = "--nodes 1" if nodes == 1 else why_no_links()
    if nodes == 2 and reason:
        raise CapabilityError(f"--nodes 2: {reason}")
    if reason:
        found.skipped = dict.fromkeys(BETWEEN_NODES, reason)
        return found
    for link, rate in LINKS.items():
        with Nodes(2) as imitated:
            imitated.limit(rate)
            measured = on_nodes(
                "mpips.bench.rank.network:run", imitated, _RANKS, options, TIMEOUT_S
            )
        for comparison in measured.comparisons:
            is_step = comparison.name.startswith("step_")
            if is_step or link == "1g":
                name = comparison.name.replace("step_", f"step_{link}_")
                found.comparisons.append(msgspec.structs.replace(comparison, name=name))
    return found


def why_no_links() -> str:
    """Return why links between imitated nodes cannot be limited here; "" if they can."""
    if reason := why_not_on_nodes():
        return reason
    if shutil.which("tc") is None:
        return "limits of links need tc (package iproute2)"
    try:
        with Nodes(2) as imitated:
            imitated.limit(1e9)
    except OSError as error:
        return f"the kernel refuses to limit links: {error}"
    return ""


def measure_codec(name: str, values: Float32, options: Options) -> Findings:
    """Compare the encoding and decoding of an array, a record at a time, with a copy of it."""
    codec = CODECS[name]().native()
    target = np.empty_like(values)
    starts = range(0, len(values), _PIECE)
    pieces = [_native.encode(codec, values, s, min(s + _PIECE, len(values)), 1) for s in starts]

    def encode() -> None:
        for start in starts:
            _native.encode(codec, values, start, min(start + _PIECE, len(values)), start)

    def decode() -> None:
        for start, piece in zip(starts, pieces, strict=True):
            _native.decode(codec, piece, 0, target[start : start + _PIECE])

    def copy() -> None:
        np.copyto(target, values)

    works: Sequence[Callable[[], None]] = (encode, decode, copy)
    times = measure_alternately(works, (1, 1, 1), options.repetitions)
    return _compared(name, name, times, values.nbytes)


def measure_feedback(name: str, values: Float32, options: Options) -> Findings:
    """Compare a push with a residual, all of it but the ring, with a copy of its update.

    The residual has two halves, as in a supervised run; so all of its passes over memory count.
    """
    n, target = len(values), np.empty_like(values)
    memory = _native.SharedMemory.anonymous(_native.Feedback.n_bytes(n, 2), 0)
    shared = SharedInt8().native() if name == SharedInt8.name else None
    block = 1 if shared is None else shared.block
    feedback = _native.Feedback(memory, 0, n, 0, 2, name, _SHARE, block)
    feedback.settle(0)
    if shared is not None:
        feedback.set_scales(np.full(-(-n // block), _EXPONENT, np.uint8))
    codec = "onebit" if name == "onebit" else "sparse"
    pieces: list[tuple[int, NDArray[np.uint8]]] = []

    def encode() -> None:
        pieces.clear()
        feedback.begin(values, 1)
        while sum(count for count, _ in pieces) < n:
            pieces.append(feedback.encode(_RECORD_BYTES))
        feedback.close(0)

    def decode() -> None:
        at = 0
        for count, piece in pieces:
            if shared is None:
                _native.decode_biased(codec, piece, target[at : at + count])
            else:
                _native.decode(shared, piece, at % block, target[at : at + count])
            at += count

    def copy() -> None:
        np.copyto(target, values)

    encode()
    works: Sequence[Callable[[], None]] = (encode, decode, copy)
    times = measure_alternately(works, (1, 1, 1), options.repetitions)
    return _compared(name, f"{name} with its residual", times, values.nbytes)


def _compared(name: str, text: str, times: Sequence[Sequence[float]], n_bytes: int) -> Findings:
    """Compare encoding and decoding with a copy.

    Args:
        name: Name of the codec, for the names of ratios.
        text: The codec in words.
        times: Seconds of encoding, of decoding and of copying.
        n_bytes: Size of the values, float32.
    """
    return Findings(
        comparisons=[
            Comparison(
                name=f"{what}_vs_memcpy_{name}",
                what=f"{what} {text}, {n_bytes >> 20} MiB of float32, one thread",
                unit="GB/s",
                ours=rates(times[i], n_bytes / 1e9),
                baseline=rates(times[2], n_bytes / 1e9),
                baseline_name="memcpy",
            )
            for i, what in enumerate(("encode", "decode"))
        ]
    )
