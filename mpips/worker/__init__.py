"""The worker as programs see it, with its handles of dense and embedding tables and its requests.

Open `worker.py` first, then `dense.py` and `embedding.py`.
"""
