"""Groups of workers, which sum their updates before they are sent, and what the workers of a node pull once.

tables.py      the part of one worker while the job is at work, and why each update counts once: open it first
level.py       one level of a group: slices that are added up, ends of clocks, messages between nodes
applied.py     what servers have applied of a group's updates under SSP and ASP
rows.py        sums of rows; row_areas.py is their memory, row_group.py the side of an embedding handle
handover.py    residuals of codecs, which the leader of a group passes on
node_pulls.py  values of dense tables that a node pulls once
part.py        what start-up makes
start.py       start-up; memory.py: layouts and sizes
"""
