"""Groups of devices, in one process and joined, for the tests of kernels that communicate."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tilekit import api
from tilekit._groups import Group, free_address

LIMIT_S = 120


@pytest.fixture
def group_of(several_devices):
    """Makes groups of so many devices."""
    opened = []

    def make(size):
        opened.append(Group(several_devices(size)))
        return opened[-1]

    yield make
    for group in opened:
        group.close()


@pytest.fixture
def members(cpu_devices):
    """Runs a function of a group as each of so many joined members, in threads; gives what each returns, or raises its error."""

    def run(function, size):
        devices, address = cpu_devices(size), free_address()

        def member(rank):
            with Group.join(rank, size, address=address, device=devices[rank], timeout_s=LIMIT_S) as group:
                return function(group)

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(member, range(size), timeout=2 * LIMIT_S))

    return run


@pytest.fixture
def placed():
    """Puts arrays on the devices of a group's members here."""

    def put(group, arrays):
        return [api.from_host(array).on(device).sync() for array, device in zip(arrays, group.devices, strict=True)]

    return put
