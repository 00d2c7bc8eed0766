"""Error feedback of codecs: what a worker's pushes have not sent yet.

residuals.py   the residuals of one worker, and why none is lost or doubled; mpips.worker.image starts them
"""
