"""Rows of servers on other nodes that the workers of a node read for each other.

rows.py    one worker's end, and why a copied row is as good as one that is read: open it first
part.py    the memory, as start-up makes it
start.py   start-up of the memory
"""
