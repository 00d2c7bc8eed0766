"""The terminal's view of a run: the progress line, `mpips top`, the summary at the end."""
