"""The suites by name: those of this folder, and those of `mpips bench`, to record their figures, too."""

from __future__ import annotations

from mpips.bench import measure
from mpips.bench import suites as of_users
from mpips.bench.measure import Bars
from mpips.bench.suites import Suites
from tests.bench import bars

# name -> (module, description). Each module has `run(suite, options, nodes) -> Findings`.
OWN: Suites = {
    name: (f"tests.bench.{name}", what)
    for name, what in {
        "train": "whole training steps beside NumPy; idle and oversubscribed ranks",
        "fused": "update rules of the kernels; torch.optim with fused=True",
        "maps": "lookups of the key map; tsl::robin_map",
        "data": "readers of files, data read in windows; scikit-learn, pandas, pyarrow",
        "logistic": "training of the task logistic; Vowpal Wabbit",
        "word2vec": "word vectors of the task word2vec; gensim",
        "diloco": "bytes and loss of a language model under DiLoCo; data-parallel BSP",
        "placement": "steps with placement = 'auto'; all on servers, all replicated",
        "links": "look-ahead, groups of workers, order of values on a link of 1 Gb/s",
        "monitor": "runs with metrics, logs and traces, and without",
        "kills": "launches that end at random places: lost and doubled updates",
        "scale": "messages, memory and scheduler work from 1 to 32 ranks",
        "soak": "growth of memory, open files and /dev/shm in a long run",
    }.items()
}
SUITES: Suites = {**of_users.SUITES, **OWN}
BARS: Bars = {**measure.BARS, **bars.BARS}
