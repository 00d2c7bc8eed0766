"""Programs that `mpips doctor` runs in processes of their own; these may load MPI."""
