"""Shared memory and the channels between a worker and a server: shm, rma, p2p and local.

Open `channel.py` first: `Channel` is what every transport offers, `connect.py` chooses one per pair.
`region.py` makes, sizes and removes shared memory; `remote.py` is the ring over a network; `area.py` and
`area_push.py` carry large dense updates.
"""
