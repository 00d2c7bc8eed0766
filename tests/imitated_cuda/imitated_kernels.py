"""Kernels of an imitated CUDA device: torch computes them on the CPU.

Each operator of torch with a CUDA kernel gets one that reads its inputs at once, after the earlier requests
of its stream, and whose results are written when the host or another stream waits for the stream. Operators
without a CPU kernel raise NotImplementedError. Random numbers depend on the seed and the offset of the
device's generator, as with CUDA, but differ from those of CUDA.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map

# Operators whose CUDA kernels launch nothing.
_KEPT = {
    "_efficientzerotensor",
    "_local_scalar_dense",
    "_pin_memory",
    "_reshape_alias",
    "alias",
    "as_strided",
    "copy_",
    "empty.memory_format",
    "empty_strided",
    "is_pinned",
    "is_set_to",
    "record_stream",
    "resize_",
    "set_",
    "set_.source_Storage",
    "set_.source_Storage_storage_offset",
    "set_.source_Tensor",
    "unfold",
    "view",
    "view_as_complex",
    "view_as_real",
}
_MIX = 1_000_003

_runtime = ctypes.CDLL(None)
for _name in ("imitated_cuda_read", "imitated_cuda_write"):
    _arguments = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    getattr(_runtime, _name).argtypes = _arguments


def _span(tensor: torch.Tensor) -> int:
    """Return the number of bytes from the first element to the last."""
    if not tensor.numel():
        return 0
    lengths = zip(tensor.shape, tensor.stride(), strict=True)
    return int((1 + sum((n - 1) * stride for n, stride in lengths)) * tensor.itemsize)


def _call(function: str, to: int, source: int, n_bytes: int) -> None:
    stream = torch.cuda.current_stream().cuda_stream
    if getattr(_runtime, function)(to, source, n_bytes, stream):
        raise RuntimeError("CUDA error: unspecified launch failure")


def _read(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the device on the CPU, with its strides."""
    n_bytes = _span(tensor)
    raw = torch.empty(n_bytes, dtype=torch.uint8, device="cpu")
    if n_bytes:
        _call("imitated_cuda_read", raw.data_ptr(), tensor.data_ptr(), n_bytes)
    return raw.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())


def _write(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Write values into a tensor of the device."""
    n_bytes = _span(tensor)
    if not n_bytes:
        return
    raw = torch.empty(n_bytes, dtype=torch.uint8, device="cpu")
    if n_bytes != tensor.numel() * tensor.itemsize:
        # The bytes between its elements keep their values.
        _call("imitated_cuda_read", raw.data_ptr(), tensor.data_ptr(), n_bytes)
    raw.view(tensor.dtype).as_strided(tensor.shape, tensor.stride()).copy_(values)
    _call("imitated_cuda_write", tensor.data_ptr(), raw.data_ptr(), n_bytes)


def _is_of_device(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.device.type == "cuda"


@contextlib.contextmanager
def _randomness(generator: torch.Generator | None, device: torch.device) -> Iterator[None]:
    """Let torch's generator of the CPU draw from that of the device."""
    own: Any = generator or torch.cuda.default_generators[device.index]
    if own.device.type == "cpu":
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed((own.initial_seed() * _MIX + own.get_offset()) % 2**63)
    own.set_offset(own.get_offset() + 4)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


class _Kernel:
    """The kernel of one operator."""

    def __init__(self, op: Any) -> None:
        self._op = op
        arguments = op._schema.arguments
        self._arguments = [(a.name, str(a.type) == "Tensor") for a in arguments]
        self._written = {a.name for a in arguments if a.alias_info and a.alias_info.is_write}
        # Its schema does not say that it writes these.
        if op.name().startswith("aten::native_batch_norm") and "backward" not in op.name():
            self._written |= {"running_mean", "running_var"}
        self._is_random = torch.Tag.nondeterministic_seeded in op.tags
        # CUDA kernels that change lists of tensors count the change themselves.
        self._counts = op.name().startswith("aten::_foreach")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        named: list[tuple[str, Any]] = []
        for given, (name, is_tensor) in zip(args, self._arguments, strict=False):
            # A tensor without dimensions that stands for a number arrives as this number.
            if is_tensor and isinstance(given, bool | int | float | complex):
                given = torch.tensor(given, device="cpu")
            named.append((name, given))
        everything = [part for _, part in named] + list(kwargs.values())
        device = _device_of(everything)
        generators = [part for part in everything if isinstance(part, torch.Generator)]
        owners: dict[int, torch.Tensor] = {}
        written: list[tuple[torch.Tensor, torch.Tensor]] = []
        with torch.cuda.device(device):

            def on_cpu(name: str, given: Any) -> Any:
                def of(x: Any) -> Any:
                    if isinstance(x, torch.Generator):
                        return None
                    if isinstance(x, torch.device):
                        return torch.device("cpu") if x.type == "cuda" else x
                    if not _is_of_device(x):
                        return x
                    found = _read(x)
                    owners[id(found)] = x
                    if name in self._written:
                        written.append((x, found))
                    return found

                return tree_map(of, given)

            positional = [on_cpu(name, given) for name, given in named]
            by_name = {name: on_cpu(name, given) for name, given in kwargs.items()}
            drawing = _randomness(generators[0] if generators else None, device)
            with drawing if self._is_random else contextlib.nullcontext():
                result = self._op(*positional, **by_name)
            for there, here in written:
                if there.shape != here.shape:
                    there.resize_(here.shape)
                _write(there, here)
                if self._counts:
                    torch.autograd.graph.increment_version(there)

            def on_device(x: Any) -> Any:
                if not isinstance(x, torch.Tensor) or x.device.type != "cpu":
                    return x
                if id(x) in owners:
                    return owners[id(x)]
                new = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
                _write(new, x)
                return new

            return tree_map(on_device, result)


def _device_of(everything: list[Any]) -> torch.device:
    for part in everything:
        for x in part if isinstance(part, list | tuple) else [part]:
            if _is_of_device(x):
                return torch.device(x.device)
            if isinstance(x, torch.device) and x.type == "cuda" and x.index is not None:
                return x
    return torch.device("cuda", torch.cuda.current_device())


class _Copy:
    """copy_: torch's own one where it launches no kernel."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __call__(
        self, keys: Any, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False
    ) -> torch.Tensor:
        are_alike = (target.dtype, target.shape) == (source.dtype, source.shape)
        are_dense = target.is_contiguous() and source.is_contiguous()
        one_device = target.device == source.device or target.device.type != source.device.type
        if are_alike and are_dense and one_device and target.is_conj() == source.is_conj():
            self._original.call_boxed(keys, target, source, non_blocking)
            return target
        with torch.cuda.device(target.device if _is_of_device(target) else source.device):
            both = _is_of_device(target) and _is_of_device(source)
            # Between two devices the copy waits for both streams, and both wait for it.
            streams = [torch.cuda.current_stream(t.device) for t in (target, source) if both]
            if both:
                streams[0].wait_stream(streams[1])
            here = _read(source) if _is_of_device(source) else source
            if both:
                streams[1].wait_stream(streams[0])
            if _is_of_device(target):
                _write(target, here.to(target.dtype).expand(target.shape))
            else:
                target.copy_(here)
        return target


_libraries: list[
    torch.library.Library
] = []  # torch removes the kernels of a library without references


def install() -> None:
    """Replace the CUDA kernels of all operators of torch in this process."""
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    torch.backends.cudnn.enabled = False  # the CPU has no operators of its name
    for name in torch._C._dispatch_get_all_op_names():
        short = name.removeprefix("aten::")
        if short == name or short in _KEPT:
            continue
        if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA"):
            continue
        packet, _, overload = short.partition(".")
        op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if op is not None:
            library.impl(short, _Kernel(op), "CUDA", allow_override=True)
    original = torch.library.get_kernel("aten::copy_", "CUDA")
    library.impl("copy_", _Copy(original), "CUDA", with_keyset=True, allow_override=True)
