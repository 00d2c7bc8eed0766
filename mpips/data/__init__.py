"""Samples: readers, each worker's share of them, batches in order, and metrics. No MPI here.

part = read("train.svm", stride=n_workers, offset=worker)
info = combine(all_infos)                # the infos of every worker's part, in worker order
data = align(part.data, info)            # labels become classes 0..k-1, or stay targets
for cursor, batch in Loader(data, info.n_samples_total, ...):
    ...
"""

from mpips.data.dataset import Batch, Dataset, DenseBatch, DenseData, SparseBatch, SparseData
from mpips.data.info import DataInfo, Part, align, combine
from mpips.data.loader import Cursor, Loader, local_count
from mpips.data.moments import Moments
from mpips.data.options import ReadOptions
from mpips.data.readers import READERS, read
from mpips.data.sampling import Leg, Sampling, Shape

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
    "local_count",
    "read",
]
