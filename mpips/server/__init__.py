"""One server: its shards, its region and the loop that consumes records.

Open `server.py`: it makes the memory and runs the loop. The native code in native/src/server consumes records
and applies updates to shards.
"""
