"""What the page of comparisons says that mpips does not have, it does not have.

Each denial of the page is listed here beside the names that a feature against it would have: of options,
commands, exported names and files. The day a table gets `storage`, "rows are never moved to disk" fails.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator

import msgspec
import pytest
from documents import DOCS, ROOT, parts

import mpips
from mpips.config.schema import JobConfig
from mpips.errors import ConfigError

PAGE = (DOCS / "comparison.md").read_text()
DENIES = re.compile(r"\b(no|not|never|none|neither|nor|without|only|cannot|nothing)\b", re.I)

# A part of the sentence, and a pattern of names that would contradict it.
LACKING = {
    "no replicas and no balancing of load": r"mpips serve --(replicas|workers|processes)|load_balanc",
    "a row is cached for the announced batches only": r"row_cache_mib|cache_rows|hot_rows",
    "no tables on devices": r"device_rows|rows_on_device|gpu_table|device_embedding",
    "no message queues": r"kafka|pulsar|rabbitmq",
    "no generated features but parts of dates and logarithms": r"crossed|polynomial|feature_gener",
    "no FP8 storage": r"fp8|float8",
    "without neighbours": r"neighbou?r_sampl",
    "no graph neural networks, no sampling, no partitions of a graph": r"\bgnn|graph_sage|graph_partition",
    "no sharded forward pass on GPUs": r"fsdp|fully_shard",
    "No interleaved schedules, no GPUs": r"interleaved",
    "only a last one of very many classes": r"tensor_parallel|column_parallel|row_parallel",
    "nothing changes it by load": r"by_load|auto_?scal",
    "no quorum of DiLoCo's fragments, no time of grace, no weights by tokens": r"quorum|token_weight",
    "it submits none to a batch system": r"producers\.(slurm|sbatch|submit|launcher|nodes)",
    "Samples go through no codec": r"(stream|sample)_(codec|compression)",
    "no database": r"database|redis_server",
    "runs no models there": r"mpips_(predict|infer|model)",
}
# Of mpips, and of what no name would contradict.
OTHER = (
    "nothing is known about its speed on a GPU",
    "were not used lately",
    "`evict`](howto/embeddings.md#limits) removes rows under BSP only",
    "on several ranks only adds work",
    "computed and imitated ([Many ranks](design/scale.md)), not measured",
    "worse on GPUs, where it was not tested",
    "tested on an imitated CUDA runtime only",
    "BytePS has neither sparse tables nor fault tolerance",
    "admission and eviction of rows under BSP only",
    "keys without a vocabulary",
    "rows for which memory has no space",
    "datasets without indices",
    "Eviction under BSP only",
    "without GPUs or cloud services",
    "workers need not meet at all",
    "an MPI job without a cluster service",
    "continues in memory without lost updates",
    "continue without a pause",
    "the samples of a lost replica are not trained there",
    "a clock may close without late workers",
    "BSP without backup workers",
    "no daemons, no ports, no extra cluster software",
)


def denials(text: str) -> Iterator[str]:
    """Yield the sentences and clauses that deny something of mpips; of tables the last cell is about it."""
    for line in text[text.index("## ") :].splitlines():
        if line.startswith("## "):
            continue
        about = line.rsplit(" | ", 1)[-1] if line.startswith("| ") else line
        for clause in re.split(r"(?<=[.;:])\s", about):
            if DENIES.search(clause):
                yield clause


def public_names() -> str:
    """Return names of options, commands, exports, files and functions of the C library, a line each."""
    found = {*mpips.__all__, *(path.stem for path in ROOT.glob("mpips/**/*.py"))}
    for section in msgspec.structs.fields(JobConfig):
        if isinstance(section.default, msgspec.Struct):
            fields = section.default.__struct_fields__
            found |= {f"{section.name}.{name}" for name in fields}
    for name, command in parts().commands():
        found |= {name, *(f"{name} {option}" for one in command.params for option in one.opts)}
    for path in ROOT.glob("native/src/**/mpips.h"):
        found |= set(re.findall(r"\bmpips_\w+(?=\()", path.read_text()))
    return "\n".join(sorted(found))


def contradicting(pattern: str) -> list[str]:
    return [name for name in public_names().splitlines() if re.search(pattern, name)]


def test_every_denial_of_the_page_is_checked() -> None:
    lists = (*LACKING, *OTHER)
    assert [text for text in lists if text not in PAGE] == []
    assert [text for text in denials(PAGE) if not any(one in text for one in lists)] == []


@pytest.mark.parametrize(("text", "pattern"), LACKING.items())
def test_no_name_contradicts_a_denial(text: str, pattern: str) -> None:
    assert contradicting(pattern) == [], text


def test_denials_of_what_exists_are_found() -> None:
    """These were once on the page, and true."""
    old = "## When\n- Rows lie in memory. They are never moved to disk, and none is removed."
    assert list(denials(old)) == ["They are never moved to disk, and none is removed."]
    assert "table.storage" in contradicting("storage|disk")
    assert "table.evict" in contradicting("evict")
    assert "producers.command" in contradicting(r"^producers\.")


@pytest.mark.parametrize(
    "make",
    [
        lambda: mpips.EmbeddingTable("t", 4, consistency=mpips.SSP(1), evict=mpips.Idle(3)),
        lambda: mpips.EmbeddingTable("t", 4, consistency=mpips.ASP(), admit=mpips.MinCount(3)),
        lambda: mpips.EmbeddingTable(
            "t", 4, evict=mpips.Idle(3), storage=mpips.Storage("/local", 8)
        ),
    ],
    ids=["evict under SSP", "admit under ASP", "evict with storage"],
)
def test_what_the_page_says_is_refused_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        make()


def test_gpus_were_not_measured_as_the_page_says() -> None:
    pages = "".join(path.read_text() for path in sorted(DOCS.glob("howto/torch*.md")))
    assert ("mpips has not run on a GPU yet" in pages) == (
        "nothing is known about its speed on a GPU" in PAGE
    )


def test_what_the_page_recommends_exists() -> None:
    """Names between backticks are those of options, commands, tasks, exports or their attributes."""
    known = public_names()
    assert importlib.util.find_spec("mpips.torch") is not None
    for name in re.findall(r"`([a-z_0-9]+)`", PAGE):
        assert re.search(rf"(^|\.){name}$", known, re.M), name
    for name in re.findall(r"`(mpips [a-z ]+)`", PAGE):
        assert name in known.splitlines(), name
