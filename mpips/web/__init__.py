"""The page of a run: `mpips web` serves it, `mpips report` writes it into one file.

Open `run_data.py` first: it reads the files of a run directory and holds what the page shows of them.
`server.py` sends it to browsers, `report.py` embeds it into a file. The page itself (HTML, CSS, JavaScript)
lies in `page/`; it loads nothing from elsewhere. Nothing here writes into a run directory.
"""
