#!/usr/bin/env python3
"""Write the DALI pipeline of `image_decode`: pipeline.py [1/model.dali]. Run it with the nvidia-dali of the image or an older one.

The pictures differ from those of model_repository/image_decode (Pillow) by at most 1 of 255 levels, except in transparent areas,
where the colour below the transparency shows. The pipeline has no limit of pixels, and a broken image fails its whole batch. So use
the model with Pillow if you do not trust the clients.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from nvidia.dali import fn, pipeline_def, types

RESIZE, CROP = 256, 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def middle(length: Any) -> Any:
    """Return the start of a centred crop, as a share of the margin. The pixel is rounded to even, like in torchvision."""
    left_over = length - CROP
    half = left_over // 2
    odd = (left_over - half * 2) * (half - half // 2 * 2)
    return fn.cast(half + odd, dtype=types.FLOAT) / left_over


@pipeline_def(batch_size=4, num_threads=2, device_id=None)
def decode() -> Any:
    """Return the pipeline from IMAGE, uint8 [bytes], to PIXELS, float32 [3, CROP, CROP]."""
    encoded = fn.external_source(device="cpu", name="IMAGE", dtype=types.UINT8, ndim=1)
    image = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
    sides = fn.peek_image_shape(encoded, dtype=types.INT32)[:2]
    size = sides * RESIZE // fn.reductions.min(sides)
    resized = fn.resize(image, size=fn.cast(size, dtype=types.FLOAT), interp_type=types.INTERP_TRIANGULAR, antialias=True)
    return fn.crop_mirror_normalize(
        resized,
        name="PIXELS",
        crop=(CROP, CROP),
        crop_pos_y=middle(size[0]),
        crop_pos_x=middle(size[1]),
        mean=[255 * value for value in MEAN],
        std=[255 * value for value in STD],
        output_layout="CHW",
        dtype=types.FLOAT,
    )


def main(path: Path) -> None:
    """Write the pipeline to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    decode().serialize(filename=str(path))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "1" / "model.dali")
