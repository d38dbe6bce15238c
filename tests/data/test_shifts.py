"""The shifts against plain loops over pixels, one kind at a time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from calattn.data.augment.distortions import CODES, GRIDS, OPERATIONS, ORDERS, SHIFTS, RandAugment, Shifts


def images(n: int = 6, channels: int = 3, size: tuple[int, int] = (12, 16)) -> torch.Tensor:
    return torch.randint(0, 256, (n, channels, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def drawn(kind: str, *, n: int = 6, strength: float | None = None, size: tuple[int, int] = (12, 16)) -> torch.Tensor:
    shifts = Shifts(size=size)
    draws = torch.rand(n, shifts.num_draws, generator=torch.Generator().manual_seed(1))
    draws[:, 0] = (SHIFTS.index(kind) + 0.5) / len(SHIFTS)
    if strength is not None:
        draws[:, 1] = strength
    return shifts.derive(draws)


def test_erase_paints_one_box():
    given, derived = images(), drawn("erase")
    made = Shifts(size=(12, 16))(given, derived)
    for before, after, row in zip(given.numpy(), made.numpy(), derived.tolist(), strict=True):
        top, left, tall, wide = (int(v) for v in row[:4])
        expected = before.copy()
        expected[:, top : top + tall, left : left + wide] = np.array(row[4:7], dtype=np.uint8)[:, None, None]
        assert np.array_equal(after, expected)
        assert 1 <= tall <= 12
        assert 1 <= wide <= 16
        assert tall * wide <= 0.46 * 12 * 16 + 16


def test_channels_blend_with_their_own_permutation():
    given, derived = images(), drawn("channels")
    made = Shifts(size=(12, 16))(given, derived)
    for before, after, row in zip(given.numpy(), made.numpy(), derived.tolist(), strict=True):
        order, weight = ORDERS[int(row[7])], int(row[8])
        assert order != (0, 1, 2)
        assert 2_500 <= weight <= 10_000
        expected = (before.astype(int) * (10_000 - weight) + before[list(order)].astype(int) * weight) // 10_000
        assert np.array_equal(after, expected)


def test_grey_images_have_no_channels_to_exchange():
    given = images(channels=1)
    assert torch.equal(Shifts(size=(12, 16))(given, drawn("channels")), given)


def test_zoom_shrinks_towards_the_middle():
    given, derived = images(), drawn("zoom", strength=0.99)
    made = Shifts(size=(12, 16))(given, derived)
    factor = int(derived[0, 9]) / 65536
    assert 1.85 < factor < 1.9
    for y, x in itertools.product(range(12), range(16)):
        source_y, source_x = (int(np.floor(factor * (v + 0.5 - s / 2) + s / 2)) for v, s in ((y, 12), (x, 16)))
        inside = 0 <= source_y < 12 and 0 <= source_x < 16
        expected = given[0, :, source_y, source_x] if inside else torch.zeros(3, dtype=torch.uint8)
        assert torch.equal(made[0, :, y, x], expected), (y, x)


@pytest.mark.parametrize(("strength", "grid"), [(0.2, GRIDS[0]), (0.8, GRIDS[1])])
@pytest.mark.parametrize("size", [(12, 16), (13, 17), (3, 5)])
def test_tiles_change_places_and_the_rest_stays(strength, grid, size):
    given, derived = images(size=size), drawn("tiles", strength=strength, size=size)
    made = Shifts(size=size)(given, derived)
    tall, wide = max(1, size[0] // grid), max(1, size[1] // grid)
    for before, after, row in zip(given.numpy(), made.numpy(), derived.tolist(), strict=True):
        sources = [int(v) for v in row[12:]]
        assert sorted(sources[: grid**2]) == list(range(grid**2))
        expected = before.copy()
        for i, j in itertools.product(range(min(grid, size[0] // tall)), range(min(grid, size[1] // wide))):
            p, q = divmod(sources[i * grid + j], grid)
            for y, x in itertools.product(range(tall), range(wide)):
                sy, sx = p * tall + y, q * wide + x
                inside = sy < size[0] and sx < size[1]
                expected[:, i * tall + y, j * wide + x] = before[:, sy, sx] if inside else 0
        assert np.array_equal(after, expected)


def test_overlay_shows_the_neighbour():
    given, derived = images(), drawn("overlay")
    made = Shifts(size=(12, 16))(given, derived).numpy().astype(int)
    for row, weight in enumerate(derived[:, 10].int().tolist()):
        assert 1_000 <= weight <= 4_000
        expected = (given[row].int() * (10_000 - weight) + given[row ^ 1].int() * weight) // 10_000
        assert np.array_equal(made[row], expected.numpy())


def test_a_batch_of_all_kinds_is_each_image_by_itself():
    shifts = Shifts(size=(12, 16))
    given = images(40)
    derived = shifts.derive(torch.rand(40, shifts.num_draws, generator=torch.Generator().manual_seed(3)))
    whole = shifts(given, derived)
    pairs = torch.cat([shifts(given[i : i + 2], derived[i : i + 2]) for i in range(0, 40, 2)])
    assert torch.equal(whole, pairs)
    assert 30 < sum(not torch.equal(a, b) for a, b in zip(given, whole, strict=True)) <= 40


def test_any_magnitude_is_that_magnitude_and_that_many_operations():
    """An image's codes, taken apart, give what RandAugment of its own magnitude gives for the operations it got."""
    size = (12, 16)
    spread = RandAugment(num_ops=3, magnitude="any", size=size)
    draws = torch.rand(200, spread.num_draws, generator=torch.Generator().manual_seed(4))
    codes = spread.derive(draws).long()
    given = images(200)
    made = spread(given, codes)
    counts, levels = [], []
    for row in range(200):
        level = int(codes[row, 0]) // CODES
        operations = [int(code) % CODES for code in codes[row]]
        alone = RandAugment(num_ops=3, magnitude=level / 2, size=size)
        assert torch.equal(made[row : row + 1], alone(given[row : row + 1], torch.tensor([operations])))
        counts.append(int(draws[row, -1] * 4))
        levels.append(level)
        assert all(OPERATIONS[code // 2] == "identity" for code in operations[counts[-1] :])
    assert set(counts) == {0, 1, 2, 3}
    assert (min(levels), max(levels)) == (0, 20)
