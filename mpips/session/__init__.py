"""One job: start-up, wiring, roles at work, shutdown; and all roles in one process.

Open `session.py` (`mpips.run`) or `driver.py` (its path for one rank and for several), then `job.py`. Scripts
with `mpips.init` (`init.py`, `script.py`) have the job of a library: `script_job.py`.
"""
