"""The worker as programs see it, with its handles of dense and embedding tables and its requests.

Open `worker.py` first, then `dense.py` and `embedding.py`. `connection.py` is what all of them use: channels,
the clock, waits and staging memory.
"""
