"""Quality of experience of streamed video (Waterloo Streaming QoE Database IV)."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from ...core.errors import SettingError
from ..catalog import Files, dataset
from ..dataset import Dataset
from .common import OWN_BUILD, block, choice, labels, matrix, split_groups, standardise, table

Device = Literal["hdtv", "phone", "uhdtv", "all"]

FEATURES = (
    "complexity_bpp",
    "qp_mean",
    "fps",
    "n_stalls",
    "total_stall_s",
    "initial_stall_s",
    "bitrate_avg_kbps",
    "bitrate_trend_kbps_per_chunk",
    "bitrate_last_kbps",
)
CONDITION = ("content", "encoder", "abr", "trace")


@dataset(
    "sqoe4",
    about="450 video streams on each of 3 devices, 9 features, well rated by viewers or not",
    files={
        "waterloo_sqoe4_1350.csv.gz": (
            "e9c8b654a7d1ab5c0dfda6dd10b0301fbd628675dda5f9ffee32528ea9bf9bf5"
        )
    },
    get=(
        "waterloo_sqoe4_1350.csv.gz: stream, device, content, encoder, abr, trace, mos and "
        f"{', '.join(FEATURES)}, from the logs of the Waterloo Streaming QoE Database IV "
        f"(github.com/Leo-rojo/Analysis-of-Waterloo-IV-QoE-dataset). {OWN_BUILD}"
    ),
    folder="video_qoe_sqoe4",
)
def sqoe4(
    files: Files,
    device: Annotated[Device, "the screen it was watched on"] = "hdtv",
    threshold: Annotated[float, "mean opinion score from which a stream is well rated"] = 60.0,
) -> Dataset:
    """Positive where the mean opinion score (0 to 100) reaches the threshold."""
    choice("sqoe4: device", device, Device)
    columns = table(files["waterloo_sqoe4_1350.csv.gz"])
    if device != "all":
        columns = {name: c[columns["device"] == device] for name, c in columns.items()}
    y = columns["mos"] >= threshold
    if y.all() or not y.any():
        raise SettingError(f"sqoe4: threshold = {threshold} leaves one class only")
    # The same content, encoder, player and network was shown on all devices: it stays on one side.
    conditions = zip(*(columns[name] for name in CONDITION), strict=True)
    test = split_groups(np.array([" ".join(map(str, c)) for c in conditions]), 0.3, "sqoe4")
    return Dataset(
        name="sqoe4",
        ids=columns["stream"],
        blocks={"features": block("sqoe4", standardise(matrix(columns, FEATURES), ~test))},
        y=labels("sqoe4", y, 2),
        test=test,
        goal="binary",
        columns={"features": FEATURES},
        keys={name: columns[name] for name in ("device", *CONDITION)},
        note=(
            "a stand-in for SQoE-III: bits per pixel and quantiser stand for temporal and spatial "
            f"information; the label, mean opinion score >= {threshold:g}, is a choice made here"
        ),
    )
