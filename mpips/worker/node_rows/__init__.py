"""Rows of servers on other nodes that the workers of a node read for each other.

rows.py    one worker's end, and why a copied row is as good as one that is read: open it first
start.py   start-up of the memory
"""
