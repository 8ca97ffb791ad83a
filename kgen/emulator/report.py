"""What a launch on the emulator tells: counts of instructions, memory traffic and bank conflicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Site:
    """What the loads or stores at one line of the body cost (see Options.traffic).

    `transactions` are sectors of 32 bytes in global memory, wavefronts in shared memory; `ideal` is the fewest that would
    do. `bytes` is the width of each lane's access.
    """

    line: int
    memory: Literal["global", "shared"]
    bytes: int
    transactions: int
    ideal: int


@dataclass(frozen=True)
class Report:
    """Counts over all blocks of one launch. Warp-wide operations count once for a warp, copies and atomics once for a thread,
    wgmma once for a warpgroup; `bulk_copies` are TMA's loads and stores and other bulk copies.

    `matrix_wavefronts` are the shared-memory wavefronts of ldmatrix and stmatrix; without bank conflicts they equal
    `matrix_ideal_wavefronts`. The byte counts of plain loads and stores are zero when checks are off. `switches` are the
    scheduler's steps. `sites` is filled in on request (Options.traffic), the worst first.
    """

    mma: int = 0
    ldmatrix: int = 0
    stmatrix: int = 0
    matrix_wavefronts: int = 0
    matrix_ideal_wavefronts: int = 0
    cp_async: int = 0
    cp_async_bytes: int = 0
    barriers: int = 0
    warp_syncs: int = 0
    shuffles: int = 0
    atomics: int = 0
    wgmma: int = 0
    bulk_copies: int = 0
    bulk_bytes: int = 0
    global_load_bytes: int = 0
    global_store_bytes: int = 0
    shared_load_bytes: int = 0
    shared_store_bytes: int = 0
    switches: int = 0
    sites: tuple[Site, ...] = ()

    def transactions(self, memory: Literal["global", "shared"]) -> tuple[int, int]:
        """Sectors of global or wavefronts of shared memory, as they are and at best; of plain loads and stores."""
        chosen = [site for site in self.sites if site.memory == memory]
        return sum(site.transactions for site in chosen), sum(site.ideal for site in chosen)

    @property
    def matrix_bank_conflicts(self) -> int:
        """Wavefronts of ldmatrix and stmatrix beyond the least possible."""
        return self.matrix_wavefronts - self.matrix_ideal_wavefronts
