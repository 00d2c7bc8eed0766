"""The job file: its schema, how it is read, and what it changes in a task's tables.

Open `schema.py` first: `JobConfig` is the whole file, `load_config` reads it. `options.py` has the options
of a session, which `mpips.run` takes as keyword arguments; `triggers.py` says when checkpoints are due;
`overrides.py` applies the `[tables]` section.
"""
