"""Look-aheads: rows of later batches travel while the program computes.

lookahead.py     what a program uses: open it first
table_ahead.py   one table of it
row_cache.py     rows that the worker has; planned_rows.py: which batches need them
held_rows.py     rows that the workers of a node read for each other
start.py         start-up of that memory
"""
