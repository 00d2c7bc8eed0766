"""Matrix factorisation with biases: mean + b_u + b_i + <p_u, q_i>.

Ratings: squared error (Koren, Bell and Volinsky, "Matrix Factorization Techniques for Recommender Systems",
IEEE Computer 42(8), 2009). Implicit feedback: for a pair (u, i) an item j that u does not have is drawn, and
the loss is -log s(x_ui - x_uj), s being the logistic function (BPR: Rendle et al., "BPR: Bayesian
Personalized Ranking from Implicit Feedback", UAI 2009); the mean is 0 then, and b_u has no effect.

A row of the tables `user` and `item` has the bias first, then the factor. The rows of unknown users and items
count as 0: an unknown user gets mean + b_i, so its items are ordered by their biases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mpips._native import Xxh3
from mpips.data.info import DataInfo
from mpips.data.options import Share
from mpips.data.quotients import Direction, Measured
from mpips.data.ratings import ASKED, PairData, RatingColumns, Ratings, rating_lines, read_ratings
from mpips.data.rows import (
    Arrays,
    Purpose,
    RowBatch,
    RowData,
    TaskPart,
    describe_samples,
    grouped,
)
from mpips.data.vocabulary import Vocabulary
from mpips.model.optimizer import Adagrad
from mpips.model.table import EmbeddingTable, Table
from mpips.tasks.base import Float32, StepResult, Task, Worker
from mpips.tasks.kge import add_rows
from mpips.tasks.kge_answers import named
from mpips.tasks.losses import sigmoid
from mpips.tasks.mf_options import MfOptions
from mpips.tasks.mf_ranking import SeenItems, best_items, gains
from mpips.tasks.proposals import PENALTY, RATE, Proposal, among, around

Int64: TypeAlias = npt.NDArray[np.int64]
USERS, ITEMS, SEEN, SCALE = "vocabulary/users", "vocabulary/items", "task/seen", "task/scale"
_DRAWS = 8  # items that are drawn for a pair, of which the first one that the user does not have is taken
_L2_OF_ONE_LINE, _MOST_L2 = 0.8, 0.4  # see MatrixFactorization.choose
_ASKED = -2  # key of an item that is asked for


class MatrixFactorization(Task):
    """Users in the table `user`, items in the table `item`; rows are the bias and the factor."""

    name = "mf"
    Options = MfOptions
    labels = "targets"
    default_epochs = 30
    default_batch_size = 256
    optimizer_options: ClassVar = {"learning_rate": ("", "lr")}
    prediction_options: ClassVar = ("top",)
    own_metrics: ClassVar[dict[str, Direction]] = {"ndcg_at_10": "higher", "recall_at_10": "higher"}

    @classmethod
    def choose(cls, info: DataInfo, options: MfOptions) -> dict[str, Any]:
        """Choose a greater l2 where users have few ratings.

        A prior of equal precision for all rows would be a penalty per line in inverse proportion to the lines
        of a row. The one that predicts best falls more slowly, because items, which have other numbers of
        lines, have the same penalty; docs/howto/data.md has measurements.
        """
        if options.implicit or options.l2 is not None or not info.n_samples_total:
            return {}
        lines = info.n_samples_total / max(info.size("users"), 1)
        l2 = min(_L2_OF_ONE_LINE / math.sqrt(lines), _MOST_L2)
        return {"options.l2": round(l2, 3)} if l2 > options.penalty else {}

    @classmethod
    def read(
        cls, path: str, options: MfOptions, share: Share, like: Arrays | None, purpose: Purpose
    ) -> TaskPart:
        """Read ratings; see `mpips.data.ratings`. Without `like` the vocabularies are made of all lines."""
        columns = RatingColumns(options.user, options.item, options.rating)
        rated = not options.implicit or options.least_rating is not None
        lines = read_ratings(path, columns, rated=rated)
        if options.implicit and options.least_rating is not None:
            lines = _of_at_least(lines, options.least_rating)
        users, items = (
            _names(like)
            if like is not None
            else (Vocabulary.of(lines.users), Vocabulary.of(lines.items))
        )
        ids = np.stack([users.find_all(lines.users), items.find_all(lines.items)], axis=1)
        if options.implicit and purpose == "test":
            return _held_out(path, lines, ids, share)
        arrays: dict[str, npt.NDArray[Any]] = {}
        values = lines.values
        if options.implicit and like is None:
            ids = ids[np.sort(np.unique(ids, axis=0, return_index=True)[1])]
            values = np.ones(len(ids))
        if like is None:
            arrays = {USERS: users.to_array(), ITEMS: items.to_array()}
            arrays[SEEN] = (ids if options.implicit else ids[:0]).astype(np.int32)
            ends = [values.mean(), values.min(), values.max()] if len(values) else [0.0] * 3
            arrays[SCALE] = np.array([0.0, -np.inf, np.inf] if options.implicit else ends)
        own = share.numbers(0, len(ids))
        reach = (float(values.min()), float(values.max())) if len(values) else ()
        info = describe_samples(
            len(ids), len(own), path, arrays, wants="targets", target_range=reach
        )
        notes = _unknown_notes(_n_unknown(ids), len(ids))
        return TaskPart(RowData(ids[own], values[own]), info, arrays, notes)

    @classmethod
    def read_parts(
        cls, path: str, options: MfOptions, like: Arrays, say: Callable[[str], None]
    ) -> Iterator[RowData]:
        """Read pairs, and users whose best items are asked for; see `mpips.data.ratings.rating_lines`."""
        columns = RatingColumns(options.user, options.item, options.rating)
        users, items = _names(like)
        n = n_unknown = 0
        for lines in grouped(rating_lines(path, columns, rated=False, may_ask=True)):
            own_users, own_items, values = zip(*lines, strict=True)
            ids = np.stack([users.find_all(own_users), items.find_all(own_items)], axis=1)
            ids[np.array([item == ASKED for item in own_items]), 1] = _ASKED
            n, n_unknown = n + len(ids), n_unknown + _n_unknown(ids)
            names = np.array([own_users, own_items], np.str_).T
            yield RowData(ids, np.nan_to_num(np.array(values)), names)
        for note in _unknown_notes(n_unknown, n):
            say(note)

    def __init__(self, info: DataInfo, options: MfOptions, seed: int) -> None:
        """Take the numbers of users and items."""
        self._options = msgspec.structs.replace(
            options, l2=info.chosen.get("options.l2", options.l2)
        )
        self._seed = seed
        self._place = (0, 0)  # epoch and step
        self._n_items = info.size("items")
        # The metrics of implicit feedback are not those of predicted numbers.
        own: Any = self
        own.labels = "none" if options.implicit else "targets"
        self.metrics = ("ndcg_at_10", "recall_at_10") if options.implicit else ("rmse", "r2")

    def proposals(self) -> list[Proposal]:
        """Propose the penalty, the rate and the length of factors."""
        own = self._options
        return [
            around("l2", own.penalty or 0.01, 10, PENALTY),
            around("learning_rate", own.learning_rate, 5, RATE),
            among(
                "dim",
                own.dim,
                [8, 16, 32, 64],
                "length of factors: more for many ratings of each user",
            ),
        ]

    def tables(self) -> list[Table]:
        """Return `user` and `item`."""
        own = self._options
        optimizer = Adagrad(lr=own.learning_rate)
        init = f"normal({own.init_std!r})"
        width = own.dim + 1
        return [
            EmbeddingTable(name, width, optimizer=optimizer, init=init) for name in ("user", "item")
        ]

    def receive(self, arrays: Arrays) -> None:
        """Take the vocabularies, the mean and the range of ratings, and the items of each user."""
        self._users, self._items = _names(arrays)
        self._mean, *self._range = arrays[SCALE].tolist()
        self._seen = SeenItems(arrays[SEEN].astype(np.int64), self._n_items)

    def report(self) -> str:
        """Return what is learned."""
        what = (
            "BPR on pairs of user and item"
            if self._options.implicit
            else "squared error of ratings"
        )
        return f"{what}, dim {self._options.dim}"

    def begin_step(self, epoch: int, step: int, n_steps: int) -> None:
        """Take the place of the next step, for its random numbers."""
        self._place = epoch, step

    def step(self, worker: Worker, batch: Any) -> StepResult:
        """Pull the rows of the batch, compute the gradients, push them."""
        ids = batch.ids
        items = [ids[:, 1]]
        if self._options.implicit:
            items.append(self._negatives(batch))
        user_keys, at = np.unique(ids[:, 0], return_inverse=True)
        item_keys, places = np.unique(np.concatenate(items), return_inverse=True)
        user_rows = worker.table("user").pull(user_keys)
        item_rows = worker.table("item").pull(item_keys)
        by_user, by_item = np.zeros_like(user_rows), np.zeros_like(item_rows)
        scale = np.float32(batch.weight / batch.n)
        p = user_rows[at]
        rows = [item_rows[own] for own in np.split(places, len(items))]
        if self._options.implicit:
            loss, errors = _bpr(p, *rows)
        else:
            error = _scores(p, rows[0]) + np.float32(self._mean) - batch.labels.astype(np.float32)
            loss, errors = float((error.astype(np.float64) ** 2).sum() / 2), [error]
        penalty = np.float32(self._options.penalty) * scale
        by_p = penalty * p
        for own, q, e in zip(np.split(places, len(items)), rows, errors, strict=True):
            # The score is b_u + b_i + <p, q>.
            own_p, own_q = p.copy(), q.copy()
            own_p[:, 0] = own_q[:, 0] = 1
            e = (e * scale)[:, np.newaxis]
            by_p += e * own_q
            add_rows(by_item, own, e * own_p + penalty * q)
        add_rows(by_user, at, by_p)
        worker.table("user").push(user_keys, by_user, base=user_rows)
        worker.table("item").push(item_keys, by_item, base=item_rows)
        return StepResult(loss, batch.n)

    def _negatives(self, batch: RowBatch) -> Int64:
        """Draw an item for each pair that the user does not have, shape (n,).

        The draws depend on the seed, the step and its pairs. A user who has nearly all items can get one of
        them.
        """
        digest = Xxh3()
        digest.update(np.array(self._place, np.int64))
        digest.update(np.ascontiguousarray(batch.ids))
        draw = np.random.Generator(np.random.Philox([self._seed & (2**64 - 1), digest.digest()]))
        drawn = draw.integers(0, self._n_items, (batch.n, _DRAWS))
        users = np.repeat(batch.ids[:, 0], _DRAWS)
        free = ~self._seen.has(users, drawn.ravel()).reshape(drawn.shape)
        chosen: Int64 = drawn[np.arange(batch.n), free.argmax(axis=1)]
        return chosen

    def predict(self, worker: Worker, batch: Any) -> Float32:
        """Return the rating, within the range of the training ratings, or the score, shape (n,)."""
        scores = _scores(
            _rows(worker, "user", batch.ids[:, 0]), _rows(worker, "item", batch.ids[:, 1])
        )
        low, high = self._range
        scores += np.float32(self._mean)
        values: Float32 = np.clip(scores, np.float32(low), np.float32(high))
        return values

    def measure(self, worker: Worker, batch: Any) -> Measured:
        """Return NDCG@10 and recall@10 of the held-out items of each user; see `mf_ranking.py`."""
        users = _rows(worker, "user", batch.users)
        items = worker.table("item").pull(np.arange(self._n_items))
        return gains(users, items, batch, self._seen)

    def columns(self, worker: Worker, batch: Any) -> dict[str, Any] | None:
        """Return user, item, prediction, and the rank of items that were asked for."""
        asked = np.flatnonzero(batch.ids[:, 1] == _ASKED)
        plain = np.flatnonzero(batch.ids[:, 1] != _ASKED)
        rated = self.predict(worker, RowBatch(batch.ids[plain], batch.labels[plain]))
        users = batch.ids[asked, 0]
        items = worker.table("item").pull(np.arange(self._n_items)) if len(asked) else None
        pieces = [(plain, batch.ids[plain], rated, np.full(len(plain), np.nan))]
        if items is not None:
            rows = _rows(worker, "user", users)
            chosen, scores = best_items(rows, items, users, self._seen, self._options.top)
            numbers = np.repeat(asked, chosen.shape[1])
            pairs = np.stack([np.repeat(users, chosen.shape[1]), chosen.ravel()], axis=1)
            low, high = self._range
            values = np.clip(scores.ravel() + np.float32(self._mean), low, high)
            places = np.tile(np.arange(1.0, chosen.shape[1] + 1), len(asked))
            there = scores.ravel() > -np.inf
            pieces.append((numbers[there], pairs[there], values[there], places[there]))
        numbers, pairs, values, places = (
            np.concatenate([piece[i] for piece in pieces]) for i in range(4)
        )
        order = np.argsort(numbers, kind="stable")
        texts = batch.names[numbers[order]].T if batch.names is not None else (None, None)
        return {
            "user": named(self._users, pairs[order, 0], texts[0]),
            "item": named(self._items, pairs[order, 1], texts[1]),
            "prediction": values[order].astype(np.float32),
            "rank": places[order],
        }


def _scores(p: Float32, q: Float32) -> Float32:
    """Return b_u + b_i + <p, q> of each pair of rows, shape (n,)."""
    found: Float32 = p[:, 0] + q[:, 0] + np.einsum("ij,ij->i", p[:, 1:], q[:, 1:])
    return found


def _bpr(p: Float32, q: Float32, other: Float32) -> tuple[float, list[Float32]]:
    """Return the summed loss, and its derivatives by the scores of both items of each pair."""
    gap = _scores(p, q) - _scores(p, other)
    loss = float(np.logaddexp(0, -gap).sum(dtype=np.float64))
    slope = -sigmoid(-gap)
    return loss, [slope, -slope]


def _rows(worker: Worker, table: str, keys: Int64) -> Float32:
    """Return the rows of keys, which may occur several times; zeros for negative keys."""
    distinct, places = np.unique(np.maximum(keys, 0), return_inverse=True)
    rows: Float32 = worker.table(table).pull(distinct)[places]
    rows[keys < 0] = 0
    return rows


def _of_at_least(lines: Ratings, least: float) -> Ratings:
    """Return the lines whose rating is at least this."""
    places = np.flatnonzero(lines.values >= least)
    return Ratings(
        [lines.users[i] for i in places.tolist()],
        [lines.items[i] for i in places.tolist()],
        lines.values[places],
    )


def _held_out(path: str, lines: Ratings, ids: Int64, share: Share) -> TaskPart:
    """Return the users of a test file with their distinct items; a worker has a share of the users."""
    first = np.sort(
        np.unique(
            np.array([f"{u}\n{i}" for u, i in zip(lines.users, lines.items, strict=True)]),
            return_index=True,
        )[1]
    )
    names = [lines.users[i] for i in first.tolist()]
    whole = PairData.of(names, ids[first, 0], ids[first, 1])
    own = share.numbers(0, whole.n)
    info = describe_samples(whole.n, len(own), path)
    return TaskPart(whole.take(own), info, notes=_unknown_notes(_n_unknown(ids), len(ids)))


def _names(arrays: Arrays) -> tuple[Vocabulary, Vocabulary]:
    """Return the vocabularies of users and items."""
    return Vocabulary.from_array(arrays[USERS]), Vocabulary.from_array(arrays[ITEMS])


def _n_unknown(ids: Int64) -> int:
    """Return the number of lines with unknown names."""
    return int((ids == -1).any(axis=1).sum())


def _unknown_notes(n_unknown: int, n: int) -> tuple[str, ...]:
    """Return a sentence on lines with unknown names, if there are any."""
    if not n_unknown:
        return ()
    return (
        f"{n_unknown:,} of {n:,} lines have a user or item that the training data does not contain; its bias "
        "and factor count as 0",
    )
