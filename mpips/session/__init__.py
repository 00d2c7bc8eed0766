"""One job: start-up, wiring, roles at work, shutdown; and all roles in one process.

Open `session.py` (`mpips.run`) or `driver.py` (its path for one rank and for several), then `job.py`. The jobs of
libraries in scripts (`mpips.init` in `init.py`) begin, continue and end in `script_job.py`.
"""
