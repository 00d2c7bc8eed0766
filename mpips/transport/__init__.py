"""Shared memory and the channels between a worker and a server: shm, rma, p2p and local.

Open `channel.py` first: `Channel` is the interface of every transport, and `connect.py` chooses a transport
for each pair of worker and server. `region.py` makes, sizes and removes shared memory. `remote.py` is the
ring over a network, by `rma.py` or `p2p.py`, whose server's part is `p2p_service.py`. `area.py` allocates
rendezvous buffers for large dense updates.
"""
