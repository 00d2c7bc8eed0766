"""Replicated tables: every worker's node holds all values, and workers sum and apply updates themselves.

handle.py   what a program uses
tables.py   the part of one worker while the job is at work: open it first
part.py     what start-up makes
start.py    start-up; memory.py: the memory of a node
"""
