"""Blocks of memory for the values of a streamed model."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch

from mpips.torch.blocks import Blocks


def test_blocks_are_used_again_once_no_tensor_refers_to_them():
    blocks = Blocks()
    size, large = (256, 1024), (512, 1024)
    first = blocks.empty(size, (1024, 1), torch.float32)
    place, view = first.data_ptr(), first.t()
    del first
    second = blocks.empty(size, (1, 256), torch.float32)
    assert second.stride() == (1, 256)
    assert second.data_ptr() != place
    del view
    third = blocks.empty((512, 1024), (1024, 1), torch.bfloat16)
    assert third.data_ptr() == place
    del second, third
    assert sum(map(len, blocks._free)) == 2 << 20
    # A larger block is mapped only after others were unmapped, up to the most that was in use.
    fourth = blocks.empty(large, (1024, 1), torch.float32)
    assert blocks._free == []
    fourth.fill_(1)
    fifth = blocks.empty((3,), (1,), torch.float32)
    assert blocks._in_use == 2 << 20
    del fourth, fifth
    assert blocks._in_use == 0
