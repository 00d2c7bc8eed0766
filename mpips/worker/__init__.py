"""The worker as programs see it, with its handles of dense and embedding tables and its requests.

Open `worker.py` first, then `dense.py` and `embedding.py`. All of them use the `Connection` of
`connection.py`: channels, the clock, waits, staging memory. The folder `paths` contains the paths of dense
updates to a server.
"""
