"""Files of DREAM.3D."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hydragnn.base.errors import InputError
from hydragnn.datasets.sources.map_settings import MapSettings
from hydragnn.graphs.batch import GraphBatch

LAUE_GROUPS = dict(enumerate(["6/mmm", "m-3m", "6/m", "m-3", "-1", "2/m", "mmm", "4/m", "4/mmm", "-3", "-3m"]))
LENGTHS = {5: 1e-3, 6: 1.0, 7: 1e3, 100: 1.0, 101: 1.0}
"""Micrometres of DREAM.3D's units. Metres, its default that few files mean, and odd units are asked for."""


def read_dream3d(path: Path, settings: MapSettings) -> GraphBatch:
    """Return the cells of a file of DREAM.3D 6 or newer."""
    groups, arrays = list[Any](), list[Any]()
    with h5py.File(path) as file:
        file.visititems(lambda _, item: groups.append(item) if isinstance(item, h5py.Group) else None)
        images = [one for one in groups if "_DIMENSIONS" in one.attrs or "DIMENSIONS" in one.get("_SIMPL_GEOMETRY", {})]
        own = [one for one in groups if len(images) == 1 and f"{one.name}/".startswith(f"{images[0].name}/")]
        cells = [one for one in own if "FeatureIds" in one or ("EulerAngles" in one and one["EulerAngles"].ndim == 4)]
        if len(cells) != 1:
            what = f"{len(images)} images, and {len(cells)} groups of cells with FeatureIds or EulerAngles"
            raise InputError(f"{path} has {what}; write one into a file")
        older = images[0].get("_SIMPL_GEOMETRY", images[0])
        stated = {**images[0].get("_SIMPL_GEOMETRY", {}), **older.attrs, **images[0].attrs}
        entries = {key.strip("_").upper(): one for key, one in stated.items()}
        size, scale = [int(one) for one in entries["DIMENSIONS"]], LENGTHS.get(int(entries.get("UNITS", 6)), 0.0)
        steps = settings.steps(path, np.multiply(scale, entries.get("SPACING", [0] * 3)))
        for key, width in {"FeatureIds": 1, "EulerAngles": 3, "Phases": 1, "Mask": 1}.items():
            shape, expected = cells[0][key].shape if key in cells[0] else None, (*size[::-1], width)
            if shape and expected not in (shape, (*shape, 1)):
                raise InputError(f"{path}: {key} has shape {shape}, and its geometry says {expected}; write it again")
            arrays.append(cells[0][key][()].reshape(expected).transpose(2, 1, 0, 3).squeeze() if shape else None)
        about = next((one for one in own if "CrystalStructures" in one), dict[str, Any]())
        structures = [LAUE_GROUPS.get(one) for one in about["CrystalStructures"][()].ravel()] if about else []
        texts = next((about[key] for key in ("PhaseName", "MaterialName") if key in about), None)
        names = [] if texts is None else texts.asstr("latin-1")[()].ravel().tolist()
    ids, angles, phase, good = arrays
    phase = np.ones(ids.shape if angles is None else angles.shape[:-1], dtype=np.int64) if phase is None else phase
    phase = phase if good is None else np.where(good, phase, 0)
    turns = None if angles is None else settings.turns(path, angles, phase > 0)
    phases = [{number: one for number, one in enumerate(some) if one} for some in (names, structures)]
    return settings.of_map(path, steps[np.array(size) > 1], phase, turns, phases, ids)
