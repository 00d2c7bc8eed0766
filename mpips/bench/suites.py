"""The suites of `mpips bench` by name."""

from __future__ import annotations

import importlib
from typing import Any

from mpips.bench.launching import Options
from mpips.bench.measure import Findings

# name -> (module of mpips.bench, description). Each module has `run(suite, options, nodes) -> Findings`.
SUITES: dict[str, tuple[str, str]] = {
    "kernels": ("kernels", "optimizers and the row map in one process"),
    "push": ("dense", "dense pushes of 4 KiB to 64 MiB on a node"),
    "pull": ("dense", "dense pulls of 4 KiB to 64 MiB on a node"),
    "embedding": ("embedding", "pushes and pulls of rows on a node"),
    "transport": ("transport", "pushes and pulls between nodes"),
    "train": ("train", "whole training steps; idle and oversubscribed ranks"),
    "checkpoint": ("checkpoint", "checkpoints written by two servers, and verified"),
    "recovery": (
        "recovery",
        "kills under mpips run: time to the next step, lost and doubled updates",
    ),
    "network": ("network", "codecs, and steps over links of 1 and 0.1 Gb/s between two nodes"),
    "data": (
        "reading",
        "readers of files, data that is read in windows; scikit-learn, pandas, pyarrow",
    ),
    "logistic": ("linear", "training of the task logistic; Vowpal Wabbit"),
    "plan": ("plan", "seconds per step: prediction of mpips plan and measurement"),
    "torch": ("torch_models", "steps of PyTorch models; plain torch and DistributedDataParallel"),
    "gpu": ("gpu", "copies and steps with parameters on a CUDA device; plain torch there"),
    "diloco": ("diloco", "bytes and loss of a language model under DiLoCo; data-parallel BSP"),
    "placement": ("placement", "steps with placement = 'auto'; all on servers, all replicated"),
    "word2vec": ("word_vectors", "word vectors of the task word2vec; gensim"),
    "monitor": ("monitoring", "runs with metrics, logs and traces, and without"),
    "scale": ("scale", "messages, memory and scheduler work from 1 to 32 ranks"),
    "soak": ("scale", "growth of memory, open files and /dev/shm in a long run"),
}
ALL = ("kernels", "push", "pull", "embedding", "transport", "train", "checkpoint")


def run_suite(name: str, options: Options, nodes: int) -> Findings:
    """Run one suite.

    Args:
        name: A key of SUITES, or "all" (the suites in ALL).
        options: Repetitions and sizes.
        nodes: 1: this machine only; 2: two imitated nodes (network namespaces); 0: the suite decides.
    """
    found = Findings()
    for suite in ALL if name == "all" else (name,):
        module: Any = importlib.import_module(f"mpips.bench.{SUITES[suite][0]}")
        found.add(module.run(suite, options, nodes))
    return found
