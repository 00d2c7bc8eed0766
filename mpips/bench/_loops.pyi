"""Loops that benchmarks compare with. Not in every wheel."""

import numpy as np
import numpy.typing as npt

def stream_names(past_cache: bool = False) -> list[str]: ...
def stream_in_place(x: npt.NDArray[np.float32], factor: float, streams: str) -> None: ...
def stream_copy(dst: npt.NDArray[np.float32], src: npt.NDArray[np.float32]) -> None: ...
def stream_sum(
    dst: npt.NDArray[np.float32], src: npt.NDArray[np.float32], streams: str
) -> None: ...
def stream_triad(
    a: npt.NDArray[np.float32],
    b: npt.NDArray[np.float32],
    c: npt.NDArray[np.float32],
    factor: float,
    past_cache: bool,
    streams: str,
) -> None: ...
def stream_touch(
    values: npt.NDArray[np.float32],
    state: list[npt.NDArray[np.float32]],
    gradient: npt.NDArray[np.float32],
    streams: str,
) -> None: ...
def handover(
    words: npt.NDArray[np.uint64],
    shared: npt.NDArray[np.float32],
    own: npt.NDArray[np.float32],
    is_first: bool,
    n: int,
    limit_s: float,
) -> float: ...

class _Pybind11Type(type):
    """The type of all classes of the module."""

class RobinMap(metaclass=_Pybind11Type):
    def __init__(self, capacity: int) -> None: ...
    def __len__(self) -> int: ...
    def insert(self, keys: npt.NDArray[np.int64]) -> None: ...
    def find(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]: ...
