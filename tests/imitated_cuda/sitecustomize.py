"""In processes with the imitated CUDA runtime: replaces torch's kernels when torch is imported."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from typing import Any


class _AfterTorch:
    """A finder that runs `imitated_kernels.install` behind the import of torch."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                from imitated_kernels import install

                install()

            loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _AfterTorch())
