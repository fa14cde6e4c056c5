"""Draw a street as a driver sees it: the picture `demo/street.jpg`, which is nobody's photograph.

Rays of a pinhole camera meet planes (ground, fronts of houses), distance fields (cars) and flat
cards (trees, people, poles, signs); noise gives the surfaces texture, and blur and grain make the
picture look like a frame of a small camera.

    python demo/draw_street.py demo/street.jpg
"""

import sys
from pathlib import Path

import cv2
import numpy as np

HEIGHT, WIDTH, FINER = 480, 640, 2  # rays are cast at FINER times the size
FOCAL, HORIZON = 620 / 640, 0.47  # of the width, of the height
EYE = np.array([-1.7, 1.45])  # metres: to the right of the road's middle, above it
SUN = np.array([-0.55, 0.7, -0.45])  # towards it
KERB, FRONT = 4.6, 7.8  # metres from the road's middle

rng = np.random.default_rng(7)
lattice = rng.random((256, 256))


def noise(u, v, octaves=4):
    """Value noise in 0..1 with structure from one unit down to 2^-octaves of it."""
    total, weight = 0, 0
    for octave in range(octaves):
        scale = 2**octave
        i, j = np.floor(u * scale), np.floor(v * scale)
        s, t = u * scale - i, v * scale - j
        s, t = s * s * (3 - 2 * s), t * t * (3 - 2 * t)
        i, j = i.astype(int) + 37 * octave, j.astype(int) + 11 * octave
        a, b = lattice[i % 256, j % 256], lattice[(i + 1) % 256, j % 256]
        c, d = lattice[i % 256, (j + 1) % 256], lattice[(i + 1) % 256, (j + 1) % 256]
        total = (
            total + (a * (1 - s) * (1 - t) + b * s * (1 - t) + c * (1 - s) * t + d * s * t) / scale
        )
        weight += 1 / scale
    return total / weight


class Canvas:
    """Colours (N, 3) in 0..1 and depths of the rays, of which the nearest surface counts."""

    def __init__(self):
        h, w = HEIGHT * FINER, WIDTH * FINER
        rows, columns = np.mgrid[:h, :w].reshape(2, -1) + 0.5
        self.x = (columns / w - 0.5) / FOCAL  # of a ray that goes 1 forward
        self.y = (HORIZON * h - rows) / w / FOCAL
        self.depth = np.full(h * w, 1e3)
        cloud = noise(self.x * 4 + 5, self.y * 9, 5)[:, None]
        clear = np.array([0.62, 0.74, 0.88]) + self.y[:, None] * np.array([-0.35, -0.25, -0.1])
        self.colour = clear + (0.93 - clear) * np.clip(cloud * 2.2 - 0.5, 0, 1)

    def paint(self, rays, seen, depth, colour):
        """Show a surface where rays see it and nothing nearer; far away it turns to haze."""
        seen = seen & (depth > 0.5) & (depth < self.depth[rays])
        rays, depth = rays[seen], depth[seen]
        haze = (1 - np.exp(-depth / 260))[:, None]
        self.colour[rays] = colour[seen] * (1 - haze) + np.array([0.8, 0.83, 0.86]) * haze
        self.depth[rays] = depth


def ground(canvas, shadows):
    rays = np.flatnonzero(canvas.y < 0)
    z = np.minimum(EYE[1] / -canvas.y[rays], 900)
    x = EYE[0] + canvas.x[rays] * z
    grain = noise(x * 6, z * 6, 4) * 0.13 + noise(x * 0.7, z * 0.25, 3) * 0.14
    tyres = 0.035 * np.cos((np.abs(x) - 2.3) * np.pi / 0.8) * (np.abs(x) < KERB)
    road = (0.22 + grain - tyres)[:, None] * np.array([1.0, 1.0, 1.03])
    dash = (np.abs(x) < 0.07) & (z % 6 < 3.2)
    edge = (np.abs(np.abs(x) - (KERB - 0.35)) < 0.05) | (np.abs(np.abs(x) - (KERB - 0.2)) < 0.04)
    road = np.where(dash[:, None], 0.58 + grain[:, None], road)
    road = np.where((edge & (x > 0))[:, None], np.array([0.72, 0.62, 0.28]), road)
    slab = ((np.abs(x) % 0.7 < 0.03) | (z % 0.9 < 0.03)) * 0.09
    walk = (0.54 + grain - slab)[:, None] * np.array([1.03, 1.0, 0.95])
    kerb = np.abs(np.abs(x) - KERB - 0.08) < 0.1
    walk = np.where(kerb[:, None], 0.72 + grain[:, None], walk)
    colour = np.where((np.abs(x) < KERB)[:, None], road, walk)
    shade = np.ones_like(x)
    for cx, cz, rx, rz in shadows:
        shade -= 0.62 * np.exp(-(((x - cx) / rx) ** 4) - ((z - cz) / rz) ** 4)
    leaves = np.clip(noise(x * 0.6 + 3, z * 0.22, 3) * 6 - 3 - np.clip(x + 3, 0, 3), 0, 1)
    shade *= 1 - 0.22 * leaves
    canvas.paint(rays, z > 0, z, colour * np.clip(shade, 0.25, 1)[:, None])


WALLS = np.array([[0.46, 0.28, 0.21], [0.68, 0.62, 0.5], [0.5, 0.36, 0.27], [0.6, 0.58, 0.55],
                  [0.4, 0.25, 0.2], [0.72, 0.68, 0.6], [0.52, 0.46, 0.38]])  # fmt: skip
SIGNS = np.array([[0.1, 0.22, 0.4], [0.45, 0.08, 0.08], [0.08, 0.3, 0.18], [0.12, 0.12, 0.13]])


def houses(canvas, side):
    """The row of fronts on one side (-1 left, 1 right) of the road, and the end of the street."""
    bounds = np.cumsum(np.concatenate([[-6], rng.uniform(6.5, 12, 18)]))
    heights, sort = rng.uniform(7.5, 13, 19), rng.integers(0, 7, 19)
    for which in range(18):
        front, wall = side * (FRONT + (which % 3) * 0.35), WALLS[sort[which]]
        depth = (front - EYE[0]) / np.where(canvas.x * side > 1e-4, canvas.x, side * 1e-4)
        rays = np.flatnonzero((depth > bounds[which]) & (depth < bounds[which + 1]))
        depth = depth[rays]
        u, y = depth - bounds[which], EYE[1] + canvas.y[rays] * depth
        colour = facade(u, y, heights[which], wall, which) * (0.62 if side < 0 else 1.0)
        canvas.paint(rays, (y > 0) & (y < heights[which]), depth, colour)
        rays = np.flatnonzero(canvas.x * side > 0)  # the wall that faces the driver
        x, y = EYE[0] + canvas.x[rays] * bounds[which], EYE[1] + canvas.y[rays] * bounds[which]
        seen = (x * side > abs(front)) & (y > 0) & (y < heights[which]) & (bounds[which] > 1)
        colour = wall * (0.6 + 0.3 * noise(x, y, 4))[:, None]
        canvas.paint(rays, seen, np.full_like(x, bounds[which]), colour)


def facade(u, y, height, wall, which):
    """Colours of a house's front at `u` metres along the road and `y` above the ground."""
    grain = noise(u * 5, y * 5, 4)[:, None] * 0.3 + noise(u * 0.5, y * 0.3, 3)[:, None] * 0.3
    courses = 1 - 0.12 * ((y % 0.24 < 0.05) | ((u + (y // 0.24 % 2) * 0.2) % 0.4 < 0.04))
    colour = wall * (0.72 + grain) * courses[:, None]
    spacing = 2.1 + 0.3 * (which % 3)
    s, t = np.abs((u % spacing) / spacing - 0.5), np.abs((y - 3.4) % 2.9 - 1.4)
    upstairs = (y > 3.4) & (y < height - 0.9)
    colour = np.where((upstairs & (s < 0.29) & (t < 0.88))[:, None], [0.82, 0.8, 0.76], colour)
    pane = upstairs & (s < 0.24) & (t < 0.78) & (s > 0.012)
    glass = 0.1 + 0.22 * noise(u * 0.8 + which, y * 0.8, 2)
    colour = np.where(pane[:, None], glass[:, None] * np.array([0.9, 1, 1.1]), colour)
    s = np.abs((u % 3.4) / 3.4 - 0.5)
    shop = (y < 2.3) & (y > 0.9) & (s < 0.25) & (s > 0.015)
    goods = 0.1 + 0.16 * noise(u * 0.9, y * 0.7, 2) + 0.14 * (y > 1.9)
    colour = np.where(shop[:, None], goods[:, None] * np.array([1.05, 1, 0.9]), colour)
    board = (y > 2.55) & (y < 3.05)
    colour = np.where(board[:, None], SIGNS[which % 4] + 0.05 * grain, colour)
    cornice = np.abs(y - height + 0.3) < 0.25
    return np.where(cornice[:, None], wall * 0.5 + 0.3, colour)


def box(p, centre, half, radius):
    """Signed distance of points (..., 3) to a rounded box."""
    q = np.abs(p - centre) - (np.asarray(half) - radius)
    return np.linalg.norm(np.maximum(q, 0), axis=-1) + np.minimum(q.max(-1), 0) - radius


def car(canvas, x, z, paint, rear=True):
    """A car that stands along the road, its nearer end towards the driver."""
    near = np.abs(EYE[0] + canvas.x * z - x) < 2.2 * max(1, 1 + 4 / z)
    rays = np.flatnonzero(near & (np.abs(EYE[1] + canvas.y * z - 0.8) < 1.8))
    ray = np.stack([canvas.x[rays], canvas.y[rays], np.ones(len(rays))], -1)
    origin = np.array([EYE[0] - x, EYE[1], -z])

    def distance(p):
        lean = np.clip((p[:, 1] - 0.85) / 0.6, 0, 1)
        q = p.copy()
        q[:, 0] *= 1 + 0.22 * lean
        q[:, 2] = (q[:, 2] - 0.1) * (1 + 0.45 * lean)
        body = box(p, [0, 0.62, 0], [0.88, 0.36, 2.1], 0.2)
        cabin = box(q, [0, 1.02, 0], [0.8, 0.46, 1.45], 0.15)
        blend = np.clip(0.5 + (cabin - body) / 0.24, 0, 1)
        shape = cabin * (1 - blend) + body * blend - 0.12 * blend * (1 - blend)
        wheel = [np.maximum(np.hypot(p[:, 1] - 0.32, p[:, 2] - a) - 0.32, np.abs(p[:, 0]) - 0.86)
                 for a in (-1.3, 1.3)]  # fmt: skip
        return np.minimum(shape, np.minimum(*wheel)) * 0.8

    along = np.full(len(ray), max(z - 3.2, 0.6))
    for _ in range(70):
        along += distance(origin + ray * along[:, None])
    p = origin + ray * along[:, None]
    hit = np.abs(distance(p)) < 0.02
    steps = np.eye(3) * 0.01
    normal = np.stack([distance(p + e) - distance(p - e) for e in steps], -1)
    normal /= np.linalg.norm(normal, axis=1, keepdims=True) + 1e-9
    lit = 0.45 + 0.45 * np.clip(normal @ SUN, 0, 1) + 0.25 * np.clip(normal[:, 1], 0, 1)
    colour = np.asarray(paint) * lit[:, None]
    colour += 0.35 * (np.clip(normal[:, 1], 0, 1) ** 3)[:, None] * np.array([0.8, 0.9, 1])
    x, y = np.abs(p[:, 0]), p[:, 1]
    backwards = normal[:, 2] < -0.4

    def put(where, values):
        colour[where] = np.broadcast_to(values, colour.shape)[where]

    ends = np.abs(normal[:, 2]) > 0.3
    glass = (y > 0.98) & (y < 1.38) & np.where(ends, x < 0.66, np.abs(p[:, 2] - 0.1) > 0.06)
    pane = 0.1 + 0.3 * np.clip(normal[:, 1], 0, 1) + 0.08 * noise(x * 3, y * 3, 2)
    put(glass, pane[:, None] * np.array([0.9, 1, 1.1]))
    lamp = backwards & (np.abs(y - 0.78) < 0.07) & (np.abs(x - 0.68) < 0.11)
    put(lamp, [0.6, 0.07, 0.05] if rear else [0.95, 0.95, 0.9])
    put(
        backwards & (np.abs(y - 0.58) < 0.05) & (x < 0.22),
        [0.62, 0.55, 0.25] if rear else [0.88] * 3,
    )
    put(backwards & (np.abs(y - 0.42) < 0.05), 0.12)
    wheel = np.minimum(*(np.hypot(y - 0.32, p[:, 2] - a) for a in (-1.3, 1.3))) < 0.37
    put((wheel & (np.abs(normal[:, 0]) > 0.5)) | (y < 0.27), 0.07)
    canvas.paint(rays, hit, along, colour)


def card(canvas, x, z):
    """Rays near something flat whose foot is at (x, z), metres to its right and up, depths."""
    u, y = EYE[0] + canvas.x * z - x, EYE[1] + canvas.y * z
    rays = np.flatnonzero((np.abs(u) < 6) & (y > 0) & (y < 16))
    return rays, u[rays], y[rays], np.full(len(rays), float(z))


def tree(canvas, x, z, height, seed):
    rays, u, y, depth = card(canvas, x, z)
    bark = (0.16 + 0.12 * noise(u * 9, y * 3, 3))[:, None] * np.array([1.1, 1, 0.85])
    trunk = (np.abs(u + 0.08 * np.sin(y * 1.5 + seed)) < 0.17 - 0.015 * y) & (y > 0)
    canvas.paint(rays, trunk & (y < height * 0.7), depth, bark)
    crown = np.hypot(u / (height * 0.33), (y - height * 0.68) / (height * 0.36))
    rough = noise(u * 0.9 + seed, y * 0.9, 4) + 0.5 * noise(u * 6 + seed, y * 6, 3) - 0.25
    light = noise(u * 7 + seed, y * 7 + 9, 4) * 1.5 - 0.4 + 0.15 * (y / height) - 0.1 * (u > 0)
    leaves = np.clip(light, 0.06, 1)[:, None] * np.array([0.5, 0.58, 0.26])
    holes = noise(u * 3.1 + seed, y * 3.1 + 4, 4) > 0.68
    canvas.paint(
        rays,
        (crown + (rough - 0.5) * 1.6 < 0.95) & (y > height * 0.28) & ~holes,
        depth - 0.1,
        leaves,
    )


def person(canvas, x, z, coat, trousers):
    rays, u, y, depth = card(canvas, x, z)
    shade = (1 - 0.5 * np.clip(u * 3, 0, 1) - 0.25 * noise(u * 8, y * 8, 3))[:, None]
    legs = (np.abs(np.abs(u) - 0.11 + 0.05 * (y - 0.4)) < 0.085) & (y > 0) & (y < 0.9)
    body = (np.abs(u) < 0.27 - 0.1 * np.abs(y - 1.2)) & (y > 0.8) & (y < 1.5)
    head = np.hypot(u, (y - 1.64) * 0.85) < 0.12
    canvas.paint(rays, legs, depth, shade * trousers)
    canvas.paint(rays, body, depth - 0.01, shade * coat)
    hair = (y > 1.66)[:, None]
    canvas.paint(
        rays, head, depth - 0.02, shade * np.where(hair, [0.15, 0.1, 0.08], [0.72, 0.55, 0.45])
    )


def post(canvas, x, z, height, sign=None):
    """A lamp post with its arm over the road, or a post with a round sign."""
    rays, u, y, depth = card(canvas, x, z)
    metal = (0.3 + 0.2 * np.clip(-u * 8, -1, 1))[:, None] * np.array([0.95, 1, 1])
    shape = (np.abs(u) < 0.075) & (y > 0) & (y < height)
    if sign is None:
        reach = -np.sign(x) * u
        shape |= (np.abs(y - height - 0.12 * reach) < 0.05) & (reach > 0) & (reach < 1.6)
        shape |= (np.abs(y - height - 0.2) < 0.1) & (reach > 1.3) & (reach < 2.1)
    canvas.paint(rays, shape, depth, metal)
    if sign is not None:
        radius = np.hypot(u, y - height)
        face = np.where((radius < 0.24)[:, None], [0.9, 0.9, 0.88], sign)
        canvas.paint(rays, radius < 0.36, depth - 0.05, face)


def draw():
    """The picture, BGR (HEIGHT, WIDTH, 3) in 0..255."""
    canvas = Canvas()
    cars = [(-3.55, 12, [0.42, 0.07, 0.08]), (-3.55, 17.2, [0.62, 0.64, 0.67]),
            (-3.5, 22.7, [0.1, 0.14, 0.3]), (-1.9, 27, [0.75, 0.75, 0.73]),
            (3.5, 19, [0.16, 0.17, 0.18]),
            (3.55, 25.5, [0.1, 0.3, 0.28]), (3.55, 38, [0.7, 0.7, 0.7])]  # fmt: skip
    oncoming = (1.5, 17, [0.2, 0.28, 0.5])
    ground(canvas, [(x, z, 1.15, 2.5) for x, z, _ in [*cars, oncoming]])
    houses(canvas, -1)
    houses(canvas, 1)
    for x, z, height in [
        (-6.3, 118, 13),
        (0, 135, 15),
        (5, 125, 12),
        (10, 130, 14),
        (-11, 128, 14),
    ]:
        tree(canvas, x, z, height, x)
    for x, z, height in [
        (-6.4, 24, 7.5),
        (-6.4, 46, 8),
        (6.3, 15.5, 7),
        (6.4, 33, 8),
        (6.4, 60, 9),
    ]:
        tree(canvas, x, z, height, z)
    for x, z in [(-5.1, 13.5), (-5.1, 36), (5.1, 24), (5.1, 48)]:
        post(canvas, x, z, 6.8)
    post(canvas, 5.05, 12.5, 2.6, [0.75, 0.08, 0.1])
    post(canvas, -5.05, 18.5, 2.6, [0.12, 0.25, 0.6])
    for x, z, paint in cars:
        car(canvas, x, z, paint, rear=x < 0)
    car(canvas, *oncoming, rear=False)
    for x, z, coat, trousers in [(5.9, 11, [0.2, 0.22, 0.3], [0.14, 0.14, 0.17]),
                                 (6.5, 11.2, [0.55, 0.2, 0.18], [0.2, 0.22, 0.32]),
                                 (-6.0, 11.5, [0.25, 0.3, 0.22], [0.12, 0.12, 0.14]),
                                 (5.6, 21, [0.6, 0.55, 0.45], [0.2, 0.2, 0.25])]:  # fmt: skip
        person(canvas, x, z, np.array(coat), np.array(trousers))
    picture = canvas.colour.reshape(HEIGHT * FINER, WIDTH * FINER, 3)
    picture = cv2.resize(picture, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)
    picture = cv2.GaussianBlur(picture, (0, 0), 0.7)
    rows, columns = np.mgrid[-1 : 1 : HEIGHT * 1j, -1 : 1 : WIDTH * 1j]
    picture *= (1 - 0.12 * (rows**2 + columns**2))[..., None]
    picture += rng.normal(0, 0.012, picture.shape)
    return (np.clip(picture, 0, 1) ** 0.95 * 255).round().astype(np.uint8)[:, :, ::-1]


if __name__ == "__main__":
    target = Path(*sys.argv[1:]) if sys.argv[1:] else Path(__file__).with_name("street.jpg")
    cv2.imwrite(str(target), draw(), [cv2.IMWRITE_JPEG_QUALITY, 90])
