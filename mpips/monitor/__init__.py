"""The terminal's view of a run: the progress line, `mpips top`, the summary at the end.

Open `progress.py` first: what is shown of a run, and the displays that show it. `line.py` replaces one line
of a terminal in place, `terminal.py` finds that terminal through the launcher. `top.py` reads a run
directory; `summary.py` writes the block at the end of a run, whose lines are in `summary_text.py`.
"""
