"""The operating-system process of a rank and its forked children. Open `forked.py` first."""
