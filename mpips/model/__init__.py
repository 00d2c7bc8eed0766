"""Plain values that describe a job: tables, optimizers, initialisers, consistency, partitions, placement.

No MPI and no files. Open `table.py` first; `placement.py` says which server holds what.
"""
