"""Text for a terminal: aligned tables. The file to open first is `table`."""
