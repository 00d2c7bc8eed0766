"""The run directory: its files, who writes which, and the identity of a run.

Open `directory.py` first: `RunFolder` names every file. `files.py` has the records of ranks.json and
events.jsonl.
"""
