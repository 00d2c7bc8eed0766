"""The instruction sets of this machine."""

from __future__ import annotations

import pytest

from mpips.kernels import available_kernels


@pytest.fixture(params=available_kernels())
def isa(request):
    return request.param
