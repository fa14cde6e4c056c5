"""A process's part of a list, as torchrun numbers the processes; they never need to talk."""

import os
from typing import NamedTuple


class Shard(NamedTuple):
    """Process `rank` of `count`; every `count`-th item of a list is its own."""

    rank: int = 0
    count: int = 1

    @classmethod
    def from_environment(cls) -> "Shard":
        """What torchrun set for this process; one process of one without it.

        Raises:
            ValueError: for RANK and WORLD_SIZE that do not fit.
        """
        shard = cls(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))
        if not 0 <= shard.rank < shard.count:
            raise ValueError(f"RANK={shard.rank} does not fit WORLD_SIZE={shard.count}")
        return shard

    def of(self, items: list) -> list:
        return items[self.rank :: self.count]
