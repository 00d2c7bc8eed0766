"""Samples that are held out for validation: exact sizes, the same for all numbers of workers, no overlap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from thread_ranks import prepared

import mpips
from mpips.config.schema import load_config
from mpips.data import Loader, Sampling, Shape
from mpips.data.holdout import Holdout, HoldoutSide
from mpips.data.stream import StreamedData
from mpips.errors import ConfigError, DataError
from mpips.training.train import train


def places(holdout: Holdout, n: int, is_held: bool) -> np.ndarray:
    side = HoldoutSide(holdout, n, is_held)
    return side.places(np.arange(side.n))


@pytest.mark.parametrize("n", [0, 1, 5, 255, 256, 257, 5000, 256 * 4097 + 3])
@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.5, 0.99])
def test_each_sample_is_on_one_side_and_the_sizes_follow_the_fraction(
    n: int, fraction: float
) -> None:
    holdout = Holdout(fraction, 7)
    held, others = places(holdout, n, True), places(holdout, n, False)
    assert (np.diff(held) > 0).all()
    assert (np.diff(others) > 0).all()
    assert np.array_equal(np.sort(np.concatenate([held, others])), np.arange(n))
    whole = n // 256 * 256
    assert (held < whole).sum() == int(whole * fraction)


def test_the_sides_depend_on_seed_and_place_alone() -> None:
    held = places(Holdout(0.1, 7), 5000, True)
    # More samples behind do not change what is before; another seed does.
    more = places(Holdout(0.1, 7), 50_000, True)
    assert np.array_equal(more[: len(held)], held)
    assert not np.array_equal(places(Holdout(0.1, 8), 5000, True), held)
    # The draws are those of this version for ever: a run that continues has the same validation samples.
    assert held[:6].tolist() == FIRST
    # Any order of numbers.
    side = HoldoutSide(Holdout(0.1, 7), 5000, False)
    numbers = np.random.default_rng(1).permutation(side.n)
    assert np.array_equal(side.places(numbers), places(Holdout(0.1, 7), 5000, False)[numbers])
    # A file that is sorted by class has its classes on both sides in proportion.
    assert abs((held < 2500).sum() - 250) <= 26


FIRST = [0, 20, 29, 43, 60, 114]


def lines(folder: Path, form: str) -> Path:
    """A file of 1,000 samples whose feature is the number of the sample."""
    path = folder / f"data.{form}"
    if form == "csv":
        path.write_text("number,y\n" + "".join(f"{i},{i % 2}\n" for i in range(1000)))
    else:
        path.write_text("".join(f"{i % 2} 1:{i}\n" for i in range(1000)))
    return path


def sides(path: Path, n_workers: int, *more: tuple[str, Any]) -> tuple[list[int], list[int]]:
    """The numbers of the samples on both sides, of all workers."""
    pairs = [("task", "softmax"), ("data.train", str(path)), ("data.validation", 0.1), *more]
    found = prepared(load_config(None, pairs), n_workers)
    train: list[int] = []
    held: list[int] = []
    for inputs in found:
        for data, numbers in ((inputs.train, train), (inputs.test, held)):
            assert data is not None
            batch = data.take(np.arange(data.n))
            numbers += np.rint(batch.densify(1 << 12).max(axis=1)).astype(int).tolist()
    assert found[0].n_test == len(held)
    assert found[0].info.n_samples_total == len(train)
    return train, held


@pytest.mark.parametrize("memory_mib", [1024.0, 0.01], ids=["in memory", "in windows"])
@pytest.mark.parametrize("form", ["csv", "svm"])
def test_the_same_samples_are_held_out_by_any_number_of_workers(
    tmp_path: Path, memory_mib: float, form: str
) -> None:
    path = lines(tmp_path, form)
    expected = places(Holdout(0.1, 0), 1000, True)
    for n_workers in (1, 2, 3, 5):
        train, held = sides(path, n_workers, ("data.memory_mib", memory_mib))
        assert sorted(held) == expected.tolist()
        assert sorted(train + held) == list(range(1000))
        if n_workers > 1:
            assert len(set(train)) == len(train)


def test_moments_and_batches_of_windows_have_training_samples_only(tmp_path: Path) -> None:
    path = lines(tmp_path, "csv")
    pairs = [("task", "softmax"), ("data.train", str(path)), ("data.validation", 0.1)]
    config = load_config(None, [*pairs, ("data.memory_mib", 0.01)])
    (inputs,) = prepared(config, 1)
    assert isinstance(inputs.train, StreamedData)
    parts = list(inputs.train.parts())
    assert len(parts) > 1
    rest = places(Holdout(0.1, 0), 1000, False)
    assert np.concatenate([part.x[:, 0] for part in parts]).astype(int).tolist() == rest.tolist()
    loader = Loader(
        inputs.train,
        len(rest),
        1,
        0,
        7,
        0,
        sampling=Sampling(Shape.of_job(len(rest), 1, 7, 0, inputs.block, inputs.window)),
    )
    read = np.concatenate([batch.x[:, 0] for _, batch in loader.until(1)])
    assert sorted(read.astype(int).tolist()) == rest.tolist()


def job(path: Path, *more: tuple[str, Any]) -> Any:
    pairs = [
        ("task", "softmax"),
        ("data.train", str(path)),
        ("data.validation", 0.1),
        ("train.epochs", 2),
        *more,
    ]
    return train(load_config(None, pairs), "none", verbose=False).value


def test_the_metrics_are_those_of_the_held_out_samples(tmp_path: Path) -> None:
    path = lines(tmp_path, "csv")
    folder = tmp_path / "model"
    result = job(path, ("checkpoint.folder", str(folder)), ("train.patience", 5))
    text = path.read_text().splitlines()
    held = tmp_path / "held.csv"
    chosen = places(Holdout(0.1, 0), 1000, True).tolist()
    held.write_text("\n".join([text[0], *(text[1 + i] for i in chosen)]) + "\n")
    found = mpips.load(folder).evaluate(held)
    for name, value in found.items():
        assert result.metrics[name] == pytest.approx(value, rel=1e-5)
    # Another division would evaluate samples that this model was trained on.
    for name, value in (("data.validation", 0.2), ("cluster.seed", 1), ("data.validation", 0)):
        with pytest.raises(ConfigError, match="samples would be evaluated that were trained on"):
            job(path, ("checkpoint.folder", str(folder)), (name, value))
    assert job(path, ("checkpoint.folder", str(folder)), ("train.epochs", 3)).epochs == 3


@pytest.mark.parametrize(("n", "folds"), [(1000, 5), (768, 3), (100, 7), (300, 2), (10, 5), (4, 5)])
def test_folds_are_disjoint_and_have_all_samples(n: int, folds: int) -> None:
    found = [places(Holdout(0.0, 3, folds, fold), n, True).tolist() for fold in range(1, folds + 1)]
    assert sorted(place for fold in found for place in fold) == list(range(n))
    assert sorted({len(fold) for fold in found}) in ([n // folds], [n // folds, n // folds + 1])
    for fold, own in enumerate(found):
        rest = places(Holdout(0.0, 3, folds, fold + 1), n, False).tolist()
        assert sorted(own + rest) == list(range(n))
    # They depend on the seed, and not on the samples behind, but in the last block of 256.
    others = [places(Holdout(0.0, 8, folds, fold), n, True).tolist() for fold in (1, 2)]
    assert others != found[:2]
    longer, whole = places(Holdout(0.0, 3, folds, 1), n + 500, True), n // 256 * 256
    assert longer[longer < whole].tolist() == [place for place in found[0] if place < whole]


def test_a_job_holds_one_fold_out(tmp_path: Path) -> None:
    path = lines(tmp_path, "csv")
    fold = [("data.validation", 0.0), ("data.folds", 4), ("data.fold", 2)]
    for n_workers in (1, 3):
        train, held = sides(path, n_workers, *fold)
        assert sorted(held) == places(Holdout(0.0, 0, 4, 2), 1000, True).tolist()
        assert sorted(train + held) == list(range(1000))


def test_more_folds_than_samples_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(4)))
    pairs = [("task", "softmax"), ("data.train", str(path)), ("data.folds", 5), ("data.fold", 5)]
    with pytest.raises(
        DataError,
        match=r"fold = 5 of data.folds = 5 of 4 samples leaves none for va.*"
        "use at most 4 folds",
    ):
        prepared(load_config(None, pairs), 1)


def test_a_class_that_only_held_out_samples_have_is_known(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    chosen = int(places(Holdout(0.1, 0), 1000, True)[3])
    rows = [f"{i},{'rare' if i == chosen else 'ab'[i % 2]}\n" for i in range(1000)]
    path.write_text("x,label\n" + "".join(rows))
    (inputs,) = prepared(
        load_config(
            None, [("task", "softmax"), ("data.train", str(path)), ("data.validation", 0.1)]
        ),
        1,
    )
    assert inputs.info.label_names == ("a", "b", "rare")


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ([("data.train", "digits")], ConfigError, "is no file of which samples can be held"),
        ([("data.validation", 1e-6)], DataError, "of 1,000 samples leaves none for validation"),
        ([("data.validation", 1.0)], ConfigError, "data.validation = 1.0: must be"),
        (
            [("data.folds", 3), ("data.fold", 1)],
            ConfigError,
            "are both set: a fold is the validation",
        ),
        (
            [("data.folds", 3), ("data.fold", 4)],
            ConfigError,
            "data.folds = 3, data.fold = 4: must be 2",
        ),
        (
            [("data.folds", 1), ("data.fold", 1)],
            ConfigError,
            "data.folds = 1, data.fold = 1: must be 2",
        ),
        (
            [("task", "word2vec")],
            ConfigError,
            "data.validation = 0.1 has no effect: task 'word2vec' reads its files itself",
        ),
    ],
)
def test_what_cannot_be_held_out_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    more: list[Any],
    error: type[Exception],
    message: str,
) -> None:
    lines(tmp_path, "csv")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        job(Path("data.csv"), *more)
