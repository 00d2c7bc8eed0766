"""Scores of triples: ComplEx, DistMult, RotatE and TransE, with their gradients.

A model turns a known entity x and a relation r into a query, a row of the length of an entity's, and compares
the query with the rows of candidates. Head and tail have the same form: `flip` returns the relation in the
other direction, so the candidates for the head of (?, r, t) are those for the query of t and flip(r).

All functions work on float32 (training) and float64 (evaluation). The halves of a row of ComplEx and RotatE
are the real and the imaginary parts.

    complex     Re <x, r, conj(e)>          Trouillon et al., "Complex Embeddings for Simple Link Prediction",
                                            ICML 2016
    distmult    <x, r, e>                   Yang et al., "Embedding Entities and Relations for Learning and
                                            Inference in Knowledge Bases", ICLR 2015
    rotate      -sum_k |x_k r_k - e_k|      with |r_k| = 1; Sun et al., "RotatE", ICLR 2019
    transe      -||x + r - e||              Bordes et al., "Translating Embeddings for Modeling
                                            Multi-relational Data", NIPS 2013
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Rows: TypeAlias = npt.NDArray[np.floating[Any]]

_TINY = 1e-12  # least distance in a division
_BLOCK = 1 << 20  # values of a block of differences, so that it stays in the cache


class EmbeddingModel(Protocol):
    """The functions of a model. Shapes: x, q (m, d); r (m, d_r); candidates e (k, d); scores (m, k).

    Attributes:
        complex_rows: Rows of entities are complex numbers, so their length is even.
        compares: "product": a score is the inner product of query and candidate. "distance": the negative
            distance between them.
    """

    complex_rows: ClassVar[bool]
    compares: ClassVar[str]

    def relation_dim(self, dim: int) -> int:
        """Return the length of a relation's row for entities of `dim` values."""

    def flip(self, r: Rows) -> Rows:
        """Return the relations in the other direction. It is linear and its own transpose."""

    def query(self, x: Rows, r: Rows) -> Rows:
        """Return the queries."""

    def query_gradient(self, x: Rows, r: Rows, g: Rows) -> tuple[Rows, Rows]:
        """Return the gradients by x and r of sum(g * query(x, r))."""

    def scores(self, q: Rows, e: Rows) -> Rows:
        """Return the score of each candidate for each query."""

    def scores_gradient(self, q: Rows, e: Rows, g: Rows) -> tuple[Rows, Rows]:
        """Return the gradients by q and e of sum(g * scores(q, e)); g has shape (m, k)."""

    def pairs(self, q: Rows, e: Rows) -> Rows:
        """Return the score of candidate i for query i, shape (m,); e has shape (m, d)."""

    def pairs_gradient(self, q: Rows, e: Rows, g: Rows) -> tuple[Rows, Rows]:
        """Return the gradients by q and e of sum(g * pairs(q, e)); g has shape (m,)."""


class _ByProduct:
    """Scores that are inner products of query and candidate."""

    compares: ClassVar[str] = "product"

    def scores(self, q: Rows, e: Rows) -> Rows:
        """Return the score of each candidate for each query."""
        found: Rows = q @ e.T
        return found

    def scores_gradient(self, q: Rows, e: Rows, g: Rows) -> tuple[Rows, Rows]:
        """Return the gradients by q and e of sum(g * scores(q, e))."""
        return g @ e, g.T @ q

    def pairs(self, q: Rows, e: Rows) -> Rows:
        """Return the score of candidate i for query i."""
        found: Rows = np.einsum("ij,ij->i", q, e)
        return found

    def pairs_gradient(self, q: Rows, e: Rows, g: Rows) -> tuple[Rows, Rows]:
        """Return the gradients by q and e of sum(g * pairs(q, e))."""
        return g[:, np.newaxis] * e, g[:, np.newaxis] * q


class ComplEx(_ByProduct):
    """Products of complex numbers."""

    complex_rows: ClassVar[bool] = True

    def relation_dim(self, dim: int) -> int:
        """Return `dim`."""
        return dim

    def flip(self, r: Rows) -> Rows:
        """Return the conjugates."""
        re, im = _halves(r)
        return np.concatenate([re, -im], axis=1)

    def query(self, x: Rows, r: Rows) -> Rows:
        """Return x r, whose inner product with e, as real numbers, is Re(x r conj(e))."""
        return _times(x, r)

    def query_gradient(self, x: Rows, r: Rows, g: Rows) -> tuple[Rows, Rows]:
        """Return g conj(r) and g conj(x)."""
        return _times(g, self.flip(r)), _times(g, self.flip(x))


class DistMult(_ByProduct):
    """Products of real numbers; head and tail can be exchanged."""

    complex_rows: ClassVar[bool] = False

    def relation_dim(self, dim: int) -> int:
        """Return `dim`."""
        return dim

    def flip(self, r: Rows) -> Rows:
        """Return r."""
        return r

    def query(self, x: Rows, r: Rows) -> Rows:
        """Return x r."""
        return x * r

    def query_gradient(self, x: Rows, r: Rows, g: Rows) -> tuple[Rows, Rows]:
        """Return g r and g x."""
        return g * r, g * x


class RotatE:
    """Rotations: a relation is a row of angles, in radians."""

    complex_rows: ClassVar[bool] = True
    compares: ClassVar[str] = "distance"

    def relation_dim(self, dim: int) -> int:
        """Return the number of complex numbers of an entity."""
        return dim // 2

    def flip(self, r: Rows) -> Rows:
        """Return the angles of the inverse rotations."""
        return -r

    def query(self, x: Rows, r: Rows) -> Rows:
        """Return x rotated by r."""
        return _times(x, np.concatenate([np.cos(r), np.sin(r)], axis=1))

    def query_gradient(self, x: Rows, r: Rows, g: Rows) -> tuple[Rows, Rows]:
        """Return the gradients by x, which is g rotated back, and by the angles."""
        cos, sin = np.cos(r), np.sin(r)
        by_x = _times(g, np.concatenate([cos, -sin], axis=1))
        # The derivative of x exp(i r) by r is i x exp(i r).
        re, im = _halves(self.query(x, r))
        g_re, g_im = _halves(g)
        return by_x, g_im * re - g_re * im

    def scores(self, q: Rows, e: Rows) -> Rows:
        """Return minus the sum of the distances of the complex numbers."""
        found = np.zeros((len(q), len(e)), q.dtype)
        n = q.shape[1] // 2
        for start, stop in _blocks(len(q), len(e)):
            part = found[start:stop]
            for k in range(n):
                re = np.subtract.outer(q[start:stop, k], e[:, k])
                im = np.subtract.outer(q[start:stop, n + k], e[:, n + k])
                re *= re
                im *= im
                re += im
                part -= np.sqrt(re, out=re)
        return found

    def scores_gradient(self, q: Rows, e: Rows, g: Rows) -> tuple[Rows, Rows]:
        """Return the gradients by q and e of sum(g * scores(q, e))."""
        by_q, by_e = np.zeros_like(q), np.zeros_like(e)
        n = q.shape[1] // 2
        for start, stop in _blocks(len(q), len(e)):
            own = g[start:stop]
            for k in range(n):
                re = np.subtract.outer(q[start:stop, k], e[:, k])
                im = np.subtract.outer(q[start:stop, n + k], e[:, n + k])
                factor = own / np.maximum(np.sqrt(re * re + im * im), _TINY)
                re *= factor
                im *= factor
                by_q[start:stop, k] -= re.sum(axis=1)
                by_q[start:stop, n + k] -= im.sum(axis=1)
                by_e[:, k] += re.sum(axis=0)
                by_e[:, n + k] += im.sum(axis=0)
        return by_q, by_e

    def pairs(self, q: Rows, e: Rows) -> Rows:
        """Return the score of candidate i for query i."""
        re, im = _halves(q - e)
        found: Rows = -np.sqrt(re * re + im * im).sum(axis=1)
        return found

    def pairs_gradient(self, q: Rows, e: Rows, g: Rows) -> tuple[Rows, Rows]:
        """Return the gradients by q and e of sum(g * pairs(q, e))."""
        re, im = _halves(q - e)
        factor = g[:, np.newaxis] / np.maximum(np.sqrt(re * re + im * im), _TINY)
        by_e = np.concatenate([re * factor, im * factor], axis=1)
        return -by_e, by_e


class TransE:
    """Translations, with the Manhattan distance (norm 1) or the Euclidean one (norm 2)."""

    complex_rows: ClassVar[bool] = False
    compares: ClassVar[str] = "distance"

    def __init__(self, norm: int = 2) -> None:
        """Set the norm, 1 or 2."""
        self._norm = norm

    def relation_dim(self, dim: int) -> int:
        """Return `dim`."""
        return dim

    def flip(self, r: Rows) -> Rows:
        """Return the opposite translations."""
        return -r

    def query(self, x: Rows, r: Rows) -> Rows:
        """Return x + r."""
        return x + r

    def query_gradient(self, x: Rows, r: Rows, g: Rows) -> tuple[Rows, Rows]:
        """Return g and g."""
        return g, g

    def scores(self, q: Rows, e: Rows) -> Rows:
        """Return minus the distance of each candidate from each query."""
        if self._norm == 2:
            return -_euclidean(q, e)
        found = np.zeros((len(q), len(e)), q.dtype)
        for start, stop in _blocks(len(q), len(e)):
            part = found[start:stop]
            for k in range(q.shape[1]):
                difference = np.subtract.outer(q[start:stop, k], e[:, k])
                part -= np.abs(difference, out=difference)
        return found

    def scores_gradient(self, q: Rows, e: Rows, g: Rows) -> tuple[Rows, Rows]:
        """Return the gradients by q and e of sum(g * scores(q, e))."""
        if self._norm == 2:
            distances = _euclidean(q, e)
            # A distance from products is rounded to about this; a smaller one says nothing, not even 0.
            sizes = np.linalg.norm(q, axis=1)[:, np.newaxis] + np.linalg.norm(e, axis=1)
            certain = distances > 2 * np.sqrt(np.finfo(q.dtype).eps) * sizes
            factor = np.where(certain, g / np.maximum(distances, _TINY), 0)
            by_q = factor @ e - factor.sum(axis=1)[:, np.newaxis] * q
            by_e = factor.T @ q - factor.sum(axis=0)[:, np.newaxis] * e
            return by_q, by_e
        by_q, by_e = np.zeros_like(q), np.zeros_like(e)
        for start, stop in _blocks(len(q), len(e)):
            for k in range(q.shape[1]):
                sign = np.sign(np.subtract.outer(q[start:stop, k], e[:, k]))
                sign *= g[start:stop]
                by_q[start:stop, k] -= sign.sum(axis=1)
                by_e[:, k] += sign.sum(axis=0)
        return by_q, by_e

    def pairs(self, q: Rows, e: Rows) -> Rows:
        """Return the score of candidate i for query i."""
        difference = q - e
        if self._norm == 2:
            found: Rows = -np.sqrt(np.einsum("ij,ij->i", difference, difference))
        else:
            found = -np.abs(difference).sum(axis=1)
        return found

    def pairs_gradient(self, q: Rows, e: Rows, g: Rows) -> tuple[Rows, Rows]:
        """Return the gradients by q and e of sum(g * pairs(q, e))."""
        if self._norm == 2:
            by_e = (q - e) * (g / np.maximum(-self.pairs(q, e), _TINY))[:, np.newaxis]
        else:
            by_e = np.sign(q - e) * g[:, np.newaxis]
        return -by_e, by_e


def _halves(rows: Rows) -> tuple[Rows, Rows]:
    """Return the real and the imaginary parts, views."""
    n = rows.shape[1] // 2
    return rows[:, :n], rows[:, n:]


def _times(a: Rows, b: Rows) -> Rows:
    """Return the products of complex numbers."""
    a_re, a_im = _halves(a)
    b_re, b_im = _halves(b)
    return np.concatenate([a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re], axis=1)


def _euclidean(q: Rows, e: Rows) -> Rows:
    """Return the Euclidean distances, by the binomial formula; cancellation makes small ones inexact."""
    squares = (q * q).sum(axis=1)[:, np.newaxis] + (e * e).sum(axis=1) - 2 * (q @ e.T)
    found: Rows = np.sqrt(np.maximum(squares, 0))
    return found


def _blocks(m: int, k: int) -> list[tuple[int, int]]:
    """Return ranges of queries whose differences with all candidates have about _BLOCK values."""
    step = max(_BLOCK // max(k, 1), 1)
    return [(start, min(start + step, m)) for start in range(0, m, step)]
