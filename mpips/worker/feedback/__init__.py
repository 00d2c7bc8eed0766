"""Error feedback of codecs: what a worker's pushes have not sent yet.

residuals.py   the residuals of one worker, and why none is lost or doubled
start.py       start-up: new ones, those of a checkpoint, or those of the launch before
"""
