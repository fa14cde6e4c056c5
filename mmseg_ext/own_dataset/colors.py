"""The colors of a project's classes in overlays and previews."""

from collections.abc import Mapping

import numpy as np

# Okabe and Ito's colors, which color-blind people can tell apart, after gray for the background.
_COLORS = [
    [80, 80, 80],
    [230, 159, 0],
    [86, 180, 233],
    [0, 158, 115],
    [240, 228, 66],
    [0, 114, 178],
    [213, 94, 0],
    [204, 121, 167],
]


def choose_colors(count: int, of_masks: Mapping[int, list[int]]) -> list[list[int]]:
    """Return a color (R, G, B) for each of `count` classes: those of the masks come first.

    Further classes get random colors, the same ones in each project.
    """
    random = np.random.RandomState(0).randint(0, 256, (count, 3)).tolist()
    colors = [*_COLORS, *random][:count]
    return [of_masks.get(index, color) for index, color in enumerate(colors)]
