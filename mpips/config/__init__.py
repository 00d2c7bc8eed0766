"""The job file: its schema, its reader, and its changes to the tables of a task.

Open `schema.py` first: `JobConfig` is the whole file, `load_config` reads it. `options.py` has the options of
a session, which are also keyword arguments of `mpips.run`. `triggers.py` has the events that request a
checkpoint. `reading.py` reads TOML and applies `--set`, `conversion.py` turns plain values into structs and
writes the errors. `overrides.py` applies the sections [table] and [tables.NAME] to the tables of a task.
`producers.py` has the programs of [producers] and what each member of an ensemble is given.
"""
