"""What a terminal shows of a run: the progress line, `mpips top`, the summary at the end."""
