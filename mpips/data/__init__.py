"""Samples: readers, the share of each worker, batches in a defined order, and metrics.

The folder uses no MPI. Open `readers.py` first, then `loader.py`. The steps of a worker:

part = read("train.svm", stride=n_workers, offset=worker)
info = combine(all_infos)                # the infos of the parts of all workers, in worker order
data = align(part.data, info)            # labels become classes 0..k-1, or remain targets
for cursor, batch in Loader(data, info.n_samples_total, ...):
    ...
"""

from typing import TYPE_CHECKING

from mpips.process.lazy import lazy_names

if TYPE_CHECKING:
    from mpips.data.dataset import Batch, Dataset, DenseBatch, DenseData, SparseBatch, SparseData
    from mpips.data.info import DataInfo, Part, align, combine
    from mpips.data.loader import Cursor, Loader, local_count
    from mpips.data.moments import Moments
    from mpips.data.options import ReadOptions
    from mpips.data.readers import READERS, read
    from mpips.data.sampling import Leg, Sampling, Shape
    from mpips.data.several import files_of

__all__ = [
    "READERS",
    "Batch",
    "Cursor",
    "DataInfo",
    "Dataset",
    "DenseBatch",
    "DenseData",
    "Leg",
    "Loader",
    "Moments",
    "Part",
    "ReadOptions",
    "Sampling",
    "Shape",
    "SparseBatch",
    "SparseData",
    "align",
    "combine",
    "files_of",
    "local_count",
    "read",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "mpips.data.dataset": [
                "Batch",
                "Dataset",
                "DenseBatch",
                "DenseData",
                "SparseBatch",
                "SparseData",
            ],
            "mpips.data.info": ["DataInfo", "Part", "align", "combine"],
            "mpips.data.loader": ["Cursor", "Loader", "local_count"],
            "mpips.data.moments": ["Moments"],
            "mpips.data.options": ["ReadOptions"],
            "mpips.data.readers": ["READERS", "read"],
            "mpips.data.sampling": ["Leg", "Sampling", "Shape"],
            "mpips.data.several": ["files_of"],
        },
    )
