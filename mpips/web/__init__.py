"""The page of a run: `mpips web` serves it, `mpips report` writes it into one file.

Open `run_data.py` first: it reads the files of a run directory and holds what the page shows of them.
`server.py` sends it to browsers, `report.py` embeds it into a file, `plot.py` draws it into a picture. The
page itself (HTML, CSS, JavaScript) lies in `page/`; it loads nothing from elsewhere. Its charts are drawn by
uPlot, of which `page/uplot/` has the files of the npm package, unchanged. Nothing here writes into a run
directory.
"""
