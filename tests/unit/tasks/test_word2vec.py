"""The task word2vec: from a text to vectors, neighbours and files of other programs."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpips
from mpips.config.schema import load_config
from mpips.errors import ConfigError, DataError
from mpips.inference.exporting import export
from mpips.tasks.word_rows import WordModel, damping, thresholds, updates_of
from mpips.tasks.word_similarity import WordPairs, spearman
from mpips.training.train import train

ANIMALS, TOOLS = (
    ["cat", "dog", "cow", "hen", "pig", "owl"],
    ["saw", "axe", "nail", "file", "drill", "clamp"],
)


def topics(folder: Path, n: int = 1500) -> str:
    """Write sentences, each with words of one of two topics."""
    rng = np.random.default_rng(1)
    lines = [" ".join(rng.choice(ANIMALS if i % 2 else TOOLS, 6)) for i in range(n)]
    path = folder / "topics.txt"
    path.write_text("\n".join(lines))
    return str(path)


def trained(folder: Path, path: str, **options: Any) -> dict[str, Any]:
    """Train in this process with checkpoints in a folder; return the metrics."""
    given = {
        "task": "word2vec",
        "data.train": path,
        "data.test": options.pop("test", ""),
        "train.epochs": options.pop("epochs", 3),
        "train.batch_size": 2,
        "checkpoint.folder": str(folder / "ckpt"),
    }
    given |= options.pop("jobs", {})
    own = {"dim": 20, "chunk_words": 200, "learning_rate": 0.1, **options}
    given |= {f"options.{name}": value for name, value in own.items()}
    config = load_config(None, list(given.items()))
    found: dict[str, Any] = train(config, progress="none", verbose=False).value.metrics
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a model of the topics once."""
    found = tmp_path_factory.mktemp("topics")
    trained(found, topics(found), sample=0.0)
    return found


def test_neighbours_are_of_the_same_topic(folder: Path, tmp_path: Path) -> None:
    model = mpips.load(folder / "ckpt")
    (tmp_path / "words.txt").write_text("cat saw\nunicorn hen")
    columns = model.columns(tmp_path / "words.txt")
    assert columns is not None
    assert columns["word"].tolist() == ["cat"] * 10 + ["saw"] * 10 + ["hen"] * 10
    assert set(columns["neighbour"][:5]) == set(ANIMALS) - {"cat"}
    assert set(columns["neighbour"][10:15]) == set(TOOLS) - {"saw"}
    for start in (0, 10, 20):
        assert (np.diff(columns["cosine"][start : start + 10]) <= 0).all()
    assert model.notes == (f"{tmp_path / 'words.txt'}: 1 of 4 words are not in the model: unicorn",)
    (tmp_path / "none.txt").write_text("unicorn")
    with pytest.raises(DataError, match=r"none of its words \(unicorn\)"):
        model.columns(tmp_path / "none.txt")


def read_vectors(path: Path, binary: bool) -> dict[str, np.ndarray]:
    """Read a file of word vectors, written independently of the code that writes it."""
    data = path.read_bytes()
    head, _, rest = data.partition(b"\n")
    n, dim = map(int, head.split())
    found = {}
    if not binary:
        for line in rest.decode().splitlines():
            word, *values = line.split(" ")
            found[word] = np.array([float(v) for v in values], np.float32)
    while binary and rest:
        word, _, rest = rest.partition(b" ")
        found[word.decode()] = np.frombuffer(rest[: 4 * dim], "<f4")
        rest = rest[4 * dim + 1 :]
    assert len(found) == n
    return found


@pytest.mark.parametrize("kind", ["word2vec", "word2vec-binary"])
def test_exported_vectors_are_those_of_the_table(folder: Path, tmp_path: Path, kind: str) -> None:
    model, out = mpips.load(folder / "ckpt"), tmp_path / "vectors"
    export(model, kind, out)
    words = model.arrays["vocabulary/words"].tobytes().decode().split()
    table: Any = model.tables.table("input")
    rows = dict(zip(words, table.pull(np.arange(12)), strict=True))
    assert sorted(words) == sorted(ANIMALS + TOOLS)
    found = read_vectors(out, kind != "word2vec")
    assert list(found) == words
    assert all(np.array_equal(found[word], rows[word]) for word in words)

    gensim = pytest.importorskip("gensim.models")
    loaded = gensim.KeyedVectors.load_word2vec_format(str(out), binary=kind != "word2vec")
    assert loaded.index_to_key == words
    assert all(np.array_equal(loaded[word], rows[word]) for word in words)


def test_only_word_vectors_have_this_form(folder: Path, tmp_path: Path) -> None:
    model = mpips.load(folder / "ckpt")
    model.manifest.config["task"] = "mlp"
    with pytest.raises(ConfigError, match="the model's task is 'mlp': must be 'word2vec'"):
        export(model, "word2vec", tmp_path / "vectors")


@pytest.mark.parametrize("model", ["skip_gram", "cbow"])
def test_training_lowers_the_loss_and_orders_pairs(tmp_path: Path, model: str) -> None:
    path = topics(tmp_path)
    near = [f"{a}\t{b}\t9" for a, b in itertools.pairwise(ANIMALS)]
    far = [f"{a.upper()}\t{b}\t1" for a, b in zip(ANIMALS, TOOLS, strict=True)]
    (tmp_path / "pairs.txt").write_text("\n".join(["word1\tword2\tmean", *near, *far, "x y 3"]))
    found = trained(
        tmp_path, path, model=model, sample=0.0, test=path, similarity=str(tmp_path / "pairs.txt")
    )
    # Six of twelve words occur in a window: the loss of words of equal probability is greater.
    assert found["example_loss"] < 0.9 * 6 * np.log(2)
    # The scores of two groups against cosines, of which those of one group are greater.
    assert found["similarity"] > 0.8


def test_equal_jobs_give_equal_bits(tmp_path: Path) -> None:
    path = topics(tmp_path, 200)
    rows = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        trained(tmp_path / name, path, epochs=1)
        table: Any = mpips.load(tmp_path / name / "ckpt").tables.table("input")
        rows.append(table.pull(np.arange(12)))
    assert np.array_equal(*rows)


def test_a_restart_in_the_middle_of_an_epoch_gives_the_same_bits(tmp_path: Path) -> None:
    path, ckpt = topics(tmp_path, 300), tmp_path / "ckpt"

    def rows() -> list[np.ndarray]:
        tables = mpips.load(ckpt).tables
        handles: list[Any] = [tables.table("input"), tables.table("output")]
        return [handle.pull(np.arange(12)) for handle in handles]

    saving = {"checkpoint.every_steps": 3, "checkpoint.keep_last": 99}
    trained(tmp_path, path, epochs=2, chunk_words=60, jobs=saving)
    undisturbed = rows()
    steps = sorted(step for step in ckpt.iterdir() if step.name.startswith("step-"))
    middle = steps[0]
    assert middle.name == "step-000000000003"
    assert len(steps) > 1
    for step in ckpt.iterdir():
        if step != middle:
            step.unlink() if step.is_symlink() or step.is_file() else shutil.rmtree(step)
    assert not np.array_equal(rows()[0], undisturbed[0])
    trained(tmp_path, path, epochs=2, chunk_words=60)
    assert all(np.array_equal(a, b) for a, b in zip(rows(), undisturbed, strict=True))


def test_a_text_of_one_word_is_trained(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("word " * 2500)
    found = trained(tmp_path, str(tmp_path / "one.txt"), sample=0.0)
    assert 0 <= found["loss"] < np.log(2)  # of the word alone: no negative sample counts


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "contains no words"),
        (" \n\n", "contains no words"),
        ("a b c a\n", "none of its 3 different words occurs 5 times: set options.min_count"),
        ("a\0b", "NUL"),
    ],
)
def test_a_text_without_words_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "bad.txt").write_text(content)
    with pytest.raises(DataError, match=message):
        trained(tmp_path, str(tmp_path / "bad.txt"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("table.optimizer", "adagrad"), "task 'word2vec' pushes changes of values"),
        (("schedule.name", "linear"), "changes its learning rate itself"),
        (("data.label", "y"), "task 'word2vec' reads its files itself"),
    ],
)
def test_settings_that_would_change_pushes_are_refused(
    tmp_path: Path, more: tuple[str, str], message: str
) -> None:
    given = [("task", "word2vec"), ("data.train", topics(tmp_path, 50)), more]
    with pytest.raises(ConfigError, match=message):
        train(load_config(None, given), progress="none", verbose=False)


def test_words_are_kept_with_the_probabilities_of_the_original() -> None:
    counts = np.array([900, 90, 9, 1])
    found = thresholds(counts, 0.01) / 2.0**32
    share = counts / 1000 / 0.01
    assert found == pytest.approx(np.minimum(1 / np.sqrt(share) + 1 / share, 1), rel=1e-9)
    assert (thresholds(counts, 0.0) == 1 << 32).all()


def test_the_pool_has_the_probabilities_of_negative_samples() -> None:
    counts = np.array([1000, 100, 10, 1])
    given: dict[str, Any] = {"skip_gram": True, "window": 5, "negative": 5, "sample": 0.0}
    model = WordModel(counts, exponent=0.75, n_pool=100_000, seed=3, **given)
    shares = np.bincount(model.pool(11), minlength=4) / 100_000
    wanted = counts**0.75 / (counts**0.75).sum()
    assert shares == pytest.approx(wanted, abs=5 * 0.5 / np.sqrt(100_000))
    assert not np.array_equal(model.pool(11, 100), model.pool(12, 100))


def test_few_updates_add_up_and_many_are_averaged() -> None:
    for n in (2, 3, 50):
        factors = damping(np.array([0, 1e-6, 1, 10, 1e4], np.float32), n)
        assert factors[:2].tolist() == [1, 1]
        assert (np.diff(factors) <= 0).all()
        assert factors[-1] == np.float32((1 + 2 / n**2) / n)


def test_updates_are_counted_as_expected() -> None:
    counts = np.array([50, 30, 20])
    given: dict[str, Any] = {"skip_gram": True, "window": 3, "negative": 2, "sample": 0.0}
    model = WordModel(counts, exponent=0.75, n_pool=8, seed=3, **given)
    tokens, starts = np.array([1, 0, 1, -1], np.int32), np.array([0, 4])
    drawn = model.draw(tokens, starts, model.keys(0, np.array([0])), np.array([2, 1, 2], np.int32))
    assert drawn.outputs.tolist() == [1, 0, 2]
    # 6 examples of 3 words, with 12 negative samples among 3.
    inputs, outputs = updates_of(drawn, 6, 2)
    assert inputs.tolist() == [4, 2]
    assert outputs.tolist() == [4 + 4, 2, 8]


def test_spearman_of_equal_ranks() -> None:
    assert spearman(np.array([1, 2, 3]), np.array([10, 20, 30])) == 1.0
    assert spearman(np.array([1, 2, 3]), np.array([3, 2, 1])) == -1.0
    # Ranks 0, 1.5, 1.5, 3 and 0, 1, 2, 3: covariance 4.5, sums of squares 4.5 and 5.
    assert spearman(np.array([1, 2, 2, 9]), np.array([0, 1, 2, 3])) == pytest.approx(
        4.5 / np.sqrt(4.5 * 5)
    )
    assert spearman(np.array([1, 1]), np.array([1, 2])) == 0.0


def test_a_line_that_is_no_pair_is_named(tmp_path: Path) -> None:
    (tmp_path / "pairs").write_text("# comment\na b 3\na b\n")
    with pytest.raises(DataError, match=r"pairs: line 3: 'a b': must be two words and a number"):
        WordPairs.read(str(tmp_path / "pairs"))
    with pytest.raises(DataError, match=r"options.similarity: nowhere: cannot be read"):
        WordPairs.read("nowhere")
