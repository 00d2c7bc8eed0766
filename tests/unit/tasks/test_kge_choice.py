"""Values that the task kge chooses by the graph: bounds, who wins, and that a run keeps them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from kge_rig import job, lines

import mpips
from mpips.checkpoint import list_checkpoints, open_checkpoint
from mpips.data import DataInfo
from mpips.mpi.one_rank import OneRank
from mpips.rundir.directory import read_json
from mpips.tasks import Task
from mpips.tasks.kge import Kge
from mpips.tasks.kge_choice import AFFORDABLE, GraphSize, choose, core_seconds, reason
from mpips.tasks.kge_losses import sampled_softmax
from mpips.tasks.kge_options import KgeOptions
from mpips.training.choices import FILE, ChoiceFile, agree_on_choice
from mpips.training.prepare import prepare
from mpips.training.train import train

CODEX_S, WN18RR = GraphSize(2_034, 32_888), GraphSize(40_943, 86_835)


def test_the_values_of_the_graph_that_they_were_tuned_on_are_those_of_earlier_versions() -> None:
    chosen = choose(CODEX_S, 512, True, True)
    own = KgeOptions()
    assert own.resolved(2_034, chosen) == own.resolved(2_034)
    assert (chosen["train.epochs"], chosen["train.batch_size"]) == (40, 128)


@pytest.mark.parametrize("dim", [16, 32, 128, 512, 4096])
@pytest.mark.parametrize(
    "graph",
    [
        CODEX_S,
        WN18RR,
        GraphSize(14, 1_592),
        GraphSize(14_541, 272_115),
        GraphSize(5_000_000, 20_000_000),
    ],
)
def test_all_entities_are_candidates_exactly_where_that_is_affordable(
    graph: GraphSize, dim: int
) -> None:
    chosen = choose(graph, dim, True, True)
    negatives, epochs = chosen["options.negatives"], chosen["train.epochs"]
    whole = core_seconds(graph, dim, epochs, graph.entities)
    assert (negatives == 0) == (whole <= AFFORDABLE or graph.entities <= 512)
    assert chosen["options.correction"] == (negatives > 0)
    if negatives > 512:
        assert core_seconds(graph, dim, epochs, negatives) <= AFFORDABLE
    assert negatives == 0 or 512 <= negatives <= min(4096, graph.entities)


def test_a_sparse_graph_has_no_dropout_and_a_small_one_has_enough_steps() -> None:
    assert choose(WN18RR, 32, True, True) | {"options.dropout": 0.0, "options.n3": 0.05} == choose(
        WN18RR, 32, True, True
    )
    assert choose(WN18RR, 512, True, True)["options.n3"] == 0.1
    # 13 steps an epoch.
    assert choose(GraphSize(14, 1_592), 512, True, True)["train.epochs"] == math.ceil(4000 / 13)
    assert choose(GraphSize(5, 10), 512, True, True)["train.epochs"] == 400


@pytest.mark.parametrize(
    ("graph", "dim", "epochs"),
    [
        (WN18RR, 32, 100),
        (WN18RR, 512, 50),  # with 4,096 negatives no more are affordable
        (GraphSize(20_000, 60_000), 32, 100),
        (GraphSize(25_000, 80_000), 32, 60),  # against all entities
        (GraphSize(5_000_000, 19_000_000), 32, 50),
        (GraphSize(40_943, 4 * 40_943), 32, 40),  # not sparse
    ],
)
def test_a_sparse_graph_has_as_many_epochs_as_are_affordable(
    graph: GraphSize, dim: int, epochs: int
) -> None:
    chosen = choose(graph, dim, True, True)
    assert chosen["train.epochs"] == epochs
    assert chosen["options.negatives"] == (4096 if graph.entities > 30_000 else 0) or epochs == 50
    # The search for distances takes another time, which is not estimated.
    assert choose(graph, dim, False, False)["train.epochs"] == (40 if epochs == 40 else 50)


def test_distances_have_no_choice_of_a_softmax() -> None:
    chosen = choose(WN18RR, 64, False, False)
    assert {name for name in chosen if name.startswith("options.")} == set()
    resolved = KgeOptions(model="transe").resolved(40_943, chosen)
    assert resolved == KgeOptions(model="transe").resolved(40_943)


def test_given_options_win_and_given_negatives_have_no_correction() -> None:
    chosen = choose(WN18RR, 512, True, True)
    assert chosen["options.negatives"] == 4096
    given = KgeOptions(negatives=256, n3=0.25, dropout=0.125)
    found = given.resolved(40_943, chosen)
    assert (found.negatives, found.n3, found.dropout) == (256, 0.25, 0.125)
    assert found.correction is False
    assert KgeOptions(negatives=256, correction=True).resolved(40_943, chosen).correction is True
    assert KgeOptions().resolved(40_943, chosen).correction is True
    assert KgeOptions(correction=False).resolved(40_943, chosen).correction is False


def test_the_correction_makes_the_sum_over_negatives_that_over_all_candidates() -> None:
    # Whichever 2 of the 6 others are drawn, each stands for 3 of them.
    right, negatives = np.zeros(1), np.log(np.array([[2.0, 5.0]]))
    none = np.zeros((1, 2), bool)
    loss, by_right, by_negatives = sampled_softmax(right, negatives, none, 6)
    assert loss == pytest.approx(math.log(1 + 3 * (2 + 5)))
    np.testing.assert_allclose(by_right, 1 / 22 - 1)
    np.testing.assert_allclose(by_negatives, [[6 / 22, 15 / 22]])
    # A negative that is the answer does not count, and the other one stands for all 6.
    loss, _, _ = sampled_softmax(right, negatives, np.array([[False, True]]), 6)
    assert loss == pytest.approx(math.log(1 + 6 * 2))


def test_the_summary_says_what_was_chosen_and_why(tmp_path: Path) -> None:
    config = job(tmp_path, ("train.epochs", 1), ("options.n3", 0.5))
    found = train(config, "none", verbose=False).value.model
    assert found == (
        "complex, dim 16, reciprocal relations; softmax against all entities; n3 0.5, dropout 0 (values left "
        "out are chosen for 14 entities, few triples for each (1.6), dim 16; 1-vs-all takes less than a "
        "minute on two cores: affordable)"
    )
    assert "too long" in reason(512, choose(WN18RR, 512, True, True))


class Chosen(Task):
    """A task that chooses by the number of samples."""

    chosen_for: ClassVar[list[int]] = []

    @classmethod
    def choose(cls, info: DataInfo, options: Any) -> dict[str, Any]:
        cls.chosen_for.append(info.n_samples_total)
        return {"train.epochs": info.n_samples_total}


def info(n: int) -> DataInfo:
    return DataInfo(n, n, 0, (), "own")


def test_a_supervised_run_chooses_once(tmp_path: Path) -> None:
    config = job(tmp_path, ("checkpoint.folder", ""))
    none = msgspec.defstruct("None_", [])()
    Chosen.chosen_for.clear()
    for n in (7, 9):
        found = agree_on_choice(OneRank(), config, Chosen, none, info(n), tmp_path)
        assert found == {"train.epochs": 7}
    assert Chosen.chosen_for == [7]
    written = read_json(tmp_path / FILE, ChoiceFile)
    assert written == ChoiceFile({"train.epochs": 7})
    # Without a run directory nothing is kept or written.
    assert agree_on_choice(OneRank(), config, Chosen, none, info(9), None) == {"train.epochs": 9}
    assert agree_on_choice(OneRank(), config, Task, none, info(9), tmp_path) == {}


def test_a_run_from_a_checkpoint_keeps_what_was_chosen_though_the_file_has_changed(
    tmp_path: Path,
) -> None:
    left_out = (("train.epochs", 0), ("train.batch_size", 0))
    first = prepare(OneRank(), 1, job(tmp_path, *left_out))
    assert (first.n_epochs, first.batch_size) == (400, 128)
    assert first.info.chosen["graph.triples"] == 22
    train(job(tmp_path, ("train.epochs", 1)), "none", verbose=False)

    # Many more triples of the same names: a new run would choose otherwise.
    again = job(tmp_path, *left_out)
    names = [f"p{i}\tfriend\tp{j}" for i in range(12) for j in range(12)]
    (tmp_path / "train.tsv").write_text("\n".join([*lines(0, 11), *names]) + "\n")
    fresh = prepare(OneRank(), 1, job_of(again, "never"))
    assert fresh.info.chosen["graph.triples"] == 155
    assert fresh.info.chosen != first.info.chosen
    kept = prepare(OneRank(), 1, again)
    assert kept.info.chosen == first.info.chosen
    assert kept.task._options == first.task._options  # type: ignore[attr-defined]


def test_a_checkpoint_of_an_earlier_version_goes_on_with_its_own_values(tmp_path: Path) -> None:
    train(job(tmp_path, ("train.epochs", 1)), "none", verbose=False)
    newest = list_checkpoints(tmp_path / "c")[-1].path
    with open_checkpoint(newest) as checkpoint:
        described = dict(checkpoint.manifest.data)
    assert described["chosen"]["options.dropout"] == 0.0
    del described["chosen"]
    task = Kge(DataInfo.from_config(described), KgeOptions(dim=16), 7)
    assert (task._options.n3, task._options.dropout, task._options.negatives) == (0.01, 0.3, 0)
    assert "chosen" not in task.describe_model()
    # And a description without choices is written as it always was.
    assert "chosen" not in DataInfo.from_config(described).to_config()
    assert mpips.load(tmp_path / "c").info.chosen["graph.triples"] == 22


def job_of(config: Any, resume: str) -> Any:
    return msgspec.structs.replace(
        config, checkpoint=msgspec.structs.replace(config.checkpoint, resume=resume)
    )
