"""Programs that `mpips doctor` runs in processes of their own, since they may load MPI."""
