"""Parkinson's disease from speech (Sakar et al. 2018; Little et al. 2007)."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from ..catalog import Files, dataset
from ..dataset import Dataset
from .common import (
    OWN_BUILD,
    Array,
    block,
    choice,
    labels,
    matrix,
    split_groups,
    standardise,
    table,
)

Variant = Literal["patients", "recordings", "oxford"]

FILES = {
    "patients": "pd_speech_252x751_patient_mean.parquet",
    "recordings": "pd_speech_756x147_recordings.parquet",
    "oxford": "parkinsons_oxford_195.csv.gz",
}
TARGETS = {"patients": "Class", "recordings": "class", "oxford": "status"}
NOTES = {
    "patients": "each row is the mean of a patient's three recordings",
    "recordings": (
        "LEAK: the 147 features were chosen by tests on all rows, labels included, so a test score "
        "is not an unbiased estimate; patients are not split between training and testing"
    ),
    "oxford": "about six recordings of each of 32 speakers, none of them on both sides",
}


def people(form: Variant, columns: dict[str, Array]) -> dict[str, Array]:
    """The speaker of each row, and other attributes."""
    if form == "patients":
        return {"patient": np.arange(len(columns["male"])), "gender": columns["male"].astype(int)}
    if form == "recordings":
        return {"patient": columns["patient"], "gender": columns["gender"]}
    return {"patient": np.array([name.rsplit("_", 1)[0] for name in columns["name"]])}


@dataset(
    "parkinson",
    about="speech of 252 people, 751 features, Parkinson's disease or not (and two other forms)",
    files={
        "pd_speech_252x751_patient_mean.parquet": (
            "6affb3885dd6ab016cd96974fa7aee3c0ae4966580906becc987450d1eb6461c"
        ),
        "pd_speech_756x147_recordings.parquet": (
            "2a97e2b0405a4b359913e386abe7b59a079622d11298087665ac2182071d52a4"
        ),
        "parkinsons_oxford_195.csv.gz": (
            "2a163af7800b7b3a23b872e539199227666af3ce210a73651ad66c2474ca574a"
        ),
    },
    get=(
        "pd_speech_252x751_patient_mean.parquet: pd_data.RData of github.com/topepo/FES; "
        "pd_speech_756x147_recordings.parquet: gender_class_FH_corrected.csv of "
        "github.com/Arnab9Codes/Pd-Speech-Work with patient = row // 3; "
        f"parkinsons_oxford_195.csv.gz: UCI's parkinsons.data. {OWN_BUILD}"
    ),
    folder="parkinsons_speech",
)
def parkinson(
    files: Files,
    form: Annotated[
        Variant, "a row a patient, a row a recording, or the smaller Oxford set"
    ] = "patients",
) -> Dataset:
    """Standardised features; the same patients are for testing in `patients` and `recordings`."""
    choice("parkinson: form", form, Variant)
    columns = table(files[FILES[form]])
    keys = people(form, columns)
    target = TARGETS[form]
    y = labels("parkinson", columns[target], 2)
    test = np.zeros(len(y), dtype=bool)
    for value in (0, 1):  # apart, as Oxford has only eight healthy speakers
        rows = np.flatnonzero(y == value)
        test[rows] = split_groups(keys["patient"][rows], 0.3, f"parkinson {value}")
    names = tuple(n for n in columns if n not in (target, "patient", "gender", "name"))
    return Dataset(
        name="parkinson",
        ids=columns["name"] if form == "oxford" else np.arange(len(test)),
        blocks={"features": block("parkinson", standardise(matrix(columns, names), ~test))},
        y=y,
        test=test,
        goal="binary",
        columns={"features": names},
        keys=keys,
        note=NOTES[form],
    )
