"""Point clouds on the surfaces of eight solids, with the part of each point.

Every function takes the number of clouds n and of points p, and returns points (n, p, 3) and their
parts (n, p). Points are uniform on the surface; proportions are random.
"""

import math

import torch
from torch import Tensor

from projects.eat.sampling import take


def _between(low: float, high: float, n: int) -> Tensor:
    return low + (high - low) * torch.rand(n, 1)  # n, 1


def _faces(areas: list[Tensor], p: int) -> Tensor:
    """Draw a face (n, p) for each point, with probabilities proportional to areas (n, 1)."""
    return torch.multinomial(torch.cat(areas, 1), p, replacement=True)


def _direction(n: int, p: int) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(n, p, 3), dim=2)


def _turn(radius: Tensor, z: Tensor) -> Tensor:
    """Return points (n, p, 3) at these radii and heights, at random angles."""
    angle = 2 * math.pi * torch.rand_like(radius)
    return torch.stack([radius * angle.cos(), radius * angle.sin(), z], 2)


def _sign(n: int, p: int) -> Tensor:
    return torch.randint(2, (n, p)) * 2.0 - 1


def ball(n: int, p: int) -> tuple[Tensor, Tensor]:
    return _direction(n, p), torch.zeros(n, p, dtype=torch.long)


def cuboid(n: int, p: int) -> tuple[Tensor, Tensor]:
    """Sample a cuboid. Parts: surface."""
    sides = torch.cat([_between(0.7, 1.3, n) for _ in range(3)], 1)  # n, 3
    face = _faces([1 / sides[:, i : i + 1] for i in range(3)], p)  # the axis that it is across
    points = 2 * torch.rand(n, p, 3) - 1
    points.scatter_(2, face[..., None], _sign(n, p)[..., None])
    return points * sides[:, None], torch.zeros(n, p, dtype=torch.long)


def cylinder(n: int, p: int) -> tuple[Tensor, Tensor]:
    """Sample a cylinder. Parts: side, ends."""
    height = _between(1.2, 2.6, n)
    part = _faces([2 * math.pi * height, 2 * math.pi * torch.ones_like(height)], p)
    on_side = part == 0
    radius = torch.where(on_side, 1.0, torch.rand(n, p).sqrt())
    z = torch.where(on_side, torch.rand(n, p) - 0.5, 0.5 * _sign(n, p)) * height
    return _turn(radius, z), part


def cone(n: int, p: int) -> tuple[Tensor, Tensor]:
    """Sample a cone. Parts: side, base."""
    height = _between(1.2, 2.6, n)
    part = _faces([(1 + height.square()).sqrt(), torch.ones_like(height)], p)
    radius = torch.rand(n, p).sqrt()
    z = torch.where(part == 0, (1 - radius) * height, 0.0)
    return _turn(radius, z), part


def torus(n: int, p: int) -> tuple[Tensor, Tensor]:
    """Sample a torus. Parts: outer half, inner half."""
    thick = _between(0.25, 0.45, n)
    bins = 2 * math.pi * (torch.arange(90) + 0.5) / 90
    around = (
        torch.multinomial(1 + thick * bins.cos(), p, replacement=True) + torch.rand(n, p)
    ) / 90
    around = 2 * math.pi * around
    points = _turn(1 + thick * around.cos(), thick * around.sin())
    return points, (around.cos() < 0).long()


def capsule(n: int, p: int) -> tuple[Tensor, Tensor]:
    """Sample a capsule. Parts: body, round ends."""
    height = _between(1.0, 2.4, n)
    part = _faces([2 * math.pi * height, 4 * math.pi * torch.ones_like(height)], p)
    body = _turn(torch.ones(n, p), (torch.rand(n, p) - 0.5) * height)
    end = _direction(n, p)
    end[..., 2] += torch.sign(end[..., 2]) * height / 2
    return torch.where(part[..., None] == 0, body, end), part


def pyramid(n: int, p: int) -> tuple[Tensor, Tensor]:
    """Sample a pyramid. Parts: sides, square base."""
    height = _between(1.2, 2.4, n)
    part = _faces([4 * (1 + height.square()).sqrt(), 4 * torch.ones_like(height)], p)
    out = torch.rand(n, p).sqrt()  # 0 at the tip, 1 at the base
    side = torch.stack([out, out * (2 * torch.rand(n, p) - 1), (1 - out) * height], 2)
    quarter = math.pi / 2 * torch.randint(4, (n, p))
    x, y, z = side.unbind(2)
    turned = [x * quarter.cos() - y * quarter.sin(), x * quarter.sin() + y * quarter.cos(), z]
    base = torch.cat([2 * torch.rand(n, p, 2) - 1, torch.zeros(n, p, 1)], 2)
    return torch.where(part[..., None] == 0, torch.stack(turned, 2), base), part


def prism(n: int, p: int) -> tuple[Tensor, Tensor]:
    """Sample a prism. Parts: sides, triangular ends."""
    height = _between(1.0, 2.4, n)
    part = _faces([3 * 3**0.5 * height, 1.5 * 3**0.5 * torch.ones_like(height)], p)
    angle = 2 * math.pi / 3 * torch.arange(4)
    corner = torch.stack([angle.cos(), angle.sin()], 1)  # 4, 2; the last is the first
    which, along = torch.randint(3, (n, p)), torch.rand(n, p, 1)
    edge = corner[which] * (1 - along) + corner[which + 1] * along  # n, p, 2
    inside = edge * torch.rand(n, p, 1).sqrt()
    flat = torch.where(part[..., None] == 0, edge, inside)
    z = torch.where(part == 0, torch.rand(n, p) - 0.5, 0.5 * _sign(n, p)) * height
    return torch.cat([flat, z[..., None]], 2), part


SOLIDS = {
    "ball": (ball, 1),
    "cuboid": (cuboid, 1),
    "cylinder": (cylinder, 2),
    "cone": (cone, 2),
    "torus": (torus, 2),
    "capsule": (capsule, 2),
    "pyramid": (pyramid, 2),
    "prism": (prism, 2),
}
# The parts of each solid, numbered through.
PARTS = [
    list(range(first, first + count))
    for first, count in zip((0, 1, 2, 4, 6, 8, 10, 12), (1, 1, 2, 2, 2, 2, 2, 2), strict=True)
]


def normalized(points: Tensor) -> Tensor:
    """Move clouds (n, p, 3) to mean zero, and scale the farthest point to distance one."""
    points = points - points.mean(1, keepdim=True)
    return points / points.norm(dim=2).amax(1)[:, None, None]


def make_solids(
    count: int, points: int, seed: int, noise: float = 0.02, tilt: float = 0.3
) -> tuple[Tensor, Tensor, Tensor]:
    """Sample clouds (count, points, 3) with their solids (count,) and parts (count, points).

    Each cloud is rotated about the vertical axis by any angle, then tilted by at most `tilt`
    radians. The noise is normal and relative to the radius of the cloud.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        labels = torch.arange(count) % len(SOLIDS)
        clouds = torch.empty(count, points, 3)
        parts = torch.empty(count, points, dtype=torch.long)
        for label, (sample, _) in enumerate(SOLIDS.values()):
            chosen = labels == label
            clouds[chosen], part = sample(int(chosen.sum()), points)
            parts[chosen] = part + PARTS[label][0]
        turn = 2 * math.pi * torch.rand(count)
        lean = tilt * (2 * torch.rand(count) - 1)
        zero, one = torch.zeros(count), torch.ones(count)
        about_z = torch.stack(
            [turn.cos(), -turn.sin(), zero, turn.sin(), turn.cos(), zero, zero, zero, one], 1
        )
        about_x = torch.stack(
            [one, zero, zero, zero, lean.cos(), -lean.sin(), zero, lean.sin(), lean.cos()], 1
        )
        rotation = about_x.view(-1, 3, 3) @ about_z.view(-1, 3, 3)
        clouds = normalized(clouds @ rotation.transpose(1, 2))
        clouds = clouds + noise * torch.randn_like(clouds)
        order = torch.rand(count, points).argsort(1)  # faces come in no order, whatever drew them
        return take(clouds, order), labels, parts.gather(1, order)
