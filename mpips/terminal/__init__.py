"""Text for a terminal: tables with aligned columns. Open `table.py`, the only file, first."""
