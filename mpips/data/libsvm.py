"""Reader of LIBSVM (svmlight) text: `label index:value index:value ... # comment`, one sample per line."""

from __future__ import annotations

import mmap
import os

from mpips._native import LibsvmError, parse_libsvm
from mpips.data.compressed import opened_to_map
from mpips.data.dataset import SparseData
from mpips.data.info import Part, describe
from mpips.data.options import ReadOptions, Share
from mpips.errors import DataError


def read_libsvm(path: str, options: ReadOptions, share: Share) -> Part:
    """Read a share of a LIBSVM file; in the result, features are numbered from 0.

    The file is mapped, not copied. Each worker scans all of it, so that all workers find the same number of
    samples and of features, and the same base. `qid:` fields are ignored; unsorted indices are sorted.

    Raises:
        DataError: A line is malformed; names file, line and column.
        OSError: The file cannot be opened.
    """
    base = -1 if options.index_base == "auto" else int(options.index_base)
    with opened_to_map(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise DataError(f"{path}: contains no samples")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            try:
                parsed = parse_libsvm(
                    text, share.stride, share.offset, base, share.shares == "mixed", share.first
                )
            except LibsvmError as error:
                raise DataError(f"{path}:{error}") from None
    labels, indptr, indices, values, n_samples, _, max_index, base = parsed
    n_features = max_index + 1 - base if max_index >= 0 else 0
    data = SparseData(indptr, indices, values, labels, n_features)
    return describe(data, n_samples, path, index_base=base, wants=options.wants)
