"""One server: its shards, its region and its loop.

Open `server.py`; the work is done in native/src/server.
"""
