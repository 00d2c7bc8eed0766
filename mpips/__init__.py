"""A parameter server for MPI clusters."""

__version__ = "0.1.0"
