"""Lazily decoded images: orientation, modes, sizes, pickling, and decoding all at once."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

from calattn import data
from calattn.data.decoding import EncodedImages, PackedBytes, centre_box, fitted, write_packed
from calattn.data.images import as_image, as_tensor


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format=kind, **options)
    return stream.getvalue()


def lazy(items: list[bytes], channels: int = 3, **fields) -> EncodedImages:
    n = len(items)
    return EncodedImages(
        labels=torch.arange(n) % 2,
        class_names=("a", "b"),
        rows=torch.arange(n),
        num_channels=channels,
        content=PackedBytes.of(items),
        files=("file",),
        starts=(0,),
        **fields,
    )


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_as_pillow_turns_it(rng, orientation):
    image = Image.fromarray(rng.integers(256, size=(6, 9, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(image, exif=exif)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))))
    np.testing.assert_array_equal(lazy([content]).decode(0).permute(1, 2, 0).numpy(), expected)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_modes_become_the_data_sets_channels(rng, mode, channels):
    colour = Image.fromarray(rng.integers(256, size=(5, 4, 3), dtype=np.uint8))
    if mode == "I;16":
        image = Image.fromarray((rng.integers(256, size=(5, 4)) * 257).astype(np.uint16))
        expected = Image.fromarray((np.asarray(image) // 257).astype(np.uint8)).convert("RGB" if channels == 3 else "L")
    else:
        image = colour.convert(mode)
        through = image.convert("RGB") if mode in ("P", "CMYK") else image
        expected = through.convert("RGB" if channels == 3 else "L")
    kind = "TIFF" if mode == "CMYK" else "PNG"
    got = lazy([encoded(image, kind)], channels).decode(0)
    assert got.shape == (channels, 5, 4)
    np.testing.assert_array_equal(got.permute(1, 2, 0).squeeze(2).numpy(), np.asarray(expected))


@pytest.mark.parametrize(("kind", "dtype"), [("floating-point", np.float32), ("32-bit", np.int32)])
def test_values_without_a_scale_are_refused_by_name(kind, dtype):
    """They were cut to 8 bits: values in [0, 1], or counts up to 255, became all black."""
    content = encoded(Image.fromarray(np.full((4, 4), 1, dtype)), "TIFF")
    with pytest.raises(data.DataError, match=rf"file, image 0 holds {kind} values.*8 bits per channel"):
        lazy([content], 1).decode(0)


@pytest.mark.parametrize("maximum", [4095, 65535])
def test_grey_maps_state_their_maximum(maximum):
    pixels = np.array([0, maximum // 2, maximum], ">u2")
    content = b"P5 3 1 %d\n" % maximum + pixels.tobytes()
    assert lazy([content], 1).decode(0).flatten().tolist() in ([0, 127, 255], [0, 128, 255])


@pytest.mark.parametrize(("mode", "colour"), [("RGBA", (10, 20, 30, 0)), ("LA", (40, 0))])
def test_transparency_is_left_out(mode, colour):
    got = lazy([encoded(Image.new(mode, (4, 4), colour))], len(colour) - 1).decode(0)
    assert got[:, 0, 0].tolist() == list(colour[:-1])


def test_palette_with_transparency_does_not_warn(recwarn):
    image = Image.new("P", (4, 4))
    image.putpalette([10, 20, 30, 40, 50, 60])
    assert lazy([encoded(image, transparency=b"\x10\x80")]).decode(0)[:, 0, 0].tolist() == [10, 20, 30]
    assert not recwarn


def test_tensor_and_image_are_inverse(rng):
    for shape in ((1, 4, 5), (3, 4, 5)):
        tensor = torch.from_numpy(rng.integers(256, size=shape, dtype=np.uint8))
        assert torch.equal(as_tensor(as_image(tensor)), tensor)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("shape", [(16, 24), (24, 16), (20, 30), (4, 6), (8, 8), (8, 11), (13, 8), (48, 12)])
def test_fitting_agrees_with_torchvision(rng, shape, interpolation):
    """Resize of the shorter side, then the middle: the same pixels wherever torchvision need not round the longer side."""
    image = Image.fromarray(rng.integers(256, size=(*shape, 3), dtype=np.uint8))
    resized = transforms.resize(image, [8], interpolation=InterpolationMode(interpolation))
    middle = transforms.crop(resized, (resized.height - 8) // 2, (resized.width - 8) // 2, 8, 8)
    np.testing.assert_array_equal(np.asarray(fitted(image, 8, interpolation=interpolation)), np.asarray(middle))


@pytest.mark.parametrize("wanted", [(8, 8), (32, 32), (160, 160), (224, 224), (240, 240), (384, 384), (96, 128)])
def test_the_middle_lies_within_the_image(wanted):
    """Rounding put it a trifle outside for one side in a hundred or so, 450 px at 224 among them, and Pillow refuses that."""
    for side in range(8, 4001):
        for size in ((side, side), (side, side + 7), (side * 3 // 2, side)):
            left, top, right, bottom = centre_box(size, wanted)
            assert 0 <= left < right <= size[1]
            assert 0 <= top < bottom <= size[0]
            scale = min(size[0] / wanted[0], size[1] / wanted[1])
            assert abs(bottom - top - wanted[0] * scale) < 1e-9
            assert abs(right - left - wanted[1] * scale) < 1e-9


@pytest.mark.usefixtures("untyped")
def test_an_unknown_interpolation_is_named():
    with pytest.raises(ValueError, match="interpolation must be one of bilinear, bicubic, got 'nearest'"):
        fitted(Image.new("L", (4, 4)), 2, interpolation="nearest")


@pytest.mark.parametrize("size", [(6, 5), (97, 96)])  # one thread, several
def test_in_memory_equals_one_by_one(rng, size):
    pixels = [rng.integers(256, size=(*size, 3), dtype=np.uint8) for _ in range(300)]
    images = lazy([encoded(Image.fromarray(one)) for one in pixels])
    calls = []
    array = data.in_memory(images, progress=lambda *call: calls.append(call))
    np.testing.assert_array_equal(array.array.permute(0, 2, 3, 1).numpy(), np.stack(pixels))
    assert torch.equal(array.labels, images.labels)
    assert calls == [("decoding", done, 300) for done in (64, 128, 192, 256, 300)]
    assert data.in_memory(array) is array
    picked = data.in_memory(images.select(torch.tensor([7, 3])))
    np.testing.assert_array_equal(picked.array.permute(0, 2, 3, 1).numpy(), np.stack([pixels[7], pixels[3]]))


def test_in_memory_with_a_size(rng):
    images = lazy(
        [encoded(Image.fromarray(rng.integers(256, size=(s, 12), dtype=np.uint8))) for s in (10, 20)], channels=1
    )
    with pytest.raises(data.DataError, match=r"file, image 1 is 20 × 12 but the first image is 10 × 12"):
        data.in_memory(images)
    array = data.in_memory(images, size=8)
    assert array.array.shape == (2, 1, 8, 8)
    np.testing.assert_array_equal(array.array[1, 0].numpy(), np.asarray(fitted(images.open(1), 8)))
    again = data.in_memory(array, size=4)  # arrays are fitted too
    assert again.array.shape == (2, 1, 4, 4)
    with pytest.raises(ValueError, match="size must be a positive integer"):
        data.in_memory(images, size=0)


def test_declared_size_is_checked(rng):
    images = lazy([encoded(Image.fromarray(rng.integers(256, size=(6, 5, 3), dtype=np.uint8)))], declared_size=(5, 6))
    assert images.size == (5, 6)
    with pytest.raises(data.DataError, match="file, image 0 is 6 × 5, but images of this data set are 5 × 6"):
        images.decode(0)


def test_pickles_for_worker_processes(tmp_path, rng):
    for name in ("a", "b"):
        (tmp_path / "train" / name).mkdir(parents=True)
        Image.fromarray(rng.integers(256, size=(4, 4, 3), dtype=np.uint8)).save(tmp_path / "train" / name / "ü.png")
    images = data.load(f"imagefolder:{tmp_path}", "train")
    copy = pickle.loads(pickle.dumps(images))
    assert torch.equal(copy.decode(1), images.decode(1))
    assert torch.equal(pickle.loads(pickle.dumps(lazy([encoded(copy.open(0))]))).decode(0), images.decode(0))


def test_packed_bytes(tmp_path):
    items = [b"", b"one", b"", b"x" * 1000, b""]
    write_packed(tmp_path / "packed.bin", iter(items))
    for packed in (PackedBytes.of(iter(items)), PackedBytes.mapped(tmp_path / "packed.bin")):
        for one in (packed, pickle.loads(pickle.dumps(packed))):
            assert [one[i] for i in range(len(one))] == items
    good = (tmp_path / "packed.bin").read_bytes()
    for cut in (0, 7, 8, 30, len(good) - 8, len(good) - 1):
        (tmp_path / "cut.bin").write_bytes(good[:cut])
        with pytest.raises(ValueError, match=r"cut\.bin is damaged"):
            PackedBytes.mapped(tmp_path / "cut.bin")


def test_checks_of_the_split_itself():
    array = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"labels\[1\] is 2"):
        data.ArrayImages(array=array, labels=torch.tensor([0, 2]), class_names=("a", "b"))
    with pytest.raises(data.DataError, match="no classes"):
        data.ArrayImages(array=array, labels=torch.tensor([0, 0]), class_names=())
    with pytest.raises(data.DataError, match="no images"):
        data.ArrayImages(array=array[:0], labels=torch.tensor([], dtype=torch.int64), class_names=("a", "b"))
