"""Train by the command line's function and print the statistics of the whole job.

planned.py TASK DATA BATCH SERVERS [WIDTH]: one line of JSON from the first worker.
"""

import json
import sys

from mpips.config.schema import load_config
from mpips.training.train import train

task, data, batch, servers, *width = sys.argv[1:]
overrides = [
    ("task", task),
    ("data.train", data),
    ("train.epochs", 1),
    ("train.batch_size", int(batch)),
    ("cluster.servers", int(servers)),
    ("cluster.timeout_s", 60.0),
]
if width:
    overrides.append(("options.hidden", [int(width[0])]))
outcome = train(load_config(None, overrides), "none", verbose=False)
if outcome.is_first_worker:
    print(json.dumps(outcome.statistics))
