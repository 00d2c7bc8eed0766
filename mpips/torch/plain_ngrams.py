"""A memory of n-grams as a plain layer of torch: what `NgramEmbedding.to_torch` returns."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from mpips.model.initializer import STEP
from mpips.model.ngrams import NgramHash

# torch has no shifts and remainders of unsigned numbers of 64 bits: words are int64 with the same bits, and
# products and sums wrap as those of uint64 do.
_STEP, _FIRST, _SECOND = (
    int(np.array(word, np.uint64).view(np.int64))
    for word in (STEP, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


class PlainNgrams(torch.nn.Module):
    """Sums, or parts side by side, of rows of n-grams, with the results of an NgramEmbedding.

    Attributes:
        weight: float32, shape (n_hashes * rows, dim): a parameter with all rows.
        hash: Hashes of the n-grams, as of mpips.model.ngrams.
        combine: "sum" or "concat".
        sparse: Gradients of `weight` are sparse tensors.
    """

    def __init__(
        self, hashes: NgramHash, weight: torch.Tensor, combine: str = "sum", sparse: bool = False
    ) -> None:
        """Take the values of all rows; the layer shares their memory."""
        super().__init__()
        self.hash, self.combine, self.sparse = hashes, combine, sparse
        self.weight = torch.nn.Parameter(weight)
        self._starts: list[int] = hashes.starts().view(np.int64).tolist()

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return the results at all places, shape (..., T, out_dim).

        Args:
            tokens: int64, shape (..., T).
            mask: bool, of the same shape: False where there is no token; None: nowhere.
        """
        present = mask
        if self.hash.pad_id is not None:
            is_token = tokens != self.hash.pad_id
            present = is_token if mask is None else is_token & mask
        if present is not None:
            tokens = torch.where(present, tokens, self.hash.padding)
        places = self.keys(tokens).view(-1, self.hash.n_hashes)
        found = combined(places, self.weight, self.combine, self.sparse)
        found = found.view(*tokens.shape, found.shape[1])
        return found if present is None else torch.where(present.unsqueeze(-1), found, 0.0)

    def keys(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the place in `weight` of each n-gram, int64, shape (..., T, n_hashes)."""
        length, longest = tokens.shape[-1], max(self.hash.orders)
        before = tokens.new_full((*tokens.shape[:-1], longest - 1), self.hash.padding)
        padded = torch.cat([before, tokens], dim=-1)
        found = []
        for i, start in enumerate(self._starts):
            words = torch.full_like(tokens, start)
            for back in range(self.hash.orders[i // self.hash.heads] - 1, -1, -1):
                first = longest - 1 - back
                words = _mix((words ^ padded[..., first : first + length]) + _STEP)
            found.append(_shifted(words, 1) % self.hash.rows + i * self.hash.rows)
        return torch.stack(found, dim=-1)

    def extra_repr(self) -> str:
        """Return the settings, for print(model)."""
        return f"{self.hash}, {self.weight.shape[1]}, combine={self.combine!r}"


def combined(places: torch.Tensor, rows: torch.Tensor, combine: str, sparse: bool) -> torch.Tensor:
    """Return the sums of rows, or the rows side by side.

    Args:
        places: int64, shape (n, n_hashes), indices of rows.
        rows: Shape (n_rows, dim).
        combine: "sum" or "concat".
        sparse: Gradients of the rows are sparse tensors.

    Returns:
        Shape (n, dim), or (n, n_hashes * dim).
    """
    if not len(rows):
        # torch refuses an empty table, also for no places.
        rows = rows.new_zeros(1, rows.shape[1], requires_grad=rows.requires_grad)
    if combine == "sum":
        return functional.embedding_bag(places, rows, mode="sum", sparse=sparse)
    return functional.embedding(places, rows, sparse=sparse).flatten(1)


def _mix(x: torch.Tensor) -> torch.Tensor:
    """Return the finaliser of SplitMix64 of each word; see mpips.model.initializer.mix."""
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    return x ^ _shifted(x, 31)


def _shifted(x: torch.Tensor, n: int) -> torch.Tensor:
    """Return x >> n of unsigned words."""
    found: torch.Tensor = (x >> n) & (2 ** (64 - n) - 1)
    return found
