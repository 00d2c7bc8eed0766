"""Records of asynchronous runs: the order in which servers applied updates, and what pulls have seen.

Everything that timing decides in a job of servers and workers is in these two: the same program with the
same data repeats the run from them, with the same bits. Open `files.py` first: the files of a record.
`writer.py` writes them while the job is at work, `reading.py` reads the entries for the history check in
`history.py`, which shares no code with the servers. The native part is native/src/record.
"""
