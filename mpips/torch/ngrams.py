"""`NgramEmbedding`: a memory of n-grams of token ids, whose rows lie on the servers.

Rows of the n-grams that end at a place of a sequence are looked up by hashes of their tokens and added to the
hidden state of a language model there (Huang et al., "Over-Tokenized Transformer", ICML 2025; Cheng et al.,
"Conditional Memory via Scalable Lookup" (Engram), 2026). Keys depend on tokens alone (mpips.model.ngrams), so
rows can be fetched before the layer computes:

    ahead       rows of later batches of a prepared loader, by the look-ahead of mpips
    announce    rows of a batch at hand, while the layers before this one compute

All orders and heads share one table, in which each has rows of its own: a step then has one pull and one
push. With orders 2 and 3 and rows of 64 it takes 0.65 of the CPU time with a table for each order at 256
tokens, where calls count, and as much at 8,192.

`to_torch` copies the layer into a plain one of torch (plain_ngrams.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from mpips.errors import ConfigError
from mpips.model.accepted import is_count
from mpips.model.codec import PullCodec, PushCodec
from mpips.model.consistency import Consistency
from mpips.model.distinct import distinct_places
from mpips.model.initializer import Initializer
from mpips.model.ngrams import NgramHash
from mpips.model.optimizer import Optimizer
from mpips.model.python_rule import PythonRule
from mpips.model.row_values import RowDtype
from mpips.torch.embedding import Embedding, sums_in_push
from mpips.torch.job import TorchJob
from mpips.torch.plain_ngrams import PlainNgrams, combined
from mpips.worker.worker import Worker, connection_of

Int64 = NDArray[np.int64]
Flags = NDArray[np.bool_]
Combine = Literal["sum", "concat"]
COMBINES = get_args(Combine)
TOKEN_NAMES = ("input_ids", "tokens")  # of the entry of a batch that is a dict
DEPTH = 8  # batches that a look-ahead knows in advance, where the script gives no number
_HASH = "mpips_ngrams"  # of the metadata of a state dict: the hash of its keys


class _Looked(NamedTuple):
    """The keys of some tokens.

    Attributes:
        tokens: The tokens, int64, shape (..., T).
        present: As of NgramHash.present.
        keys: int64, shape (n_unique,), ascending, each once; those of places that are present.
        places: int64, shape (n_present * n_hashes,): index of each key.
    """

    tokens: Int64
    present: Flags | None
    keys: Int64
    places: Int64

    def is_of(self, tokens: Int64, present: Flags | None) -> bool:
        """Return True if these are the keys of some tokens, of which some are present."""
        if self.present is None or present is None:
            is_equal = self.present is present
        else:
            is_equal = np.array_equal(self.present, present)
        return is_equal and np.array_equal(self.tokens, tokens)


class NgramEmbedding(Embedding):
    """Sums, or parts side by side, of the rows of the n-grams that end at each place of a sequence.

    `forward(tokens, mask)` takes token ids, any int64 numbers, of shape (..., T), such as (batch, time), and
    returns float32 of shape (..., T, out_dim). Place t has one n-gram of each order: the tokens up to t, with
    a padding id before the beginning of the sequence. So it depends on no later token. `mask`, bool of the
    shape of the tokens, is False where there is no token: the result is 0 there, and the place counts as
    padding in later n-grams. Places with `pad_id` are such places.

    Keys are hashes of the tokens, of mpips.model.ngrams: n-grams that fall into one row share it. A row
    exists from its first update on, so `rows` may be as large as 2**40, which makes shared rows rare.

    State dicts, rules, copies and evaluation are those of `Embedding`. A state dict notes the hash of its
    keys, and one of another hash is refused, as is a restart.

    Attributes:
        hash: Hashes of the n-grams.
        combine: "sum" or "concat".
        out_dim: Length of a result; `dim` is that of a row.
        ahead: See __init__.
    """

    def __init__(
        self,
        orders: Sequence[int] = (2, 3),
        *,
        rows: int,
        dim: int,
        heads: int = 1,
        combine: Combine = "sum",
        seed: int = 0,
        pad_id: int | None = None,
        ahead: int | None = None,
        optimizer: Optimizer | PythonRule | None = None,
        init: Initializer | str = "normal(0.01)",
        consistency: Consistency | str | None = None,
        compression: PushCodec | str | None = None,
        pull_compression: PullCodec | str | None = None,
        row_dtype: RowDtype = "float32",
    ) -> None:
        """Make the layer; see `Embedding` for what is not listed.

        Args:
            orders: Lengths of the n-grams, ascending, 1 to 64.
            rows: Number of rows of each order and head.
            dim: Length of a result.
            heads: Hashes of each order: n-grams that share a row under one have other ones under the rest.
            combine: "sum" of rows of length `dim`, or "concat": rows of length dim / (orders * heads) side by
                side, those of the first order first.
            seed: Seed of the hashes; not that of the job.
            pad_id: Token that fills up sequences; None: sequences are full.
            ahead: Batches of a prepared loader whose rows are fetched in advance; 0: none. None: 8 if a
                server is on another node, and none on one node, where a look-ahead only takes time. The
                tokens are the batch itself, its first element, or its entry "input_ids" or "tokens". It
                changes no bit under BSP; see mpips.torch.lookahead for the other models.
            optimizer: Rule of the rows, such as mpips.RowAdagrad(0.1); None: SGD(0.01).
            init: Initial values of a row.
            consistency: Consistency of the table.
            compression: Codec of the pushes of rows.
            pull_compression: Codec of the pulls of rows.
            row_dtype: Type of the stored values, "float32" or "bf16".

        Raises:
            ConfigError: A value is not accepted.
        """
        hashes = NgramHash(orders, heads, rows, seed, pad_id)
        if combine not in COMBINES:
            raise ConfigError(
                f"NgramEmbedding: combine = {combine!r}: must be one of {', '.join(COMBINES)}"
            )
        if not is_count(dim) or dim < 1:
            raise ConfigError(f"NgramEmbedding: dim = {dim!r}: must be a whole number, 1 or more")
        n_parts = hashes.n_hashes if combine == "concat" else 1
        if dim % n_parts:
            raise ConfigError(
                f"NgramEmbedding: dim = {dim} with combine = 'concat': must be a multiple of {n_parts}, the "
                "number of orders times heads"
            )
        if ahead is not None and (not is_count(ahead) or ahead < 0):
            raise ConfigError(
                f"NgramEmbedding: ahead = {ahead!r}: must be a whole number, 0 or more, or None"
            )
        super().__init__(
            int(dim) // n_parts,
            optimizer=optimizer,
            init=init,
            consistency=consistency,
            compression=compression,
            pull_compression=pull_compression,
            row_dtype=row_dtype,
        )
        self.hash, self.combine, self.out_dim, self.ahead = hashes, combine, int(dim), ahead
        self._announced: _Looked | None = None

    def join(self, job: TorchJob, name: str) -> None:
        """Become a part of a job. `prepare` calls this."""
        super().join(job, name)
        job.restore("n-grams", _SameHash(name, self.hash))
        job.announced.append(self)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return the results at all places; see the class. Blocks like a pull.

        Raises:
            ConfigError: `tokens` or `mask` is not accepted, or the layer has not been prepared.
        """
        rows, places, present = self.ngram_rows(tokens, mask)
        found = combined(places, rows, self.combine, sparse=sums_in_push(rows))
        if present is not None:
            whole = found.new_zeros(tokens.numel(), self.out_dim)
            found = whole.index_copy(0, present, found)
        return found.view(*tokens.shape, self.out_dim)

    @torch.compiler.disable  # type: ignore[misc,untyped-decorator,unused-ignore]
    def ngram_rows(
        self, tokens: torch.Tensor, mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Pull the rows of all n-grams. Blocks like a pull.

        Returns:
            rows: As `rows` of Embedding.
            places: int64, shape (n, n_hashes): index of the row of each n-gram of n places.
            present: int64, shape (n,): flat indices of these places; None: all places.
            All are on the device of `tokens`.

        Raises:
            ConfigError: `tokens` or `mask` is not accepted, or the layer has not been prepared.
        """
        looked = self._looked(tokens, mask)
        rows, places = self.pulled(looked.keys, looked.places, tokens.device)
        present = None
        if looked.present is not None:
            present = torch.from_numpy(np.flatnonzero(looked.present)).to(tokens.device)
        return rows, places.view(-1, self.hash.n_hashes), present

    @torch.compiler.disable  # type: ignore[misc,untyped-decorator,unused-ignore]
    def announce(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> None:
        """Start to fetch the rows of the next forward pass, which gives these arguments. Does not wait.

        The first call of a job, if it is the first use of the model, starts the job as a forward pass does.
        Call it at the beginning of a model's forward pass, behind the step of the optimizer: rows then travel
        while the layers before this one compute. The newest call counts. A step in between, and other tokens,
        make it useless, and the forward pass pulls its rows as without it. It has no effect in a loop with a
        look-ahead, which has the rows, and on a layer that is not prepared.

        Raises:
            ConfigError: `tokens` or `mask` is not accepted.
        """
        looked, access = self._looked(tokens, mask), self._access
        if access is None:
            return
        access.job.start()
        access.job.settle()
        assert access.handle is not None
        if not access.handle.has_ahead:
            # The script may change its tensors in place.
            present = looked.present.copy() if looked.present is not None else None
            self._announced = looked._replace(tokens=looked.tokens.copy(), present=present)
            access.handle.prefetch(looked.keys)

    def keys(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return the keys of all n-grams at places with a token, int64, shape (n, n_hashes), on the CPU.

        For mpips.torch.lookahead, of batches whose tokens have another place than `ahead` expects:
        `keys=lambda batch: {"memory": model.memory.keys(batch["text"])}`.
        """
        ids, flags = self._arrays(tokens, mask)
        return torch.from_numpy(self._present_keys(ids, self.hash.present(ids, flags)))

    def keys_of_batch(self, batch: Any) -> dict[str, Int64]:
        """Return the keys of a batch of a loader by the name of the table; {}: it has no tokens."""
        tokens = _tokens_of(batch)
        if tokens is None or self._access is None:
            return {}
        return {self._access.name: self.keys(tokens).numpy()}

    def depth(self, worker: Worker) -> int:
        """Return the number of batches that a prepared loader reads in advance now; 0: none."""
        access = self._access
        if access is None or access.handle is None or access.handle.has_ahead:
            return 0
        if self.ahead is not None:
            return self.ahead
        is_far = any(channel.orders is not None for channel in connection_of(worker).channels)
        return DEPTH if is_far else 0

    def to_torch(self) -> PlainNgrams:
        """Return a plain layer of torch with equal results: the same hash, and all rows in its memory.

        Not collective; blocks like a pull once the job has started. The table has rows * orders * heads rows
        of float32; keys without a row have their initial one. It is trained like any layer of torch.

        Raises:
            ConfigError: The layer has no rows to read, or the table would need more memory than torch gets.
        """
        self.check_has_rows()
        n_rows = self.hash.n_hashes * self.hash.rows
        try:
            weight = torch.empty(n_rows, self.dim, device="cpu")
        except RuntimeError as error:
            raise ConfigError(
                f"to_torch: a table of {n_rows} rows of {self.dim} float32 values does not fit in memory "
                f"({error}): use a layer with fewer rows"
            ) from None
        rows, array, block = self._rows_now(), weight.numpy(), 1 << 16
        for start in range(0, n_rows, block):
            stop = min(start + block, n_rows)
            array[start:stop] = rows.pull(np.arange(start, stop))
        return PlainNgrams(self.hash, weight, self.combine)

    def _arrays(
        self, tokens: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[Int64, Flags | None]:
        """Return tokens and mask as arrays. Waits for their device.

        Raises:
            ConfigError: They are not accepted, or the layer has not been prepared.
        """
        ids = self.on_host(tokens)
        if not ids.ndim:
            raise ConfigError(
                "the tokens of an NgramEmbedding are one number: must have shape (..., T)"
            )
        if mask is None:
            return ids, None
        is_tensor = isinstance(mask, torch.Tensor)
        if not is_tensor or mask.dtype != torch.bool or mask.shape != tokens.shape:
            found = (
                f"{mask.dtype} of shape {tuple(mask.shape)}" if is_tensor else type(mask).__name__
            )
            raise ConfigError(
                f"the mask of an NgramEmbedding is {found}: must be a bool tensor of the shape of the "
                f"tokens, {tuple(tokens.shape)}"
            )
        return ids, np.asarray(mask.detach().cpu().numpy())

    def _present_keys(self, ids: Int64, present: Flags | None) -> Int64:
        """Return the keys of all places that are present, int64, shape (n, n_hashes)."""
        keys = self.hash.keys(ids, present)
        return keys[present] if present is not None else keys.reshape(-1, self.hash.n_hashes)

    def _looked(self, tokens: torch.Tensor, mask: torch.Tensor | None) -> _Looked:
        """Return the keys of some tokens; those of the newest `announce` are not made again."""
        ids, flags = self._arrays(tokens, mask)
        present = self.hash.present(ids, flags)
        known, self._announced = self._announced, None
        if known is not None and known.is_of(ids, present):
            return known
        keys = self._present_keys(ids, present)
        return _Looked(ids, present, *distinct_places(keys.reshape(-1)))

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "_announced": None}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", None)
        if metadata is not None:
            metadata.setdefault(prefix[:-1], {})[_HASH] = str(self.hash)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        *rest: Any,
    ) -> None:
        """Take the rows of a state dict, if their keys are of the same hash."""
        found = local_metadata.get(_HASH, str(self.hash))
        if found != str(self.hash):
            errors: list[str] = rest[-1]
            errors.append(f"{prefix}rows.keys are of {found}, and the layer has {self.hash}.")
            return
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)

    def extra_repr(self) -> str:
        """Return the settings, for print(model)."""
        return f"{self.hash}, {self.out_dim}, combine={self.combine!r}, optimizer={self.optimizer}"


class _SameHash:
    """The hash of a layer in the cursor: a restart with another one would read rows of other n-grams."""

    def __init__(self, name: str, hashes: NgramHash) -> None:
        self._name = name
        self._hash = str(hashes)

    def position(self) -> str:
        """Return the hash."""
        return self._hash

    def resume(self, position: Any) -> None:
        """Compare the hash.

        Raises:
            ConfigError: That of the run differs.
        """
        if position != self._hash:
            raise ConfigError(
                f"the keys of {self._name!r} in the checkpoint are of {position}, and this script has "
                f"{self._hash}: use the orders, heads, rows, seed and pad_id of the run, or resume='never'"
            )


def _tokens_of(batch: Any) -> torch.Tensor | None:
    """Return the tokens of a batch of a loader; None: it has none where they usually are."""
    if isinstance(batch, Mapping):
        batch = next((batch[name] for name in TOKEN_NAMES if name in batch), None)
    elif isinstance(batch, list | tuple) and batch:
        batch = batch[0]
    is_tokens = isinstance(batch, torch.Tensor) and batch.dtype == torch.int64 and batch.ndim
    return batch if is_tokens else None
