"""Handles of tables: push, pull, prefetch, views. What a worker's code works with."""

from mpips.handles.dense import DenseHandle
from mpips.handles.embedding import EmbeddingHandle

__all__ = ["DenseHandle", "EmbeddingHandle"]
