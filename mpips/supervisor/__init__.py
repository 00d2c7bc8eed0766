"""The supervisor: starts mpirun, says what became of it, and starts it again. Imports no MPI."""
