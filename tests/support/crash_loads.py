"""The loads of crash tests: rules, policies, sizes and codecs that a life may be in the middle of."""

from __future__ import annotations

import tempfile
from dataclasses import replace

from crash_load import Load, dense, python_rule, rows

from mpips.model import storage
from mpips.model.codec import OneBit, RandomK, SharedInt8, TopK
from mpips.model.consistency import ASP, BSP, SSP, Compensate, Reject, Scale, Switch
from mpips.model.optimizer import FTRL, SGD, Adagrad, Adam, Momentum, PythonRule, RowAdagrad
from mpips.model.row_limits import Idle, MaxRows, MinCount, Probability
from mpips.model.served import served
from mpips.model.storage import Storage
from mpips.model.table import DenseTable, EmbeddingTable, Table


def _of_rules() -> dict[str, Load]:
    """Every optimizer under every consistency."""
    found: dict[str, Load] = {}
    optimizers = {
        "sgd": SGD(0.5),
        "momentum": Momentum(0.5),
        "adam": Adam(0.1),
        "adagrad": Adagrad(0.1),
        "ftrl": FTRL(0.1),
        "python": PythonRule(python_rule, n_state=1),
    }
    models = {"bsp": BSP(), "backup": BSP(backup=1), "ssp": SSP(2), "asp": ASP()}
    for o, optimizer in optimizers.items():
        for m, model in models.items():
            tables = [dense(600, "d", optimizer, model), rows(4, "e", optimizer, model)]
            sizes = [(0, 600, ""), (1, 40, ""), (0, 600, "staged"), (1, 9, "")]
            found[f"{o}-{m}"] = Load(tables, sizes)
    return found


def _queued() -> dict[str, Load]:
    """Records that wait in the ring."""
    found: dict[str, Load] = {}
    tables = [dense(600, "d", SGD(0.5), ASP()), rows(4, "e", SGD(0.5), ASP())]
    sizes = [(0, 600, "staged"), (1, 40, ""), (0, 600, ""), (1, 130, ""), (1, 9, "")]
    found["queued"] = Load(tables, sizes, n_workers=3, drain_every=7)
    tables = [dense(600, "d", Adam(0.1), BSP()), rows(4, "e", Adam(0.1), BSP())]
    found["queued-bsp"] = Load(tables, sizes, n_workers=3, drain_every=7)
    # Rows of the next clock wait in their slots while another worker closes this one.
    tables = [dense(300, "d", Adam(0.1), BSP()), rows(4, "e", SGD(0.5), ASP())]
    sizes = [(1, 9, ""), (1, 130, ""), (0, 300, "")]
    found["mixed"] = Load(tables, sizes, clocks=3, drain_every=1000, pulls=False)
    return found


def _of_policies() -> dict[str, Load]:
    """Policies for stale updates."""
    found: dict[str, Load] = {}
    tables = [
        dense(600, "d", SGD(0.5), ASP(Compensate(0.5))),
        rows(4, "e", Adagrad(0.1), ASP(Scale())),
        dense(40, "r", SGD(0.5), ASP(Reject(1))),
    ]
    sizes = [(0, 600, "base"), (1, 40, ""), (2, 40, ""), (2, 40, "")]
    found["policies"] = Load(tables, sizes)
    return found


def _switching() -> dict[str, Load]:
    """Tables that go from BSP to ASP: sums, then single pushes."""
    model = Switch(BSP(), ASP(Scale()), at=2)
    tables = [dense(600, "d", Momentum(0.5), model), rows(4, "e", Adam(0.1), model)]
    sizes = [(0, 600, ""), (1, 40, ""), (0, 600, "staged"), (1, 9, "")]
    found = {"switch": Load(tables, sizes, clocks=4)}
    tables = [dense(20, "d", Adam(0.1), model), rows(4, "e", SGD(0.5), model)]
    found["small-switch"] = Load(tables, [(0, 20, ""), (1, 7, "")], clocks=4)
    # Decided on before the first push: later lives have it from the memory.
    decided = Switch(BSP(), ASP(Scale()), at="plateau")
    tables = [dense(20, "d", Adam(0.1), decided), rows(4, "e", SGD(0.5), decided)]
    found["small-plateau"] = Load(tables, [(0, 20, ""), (1, 7, "")], clocks=4)
    return found


def _with_changing_backup() -> dict[str, Load]:
    """One backup worker from clock 1 on: the next life finishes a close with the number that it had."""
    model = BSP(backup="auto", max=1)
    tables = [dense(20, "d", Adam(0.1), model), rows(4, "e", SGD(0.5), model)]
    load = Load(tables, [(0, 20, ""), (1, 7, "")], n_workers=3, clocks=3)
    return {"auto-backup": load}


def _of_sizes() -> dict[str, Load]:
    """Large and small pushes."""
    found: dict[str, Load] = {}
    # More than a unit of the journal, and more than a block.
    tables = [dense(20_000, "d", Adam(0.1), ASP()), rows(16, "e", Adam(0.1), ASP())]
    found["large"] = Load(tables, [(0, 20_000, ""), (1, 300, "")], n_workers=1, clocks=1)
    tables = [dense(20_000, "d", Adam(0.1), BSP(backup=1)), rows(16, "e", SGD(0.1), BSP(backup=1))]
    sizes = [(0, 20_000, ""), (1, 300, "")]
    found["large-backup"] = Load(tables, sizes, n_workers=3, clocks=1)
    tables = [dense(300, "d", Adam(0.1), BSP()), rows(4, "e", SGD(0.5), BSP())]
    found["small-bsp"] = Load(tables, [(0, 300, ""), (1, 7, "")], clocks=1)
    tables = [dense(300, "d", SGD(0.5), ASP()), rows(4, "e", Adam(0.1), ASP())]
    sizes = [(0, 300, ""), (1, 60, ""), (0, 300, "staged")]
    found["small-asp"] = Load(tables, sizes, n_workers=1, clocks=1)
    # Rows of several pieces, one after the other.
    tables = [rows(70, "e", Adam(0.1), ASP()), rows(40, "f", Momentum(0.5), ASP())]
    found["small-wide"] = Load(tables, [(0, 5, ""), (1, 6, "")], n_workers=1, clocks=1)
    return found


def _of_whole_rows() -> dict[str, Load]:
    """Rows that are changed as a whole: one state a row, and values of bf16."""
    found: dict[str, Load] = {}
    for m, model in {"bsp": BSP(), "asp": ASP(Compensate(0.5))}.items():
        tables = [
            EmbeddingTable("r", 5, RowAdagrad(0.1, weight_decay=0.1), model, init="normal(0.1)"),
            EmbeddingTable("b", 7, SGD(0.5), model, init="normal(0.1)", row_dtype="bf16"),
            EmbeddingTable("c", 4, RowAdagrad(0.1), model, row_dtype="bf16"),
            EmbeddingTable("d", 6, Adam(0.1), model, row_dtype="bf16"),
        ]
        base = "base" if m == "asp" else ""
        sizes = [(0, 40, base), (1, 40, ""), (2, 9, base), (3, 40, ""), (1, 9, "")]
        found[f"whole-{m}"] = Load(tables, sizes)
    # More than a unit of the journal.
    tables = [EmbeddingTable("b", 20, RowAdagrad(0.5), ASP(), row_dtype="bf16")]
    found["whole-large"] = Load(tables, [(0, 400, "")], n_workers=1, clocks=1)
    tables = [EmbeddingTable("b", 40, SGD(0.5), ASP(), row_dtype="bf16")]
    found["small-whole"] = Load(tables, [(0, 5, ""), (0, 6, ""), (0, 4, "")], n_workers=1, clocks=1)
    tables = [
        EmbeddingTable("r", 5, RowAdagrad(0.1), BSP()),
        EmbeddingTable("b", 7, SGD(0.5), BSP(), row_dtype="bf16"),
    ]
    sizes = [(0, 40, ""), (1, 130, ""), (1, 9, "")]
    found["pair-whole"] = Load(tables, sizes, drain_every=3, partner=True)
    return found


def _with_partner() -> dict[str, Load]:
    """A server with a copy, in which the lives go on."""
    found: dict[str, Load] = {}
    tables = [dense(600, "d", Adam(0.1), BSP()), rows(4, "e", Adam(0.1), BSP())]
    sizes = [(0, 600, ""), (1, 40, ""), (0, 600, ""), (1, 130, ""), (1, 9, "")]
    found["pair-bsp"] = Load(tables, sizes, drain_every=3, partner=True)
    tables = [dense(600, "d", Momentum(0.5), ASP()), rows(4, "e", Adagrad(0.1), ASP())]
    # With one worker there is one order only.
    found["pair-asp"] = Load(tables, sizes, 1, drain_every=3, partner=True)
    return found


def _of_stages() -> dict[str, Load]:
    """Tables of the stages of a model beside one of all workers: means over different workers."""
    found: dict[str, Load] = {}
    tables: list[Table] = [
        replace(dense(300, "d", Adam(0.1), BSP()), stage=0),
        replace(rows(4, "e", Adam(0.1), BSP()), stage=1),
        replace(rows(4, "f", SGD(0.5), SSP(1)), stage=1),
        dense(20, "a", Momentum(0.5), BSP()),
    ]
    sizes = [(0, 300, ""), (1, 9, ""), (2, 7, ""), (3, 20, ""), (1, 130, ""), (0, 300, "staged")]
    found["stages"] = Load(tables, sizes, n_workers=4)
    found["pair-stages"] = Load(tables, sizes[:5], n_workers=4, drain_every=3, partner=True)
    return found


def _limited() -> dict[str, Load]:
    """Tables whose rows come and go: rows move while others are made, changed and pulled."""
    limits = {
        "e": {"evict": Idle(1)},
        "f": {"evict": MaxRows(9, by="lfu"), "admit": MinCount(2, within=3, memory_mib=1)},
        "g": {"evict": MaxRows(8), "admit": Probability(0.7)},
        "h": {"evict": Idle(1), "admit": MinCount(2, within=2, memory_mib=1)},
    }
    tables: list[Table] = [
        EmbeddingTable(name, 4, Adam(0.1), BSP(), **limit) for name, limit in limits.items()
    ]
    sizes = [(0, 12, ""), (1, 14, ""), (2, 14, ""), (3, 9, "")]
    load = Load(tables, sizes, clocks=4)
    # The tables of the copy are made from the memory of the server, and consume its records.
    pair = Load(tables, sizes, clocks=4, drain_every=3, partner=True)
    small = Load([tables[0], tables[2]], [(0, 7, ""), (1, 9, "")], n_workers=1, clocks=4)
    # Rows that are changed as a whole.
    whole: list[Table] = [
        EmbeddingTable("r", 5, RowAdagrad(0.1), BSP(), **limits["e"]),
        EmbeddingTable("b", 4, Adam(0.1), BSP(), row_dtype="bf16", **limits["f"]),
        EmbeddingTable("c", 3, RowAdagrad(0.1), BSP(), row_dtype="bf16", **limits["g"]),
    ]
    of_whole = Load(whole, sizes[:3], clocks=4)
    pair_whole = Load(whole, sizes[:3], clocks=4, drain_every=3, partner=True)
    return {
        **{"limited": load, "small-limited": small, "pair-limited": pair},
        **{"whole-limited": of_whole, "pair-whole-limited": pair_whole},
    }


def _stored() -> dict[str, Load]:
    """Tables of which eight rows lie in memory, the others in a file; a push has more rows than that."""
    tables: list[Table] = [
        EmbeddingTable("e", 4, Adam(0.1), BSP()),
        EmbeddingTable("f", 5, RowAdagrad(0.1), BSP(), init="normal(0.1)", row_dtype="bf16"),
        EmbeddingTable("g", 70, Momentum(0.5), ASP(), init="normal(0.1)"),
    ]
    folder, least = tempfile.gettempdir(), storage.LEAST_ROWS
    storage.LEAST_ROWS = 8
    try:
        stored: list[Table] = [
            replace(table, storage=Storage(folder, 8 * table.row_bytes / 2**20))
            for table in tables
            if isinstance(table, EmbeddingTable)
        ]
    finally:
        storage.LEAST_ROWS = least
    sizes = [(0, 12, ""), (1, 14, ""), (2, 9, ""), (0, 4, ""), (2, 3, "")]
    small = Load([stored[0], stored[2]], [(0, 12, ""), (1, 9, "")], n_workers=1, clocks=3)
    return {"stored": Load(stored, sizes, clocks=4), "small-stored": small}


def _encoded() -> dict[str, Load]:
    """Pushes and pulls with codecs."""
    found: dict[str, Load] = {}
    # Blocks of 128 values in records of 960 bytes; each launch repeats the rounding of the one before.
    for m, model in {"bsp": BSP(), "asp": ASP()}.items():
        tables = [
            DenseTable("d", (3000,), Adam(0.1), model, compression="int8", pull_compression="int8"),
            EmbeddingTable(
                "e", 20, Adagrad(0.1), model, compression="int8", pull_compression="bf16"
            ),
            EmbeddingTable("f", 3, SGD(0.5), model, compression="fp16"),
        ]
        sizes = [(0, 3000, ""), (1, 40, ""), (2, 150, ""), (0, 3000, "")]
        found[f"encoded-{m}"] = Load(tables, sizes, n_workers=2 if m == "bsp" else 1)
    return found


def _with_residuals() -> dict[str, Load]:
    """Pushes with residuals."""
    found: dict[str, Load] = {}
    # A push with a residual takes one record (topk), or several (onebit).
    for m, model in {"bsp": BSP(), "asp": ASP()}.items():
        tables = [
            DenseTable("t", (700,), Momentum(0.5), model, compression=TopK(0.1)),
            DenseTable("o", (8000,), SGD(0.5), model, compression=OneBit()),
            DenseTable("r", (900,), SGD(0.5), model, compression=RandomK(0.5)),
        ]
        sizes = [(0, 700, ""), (1, 8000, ""), (2, 900, ""), (0, 700, ""), (1, 8000, "")]
        found[f"feedback-{m}"] = Load(tables, sizes, n_workers=2 if m == "bsp" else 1)
    return found


def _with_shared_scales() -> dict[str, Load]:
    """Pushes whose scales all workers share."""
    found: dict[str, Load] = {}
    # The first clock is sent as floats. A block of `s` takes two records, a record of `t` several blocks.
    tables = served(
        [
            DenseTable("s", (3000,), Momentum(0.5), BSP(), compression=SharedInt8(2048)),
            DenseTable("t", (1500,), SGD(0.5), BSP(), compression=SharedInt8(48)),
        ]
    )
    sizes = [(0, 3000, ""), (1, 1500, ""), (0, 3000, "")]
    found["shared"] = Load(tables, sizes, clocks=3)
    found["shared-queued"] = Load(tables, sizes, n_workers=3, clocks=3, drain_every=7)
    found["pair-shared"] = Load(tables, sizes, clocks=3, drain_every=3, partner=True)
    # All records of a worker's clock fit into its ring, so that workers need not take turns.
    table = DenseTable("s", (2500,), Adam(0.1), BSP(), compression=SharedInt8(600))
    load = Load(served([table]), [(0, 2500, "staged")], 3, 4, alternates=True)
    found["shared-alternating"] = load
    return found


def _of_differences() -> dict[str, Load]:
    """Pulls of differences."""
    found: dict[str, Load] = {}
    # Pulls are differences: their copy takes several units.
    for m, model in {"bsp": BSP(), "backup": BSP(backup=1)}.items():
        tables = [
            DenseTable("t", (700,), Momentum(0.5), model, pull_compression=TopK(0.1)),
            DenseTable("o", (9000,), SGD(0.5), model, pull_compression=OneBit()),
            DenseTable(
                "p", (300,), PythonRule(python_rule, n_state=1), model, pull_compression=OneBit()
            ),
        ]
        sizes = [(0, 700, ""), (1, 9000, "staged"), (2, 300, ""), (0, 700, "")]
        found[f"differences-{m}"] = Load(tables, sizes, clocks=3)
        if m == "bsp":
            sizes = [(0, 700, ""), (1, 9000, "")]
            found["differences-pair"] = Load(tables, sizes, drain_every=3, partner=True)
    return found


def _heavy() -> dict[str, Load]:
    """Pushes that take long."""
    found: dict[str, Load] = {}
    for m, model in {"bsp": BSP(), "backup": BSP(backup=1), "asp": ASP()}.items():
        dim = 70 if m == "asp" else 32
        tables = [dense(150_000, "d", Adam(0.1), model), rows(dim, "e", Adam(0.1), model)]
        sizes = [(0, 150_000, "staged"), (1, 3000, ""), (0, 150_000, "")]
        found[f"heavy-{m}"] = Load(tables, sizes, slot_bytes=1 << 17)
    return found


# Records hold 240 floats: a dense table of 600 is pushed in three segments; 40 rows of 4 in three that
# fit into the ring, 130 in seven that do not.
def loads() -> dict[str, Load]:
    """All loads by name."""
    return {
        **_of_rules(),
        **_queued(),
        **_of_policies(),
        **_switching(),
        **_with_changing_backup(),
        **_of_sizes(),
        **_of_whole_rows(),
        **_with_partner(),
        **_of_stages(),
        **_limited(),
        **_stored(),
        **_encoded(),
        **_with_residuals(),
        **_with_shared_scales(),
        **_of_differences(),
        **_heavy(),
    }
