"""Learning beside a simulation: workers that push samples, and workers that learn from them.

    stream_table.py   StreamTable: what a sample is, how many are held, which ones
    declared.py       a stream, as its producers and readers use it
    layout.py         a sample as a row of float32, and back
    moments.py        mean and standard deviation of fields over all that was produced
    slots.py          where a sample goes, or that it is left out: by counts and seed alone
    uses.py           counts of the uses of each sample by a reader
    counts.py         what a producer counts, as a row
    producer.py       the pushing side
    programs.py       producers that are programs: a worker serves their queues
    attached.py       such a program in Python: mpips.attach
    reader.py         the learning side: random batches, held-out samples, waits

Samples are rows of an embedding table whose rule is Replace. The promises of rows hold for them: pushes are
one-sided, count once whatever dies, and are in checkpoints.
"""
