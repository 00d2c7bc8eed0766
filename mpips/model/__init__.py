"""Plain values that describe a job: tables, optimizers, initialisers, consistency, partitions, placement.

The folder uses neither MPI nor files. Open `table.py` first. `placement.py` computes which server holds which
part of a table; `accepted.py` checks values against the annotations of their fields. `table_options.py`
checks the options of a table; files of single options, such as `storage.py`, know no tables.
"""
