"""Text for a terminal: tables with aligned columns in `table.py`, the file to open first; quantities."""
