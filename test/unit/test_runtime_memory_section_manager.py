# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import ADD, assemble

from gristmill.errors import ResourceExhaustedError, ToolchainError
from gristmill.runtime.code import link
from gristmill.runtime.memory import pages, slabs
from gristmill.runtime.memory.section_manager import (
    ContiguousSectionMemoryManager,
    SectionRequest,
    State,
)
from gristmill.runtime.memory.slabs import PAGE, PageRanges, SlabPool

#: The machine's return instruction.
RETURN = b"\xc0\x03\x5f\xd6" if platform.machine() == "aarch64" else b"\xc3"

REQUEST = (SectionRequest(100, 16), SectionRequest(200, 64), SectionRequest(300, 8))


def protection(address: int) -> str:
    """The permission letters of the mapping that holds ``address``, from the kernel."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, flags = line.split()[:2]
        low, high = (int(x, 16) for x in bounds.split("-"))
        if low <= address < high:
            return flags
    return ""


@pytest.fixture
def pool() -> SlabPool:
    return SlabPool((1 << 20, 1 << 20, 1 << 20))


def filled(pool: SlabPool) -> tuple[ContiguousSectionMemoryManager, int, int, int]:
    manager = ContiguousSectionMemoryManager(pool)
    manager.reserve(*REQUEST)
    code = manager.allocate_code(100, 16)
    read_only = manager.allocate_data(200, 64, read_only=True)
    return manager, code, read_only, manager.allocate_data(300, 8)


def test_every_protection_is_what_the_kernel_says(pool: SlabPool) -> None:
    manager, code, read_only, writable = filled(pool)
    for address in (code, read_only, writable):
        assert protection(address) == "rw-p"
        ctypes.memset(address, 0, 100)
    ctypes.memmove(code, RETURN, len(RETURN))
    manager.seal()
    assert protection(code) == "r-xp"
    assert protection(read_only) == "r--p"
    assert protection(writable) == "rw-p"
    assert code < read_only < writable < code + 2**31
    ctypes.CFUNCTYPE(None)(code)()
    manager.release()
    for address in (code, read_only, writable):
        assert protection(address) == "---p"


def test_guard_pages_surround_each_kind_of_memory(pool: SlabPool) -> None:
    manager, code, read_only, writable = filled(pool)
    manager.seal()
    slab = pool._slabs[0]
    assert protection(slab.base) == "---p"
    assert protection(slab.base + slab.size - 1) == "---p"
    for region in slab.regions:
        assert protection(region.base - 1) == "---p"
    assert protection(writable + PAGE) == "---p"
    second = ContiguousSectionMemoryManager(pool)
    second.reserve(*REQUEST)
    assert second.spans[2].address == writable + 2 * PAGE, "a guard lies between writable ranges"
    assert {a // PAGE for a in (code, read_only, writable)}.isdisjoint(
        s.address // PAGE for s in second.spans
    )


def test_alignment_larger_than_a_page(pool: SlabPool) -> None:
    manager = ContiguousSectionMemoryManager(pool)
    big = SectionRequest(100, 4 * PAGE)
    manager.reserve(big, big, big)
    assert manager.allocate_code(100, 4 * PAGE) % (4 * PAGE) == 0
    assert manager.allocate_data(100, 4 * PAGE, read_only=True) % (4 * PAGE) == 0


@pytest.mark.parametrize("alignment", [3, 24, -8, 1 << 40])
def test_bad_alignment(pool: SlabPool, alignment: int) -> None:
    manager = ContiguousSectionMemoryManager(pool)
    with pytest.raises(ToolchainError, match=f"alignment {alignment} is not a power of two"):
        manager.reserve(SectionRequest(8, alignment), SectionRequest(), SectionRequest())
    assert manager.state is State.NEW
    manager.reserve(*REQUEST)
    with pytest.raises(ToolchainError, match=r"\.text: alignment"):
        manager.allocate_code(8, alignment)


@pytest.mark.parametrize("size", [slabs.MAX_OBJECT_BYTES + 1, 2**63, 2**64 - 1])
def test_oversize_and_overflow(pool: SlabPool, size: int) -> None:
    manager = ContiguousSectionMemoryManager(pool)
    with pytest.raises(ResourceExhaustedError, match="exceeds the limit"):
        manager.reserve(SectionRequest(size), SectionRequest(size), SectionRequest())
    assert manager.state is State.NEW
    assert pool.statistics().objects == 0


def test_negative_size(pool: SlabPool) -> None:
    manager = ContiguousSectionMemoryManager(pool)
    with pytest.raises(ToolchainError, match="-1 bytes"):
        manager.reserve(SectionRequest(-1), SectionRequest(), SectionRequest())


def test_section_that_does_not_fit(pool: SlabPool) -> None:
    manager = ContiguousSectionMemoryManager(pool)
    manager.reserve(*REQUEST)
    with pytest.raises(
        ResourceExhaustedError, match=r"section of 5000 bytes does not fit the code"
    ):
        manager.allocate_code(5000, 16)
    with pytest.raises(ResourceExhaustedError, match="does not fit the writable memory"):
        manager.allocate_data(2**64 - 1, 16)
    assert manager.state is State.RESERVED


def test_states_are_enforced(pool: SlabPool) -> None:
    manager = ContiguousSectionMemoryManager(pool)
    with pytest.raises(ToolchainError, match="cannot seal: the section memory is new"):
        manager.seal()
    with pytest.raises(ToolchainError, match="new: it has no pages"):
        _ = manager.spans
    manager.reserve(*REQUEST)
    with pytest.raises(ToolchainError, match="cannot reserve: the section memory is reserved"):
        manager.reserve(*REQUEST)
    manager.allocate_code(8, 8)
    assert manager.state is State.FILLED
    manager.seal()
    with pytest.raises(ToolchainError, match="cannot seal: the section memory is sealed"):
        manager.seal()
    with pytest.raises(ToolchainError, match=r"cannot place section \.text"):
        manager.allocate_code(8, 8)
    manager.release()
    manager.release()
    assert manager.state is State.RELEASED
    assert pool.statistics().objects == 0


def test_failed_seal_is_rolled_back(pool: SlabPool, monkeypatch: pytest.MonkeyPatch) -> None:
    manager, code, read_only, _ = filled(pool)
    real = pages.protect

    def fail_on_read_only(address: int, size: int, protection: int) -> None:
        if protection == pages.PROT_READ:
            raise ResourceExhaustedError("no mappings left")
        real(address, size, protection)

    monkeypatch.setattr(pages, "protect", fail_on_read_only)
    with pytest.raises(ResourceExhaustedError, match="no mappings left"):
        manager.seal()
    assert manager.state is State.FILLED
    assert protection(code) == protection(read_only) == "rw-p"
    monkeypatch.undo()
    manager.seal()
    assert protection(code) == "r-xp"


def test_failed_reserve_takes_nothing(pool: SlabPool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(address: int, size: int, protection: int) -> None:
        if protection == pages.PROT_READ_WRITE:
            raise ResourceExhaustedError("no mappings left")

    monkeypatch.setattr(pages, "protect", fail)
    manager = ContiguousSectionMemoryManager(pool)
    with pytest.raises(ResourceExhaustedError):
        manager.reserve(*REQUEST)
    monkeypatch.undo()
    assert manager.state is State.NEW
    assert pool.statistics().code_bytes == 0
    manager.reserve(*REQUEST)
    assert manager.spans[0].address == pool._slabs[0].regions[0].base


def test_released_pages_are_zero_when_reused(pool: SlabPool) -> None:
    manager, code, _, _ = filled(pool)
    ctypes.memset(code, 0xAB, 100)
    manager.release()
    again, reused, _, _ = filled(pool)
    assert reused == code
    assert ctypes.string_at(reused, 100) == bytes(100)
    again.release()


def test_an_object_larger_than_a_slab_gets_its_own(pool: SlabPool) -> None:
    small = ContiguousSectionMemoryManager(pool)
    small.reserve(*REQUEST)
    with ContiguousSectionMemoryManager(pool) as manager:
        manager.reserve(SectionRequest(3 << 20), SectionRequest(8), SectionRequest())
        assert pool.statistics().slabs == 2
    assert pool.statistics().slabs == 1, "an empty slab goes back to the system"


def test_exhausted_address_space_names_the_limit(
    pool: SlabPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ResourceExhaustedError, match="ulimit -v"):
        pages.reserve(1 << 60)
    monkeypatch.setattr(pages, "mapping_count", lambda: 65530)
    monkeypatch.setattr(pages, "mapping_limit", lambda: 65530)
    with pytest.raises(ResourceExhaustedError, match=r"vm\.max_map_count \(65530 mappings\)"):
        pages.reserve(1 << 60)


def test_five_thousand_live_objects_take_few_mappings() -> None:
    data = assemble(ADD.replace("COUNT", "8"))
    before = pages.mapping_count()
    loaded = [link([data]) for _ in range(5000)]
    assert pages.mapping_count() - before < 50
    for code in loaded[::2]:
        code.close()
    assert pages.mapping_count() - before < 500
    for code in loaded:
        code.close()
    assert pages.mapping_count() - before < 50


def test_statistics(pool: SlabPool) -> None:
    manager, *_ = filled(pool)
    manager.seal()
    figures = pool.statistics()
    assert (figures.objects, figures.slabs) == (1, 1)
    assert (figures.code_bytes, figures.read_only_bytes, figures.read_write_bytes) == (PAGE,) * 3
    assert 0 < figures.mappings < figures.mapping_limit
    manager.release()
    assert pool.statistics().code_bytes == 0


@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=60))
def test_page_ranges_never_overlap_and_are_found_again(steps: list[tuple[int, bool]]) -> None:
    ranges = PageRanges(200)
    taken: list[tuple[int, int]] = []
    for count, release in steps:
        if release and taken:
            ranges.give(*taken.pop(count % len(taken)))
            continue
        start = ranges.take(count)
        if start is not None:
            assert 0 <= start <= 200 - count
            assert all(start + count <= s or s + c <= start for s, c in taken)
            taken.append((start, count))
        assert ranges.free == 200 - sum(c for _, c in taken)
    for start, count in taken:
        ranges.give(start, count)
    assert (len(ranges), ranges.take(200)) == (1, 0)


SECTION = st.tuples(st.integers(0, 3 * PAGE), st.sampled_from([1, 8, 64, 4096, 8192]))


@given(st.lists(SECTION, max_size=4), st.lists(SECTION, max_size=4), st.lists(SECTION, max_size=4))
def test_layout(
    code: list[tuple[int, int]], read_only: list[tuple[int, int]], writable: list[tuple[int, int]]
) -> None:
    def request(sections: list[tuple[int, int]]) -> SectionRequest:
        return SectionRequest(
            sum(size + alignment for size, alignment in sections),
            max((alignment for _, alignment in sections), default=1),
        )

    with ContiguousSectionMemoryManager(LAYOUT_POOL) as manager:
        manager.reserve(request(code), request(read_only), request(writable))
        placed = [(manager.allocate_code(*s), *s) for s in code]
        placed += [(manager.allocate_data(*s, read_only=True), *s) for s in read_only]
        placed += [(manager.allocate_data(*s), *s) for s in writable]
        manager.seal()
        end = 0
        for address, size, alignment in placed:
            assert address % alignment == 0
            if size:
                assert address >= end, "sections are disjoint and in order"
                end = address + size
        kinds = zip((code, read_only, writable), manager.spans, strict=True)
        for sections, span in kinds:
            assert span.size <= sum(s + a for s, a in sections) + PAGE + 8192


LAYOUT_POOL = SlabPool((1 << 20, 1 << 20, 1 << 20))


def test_sealing_returns_the_pages_that_no_section_uses(pool: SlabPool) -> None:
    manager = ContiguousSectionMemoryManager(pool)
    manager.reserve(*[SectionRequest(5 * PAGE)] * 3)
    code = manager.allocate_code(PAGE + 1, 16)
    manager.allocate_data(8, 8, read_only=True)
    manager.seal()
    assert [span.size for span in manager.spans] == [2 * PAGE, PAGE, 0]
    assert protection(code + 2 * PAGE) == "---p"
    figures = pool.statistics()
    assert figures.code_bytes + figures.read_only_bytes + figures.read_write_bytes == 3 * PAGE
    second = ContiguousSectionMemoryManager(pool)
    second.reserve(*REQUEST)
    assert second.spans[0].address == code + 2 * PAGE
    manager.release()
    second.release()
    assert [len(r.ranges) for r in pool._slabs[0].regions] == [1, 1, 1]
