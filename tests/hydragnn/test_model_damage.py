"""What ``model.json`` says may be damaged anywhere: loading ends in a sentence that names the file, or in a model."""

import json
import os
from pathlib import Path

from hydragnn.conformance.smoothness import energy_model
from hydragnn.datasets import Normalisation, Scale
from hydragnn.models import save_model
from tests.forked import Forked

DAMAGE = '''
"""Damages every entry of model.json in turn and loads the model, without the checks of types that the tests switch on."""
import copy, json, resource, sys
from pathlib import Path
from hydragnn.base.errors import InputError
from hydragnn.models import load_model

folder = Path(sys.argv[1])
sound = json.loads((folder / "model.json").read_text())
del sound["checksum"]  # of a file that was changed on purpose, or is from before there were any
HOSTILE = (None, "x", "", [], [[1]], {}, {"a": 1}, -1, 2.5, True, 10**30, 99_999_999, float("nan"))

def places(value, *path):
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, *path, key)

counts = {"refused": 0, "loaded": 0}
for path in list(places(sound)):
    for hostile in HOSTILE:
        damaged = copy.deepcopy(sound)
        here = damaged
        for key in path[:-1]:
            here = here[key]
        here[path[-1]] = hostile
        (folder / "model.json").write_text(json.dumps(damaged))
        try:
            load_model(folder)
            counts["loaded"] += 1
        except InputError as error:
            counts["refused"] += 1
            if "model.json" not in str(error) or "\\n" in str(error):
                print("NO FILE", path, hostile, repr(error))
        except Exception as error:
            print("TRACEBACK", path, hostile, repr(error))
(folder / "model.json").write_text(json.dumps(sound))
load_model(folder)
print(json.dumps({**counts, "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}))
'''


def test_a_damaged_description_is_told_in_a_sentence_and_takes_no_memory(tmp_path: Path) -> None:
    scales = {"energy": Scale(mean=(0.0,), std=(3.0,)), "load": Scale(mean=(1.0,), std=(5.0,))}
    save_model(tmp_path / "model", energy_model("pna"), Normalisation(scales=scales, references={"energy": {1: 2.0}}))
    script = tmp_path / "damage.py"
    script.write_text(DAMAGE)
    process = Forked([str(script), str(tmp_path / "model")], os.environ)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0 and "TRACEBACK" not in output and "NO FILE" not in output, output
    found = json.loads(output.splitlines()[-1])
    assert found["refused"] > 100 and found["megabytes"] < 1000, found
