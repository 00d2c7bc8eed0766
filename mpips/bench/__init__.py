"""`mpips bench`: measure mpips on this machine against baselines.

Each measurement alternates with its baseline in the same run, and the result is the ratio of the two. Ratios
depend much less on the machine and on noise than times do. Open `suites.py` first: it lists the suites. A
suite's module has `run(suite, options, nodes)`; `rank/` has the programs that a suite starts on ranks.
"""
