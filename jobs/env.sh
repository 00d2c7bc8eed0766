# The one site-specific file. Every script in jobs/ and tests/ sources it. Source it, too, before you call
# mpirun or mpips by hand:   source jobs/env.sh
# It may be sourced more than once, and before the set-up has run.

# --- Your site -----------------------------------------------------------------------------------
# Load here what a login shell does not have. If an MPI module is loaded, jobs/setup.sh builds against that
# MPI instead of installing one:
#   module purge
#   module load gcc openmpi/5.0 hdf5/1.14-mpi
# A parallel HDF5 outside any module:
#   export HDF5_DIR=/opt/hdf5-parallel
# The network that Open MPI uses on nodes with several:
#   export OMPI_MCA_btl_tcp_if_include=ib0 PRTE_MCA_prte_if_include=ib0

# --- Settings for all sites ----------------------------------------------------------------------
mpips_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Activate the environment that MPIPS_VENV names, or the one that jobs/setup.sh made.
if [[ -x ${MPIPS_VENV:-$mpips_root/.venv}/bin/python ]]; then
  export VIRTUAL_ENV=${MPIPS_VENV:-$mpips_root/.venv}
  case ":$PATH:" in
    ":$VIRTUAL_ENV/bin:"*) ;;
    *) export PATH="$VIRTUAL_ENV/bin:$PATH" ;;
  esac
fi

# Allow Open MPI to run as root, which is the only user of a container; each setting needs a confirmation.
if [[ $(id -u) == 0 ]]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

# Without InfiniBand, windows of UCX are slow or fail over TCP, and Debian's Open MPI 4 switches off the
# component that works. "Every component but UCX" avoids both.
if [[ -z ${OMPI_MCA_osc:-} && -z $(ls /sys/class/infiniband 2>/dev/null) ]]; then
  export OMPI_MCA_osc=^ucx
fi

# Use one thread in each rank unless the batch system grants more cores.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}

# mpirun_flags N: print the flags that mpirun needs for N ranks. In an allocation the batch system sets the
# slots. Elsewhere Open MPI starts more ranks than cores only with --oversubscribe, and must not bind them to
# cores then. MPICH needs no flags.
mpirun_flags() {
  local cores
  if [[ -n ${SLURM_JOB_ID:-}${PBS_JOBID:-}${LSB_JOBID:-} ]]; then
    return 0
  fi
  # Count cores, as Open MPI does, not hardware threads. nproc would count OMP_NUM_THREADS.
  cores=$(lscpu -p=CORE,SOCKET 2>/dev/null | grep -v '^#' | sort -u | wc -l)
  if [[ $cores == 0 || $cores -gt $(env -u OMP_NUM_THREADS nproc) ]]; then
    cores=$(env -u OMP_NUM_THREADS nproc)
  fi
  if ((cores < $1)) && [[ $(mpirun --version 2>&1) == *"Open MPI"* ]]; then
    printf '%s' "--oversubscribe --bind-to none"
  fi
}
