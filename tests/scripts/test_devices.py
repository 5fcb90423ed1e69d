"""Option --device: one sentence where the device is absent, and the same bits where it is not needed."""

import pytest

from hydragnn.base.environment import changed_environment, environment
from hydragnn.base.errors import InputError
from hydragnn.scripts import options
from hydragnn.scripts.options import use_device

HIDDEN = dict.fromkeys(options.HIDING)


@pytest.mark.parametrize("text", ["cuda:", "cuda:-1", "cuda:99999"])
def test_another_word_is_no_device(text: str) -> None:
    with pytest.raises(InputError, match=r"is no device; use cpu, cuda or cuda:1"):
        use_device(text)


def test_devices_are_what_libraries_and_children_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "visible_gpus", lambda: 1)
    monkeypatch.setattr(options, "keep_memory", lambda: True)
    with changed_environment(HIDDEN):
        assert use_device("") == "" and "CUDA_VISIBLE_DEVICES" not in environment()
        use_device("cuda")
        assert "CUDA_VISIBLE_DEVICES" not in environment()
        use_device("cuda:1")
        assert environment()["CUDA_VISIBLE_DEVICES"] == "1"
    with changed_environment({**HIDDEN, "CUDA_VISIBLE_DEVICES": "4,GPU-a"}):
        use_device("cuda:1")
        assert environment()["CUDA_VISIBLE_DEVICES"] == "GPU-a"
        use_device("cuda:2")
        assert environment()["CUDA_VISIBLE_DEVICES"] == "-1"
    with changed_environment({**HIDDEN, "ROCR_VISIBLE_DEVICES": "0,1"}):
        use_device("cpu")
        assert {environment()[name] for name in ("ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")} == {"-1"}
