"""Option --device: one sentence where the device is absent, and the same bits where it is not needed."""

import pytest

from hydragnn.base.environment import changed_environment, environment
from hydragnn.scripts import options
from hydragnn.scripts.options import use_device

HIDDEN = dict.fromkeys(options.HIDING)


def test_devices_are_what_libraries_and_children_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "visible_gpus", lambda: 1)
    monkeypatch.setattr(options, "keep_memory", lambda: True)
    own, amd = "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
    for before, text, after in (
        ({}, "", {own: None}),
        ({}, "cuda", {own: None}),
        ({}, "cuda:1", {own: "1"}),
        ({own: "4,GPU-a"}, "cuda:1", {own: "GPU-a"}),
        ({own: "4,GPU-a"}, "cuda:2", {own: "-1"}),
        ({amd: "0,1"}, "cpu", {own: "-1", amd: "-1"}),
    ):
        with changed_environment({**HIDDEN, **before}):
            assert use_device(text) == text
            assert {name: environment().get(name) for name in after} == after
