"""Look-aheads: rows of later batches travel while the program computes.

lookahead.py     what a program uses: open it first
table_ahead.py   one table of it
row_cache.py     rows that the worker has; planned_rows.py: pulls and pushes by plan

Rows that the workers of a node read for each other: mpips.worker.node_rows.
"""
