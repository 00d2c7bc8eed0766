"""Text for a terminal: width and colours in `screen.py`, the file to open first; tables; elapsed times."""
