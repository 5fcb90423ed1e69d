"""Joules and busy shares by stand-in files."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hydragnn.runs import energy
from hydragnn.runs.energy import Meter, counter_of

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
RAPL = "sys/class/powercap/intel-rapl:"
NODE = "sys/cray/pm_counters/energy"
CARD = "sys/bus/pci/devices/0000:c1:00.0"
SHARE = "this run's share of CPU time"


class Files:
    """Files of a machine; the process had a quarter of its time."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.now = root, 0.0
        clock = SimpleNamespace(monotonic=lambda: self.now, process_time=lambda: self.now)
        patch.setattr(energy, "time", clock)
        self.pass_time(0.0)

    def write(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(f"{value}\n")

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        ticks = int(4 * self.now * os.sysconf("SC_CLK_TCK"))
        self.write({"proc/stat": f"cpu  {ticks - ticks // 2} {ticks // 4} {ticks // 4} 999 999 0 0 0 7 7\ncpu0 1 1 1"})


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    known = SimpleNamespace(pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: known)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    return Files(tmp_path, monkeypatch)


def zone(number: str, name: str, joules: float, most: float = 262143.3) -> dict[str, Any]:
    values = {"name": name, "energy_uj": int(1e6 * joules), "max_energy_range_uj": int(1e6 * most)}
    return {f"{RAPL}{number}/{key}": value for key, value in values.items()}


SOURCES: list[tuple[str, torch.device, dict[str, Any], dict[str, Any], str, float]] = [
    ("node", CPU, {NODE: "5000 J 1234 us"}, {NODE: "5400 J 1235 us"}, f"pm_counters, {SHARE}", 100.0),
    (
        "packages and memory, without cores, graphics and the whole board",
        CPU,
        {**zone("0", "package-0", 10), **zone("1", "package-1", 10), **zone("0:2", "dram", 10), **zone("0:0", "core", 10), **zone("2", "psys", 10)},
        {**zone("0", "package-0", 50), **zone("1", "package-1", 30), **zone("0:2", "dram", 30), **zone("0:0", "core", 99), **zone("2", "psys", 99)},
        f"RAPL, {SHARE}",
        20.0,
    ),
    ("a counter that was reset", CPU, zone("0", "package-0", 100000), zone("0", "package-0", 50), f"RAPL, {SHARE}", 0.0),
    ("a counter that began anew", CPU, zone("0", "package-0", 260000), zone("0", "package-0", 7856.7), f"RAPL, {SHARE}", 2500.0),
    (
        "two dies on a card, of which a process sees one",
        GPU,
        {NODE: "100 J 1 us", "sys/cray/pm_counters/accel0_energy": "1 J", "sys/class/drm/card0/device/gpu_busy_percent": 0, "sys/class/drm/card1/device/gpu_busy_percent": 0},
        {NODE: "500 J 2 us"},
        "pm_counters, this run's share of GPUs",
        100.0,
    ),
    ("AMD's power without means", GPU, {f"{CARD}/hwmon/hwmon3/power1_input": 100_000_000}, {}, "ROCm, power", 500.0),
    ("AMD's mean power", GPU, {f"{CARD}/hwmon/hwmon0/power1_average": 100_000_000}, {}, "ROCm, power", 500.0),
]  # fmt: skip
"""Files, later files, source, joules of one process of two."""


@pytest.mark.parametrize(("device", "files", "later", "source", "joules"), [one[1:] for one in SOURCES], ids=[one[0] for one in SOURCES])  # fmt: skip
def test_a_process_has_its_part_of_the_first_counter_that_can_be_read(
    machine: Files, device: torch.device, files: dict[str, Any], later: dict[str, Any], source: str, joules: float
) -> None:
    machine.write(files)
    meter = Meter(device, 2 if device is GPU else 1, machine.root)
    assert meter.counter and meter.counter.source == source
    assert meter.values()[0] == 0.0
    machine.pass_time(4.0)
    machine.write(later)
    meter.sample()
    machine.pass_time(6.0)
    assert meter.values()[0] == pytest.approx(joules, rel=1e-3)


def test_the_counter_of_nvidia_is_that_of_the_device(machine: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    millijoules = iter([7_000, 7_000, 9_500, 9_500])
    library = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByPciBusId={"0000:c1:00.0": "its handle"}.__getitem__,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: next(millijoules),
    )
    monkeypatch.setitem(__import__("sys").modules, "pynvml", library)
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 60)
    meter = Meter(GPU, root=machine.root)
    assert meter.counter and meter.counter.source == "NVML"
    assert meter.values() == [2.5, 0.6]


NOTHING: list[tuple[str, torch.device, dict[str, Any]]] = [
    ("no files", CPU, {}),
    ("no files of a GPU", GPU, {}),
    ("RAPL for the administrator alone", CPU, {**zone("0", "package-0", 1), f"{RAPL}0/energy_uj": "hidden"}),
    ("a zone without a name", CPU, {f"{RAPL}0/energy_uj": 1}),
    ("another board", CPU, zone("0", "psys", 1)),
    ("not a number", CPU, {NODE: "No data"}),
    *((text, CPU, {NODE: text}) for text in ("nan J", "inf J", "1.5 kJ", "12 W 9 us", "")),
    ("processors beside a GPU", GPU, zone("0", "package-0", 1)),
]


@pytest.mark.parametrize(("device", "files"), [one[1:] for one in NOTHING], ids=[one[0] for one in NOTHING])
def test_without_a_counter_nothing_is_measured(machine: Files, device: torch.device, files: dict[str, Any]) -> None:
    machine.write(files)
    assert counter_of(device, 1, machine.root) is None
    assert str(Meter(device, 1, machine.root).values()[0]) == "nan"


@pytest.mark.parametrize("later", [None, "inf J", "nan J", "5 kJ", ""])
def test_a_counter_that_vanishes_makes_the_joules_unknown(machine: Files, later: str | None) -> None:
    machine.write({NODE: "5000 J"})
    meter = Meter(CPU, 1, machine.root)
    (machine.root / NODE).unlink()
    machine.write({} if later is None else {NODE: later})
    assert str(meter.values()[0]) == "nan"
    machine.write({NODE: "6000 J"})
    assert str(meter.values()[0]) == "nan", "what was used meanwhile is unknown"


@pytest.mark.parametrize(("joules", "known"), [(1e15, False), (2e6, False), (9e5, True)])
def test_a_jump_beyond_what_a_node_can_take_makes_the_joules_unknown(
    machine: Files, joules: float, known: bool
) -> None:
    machine.write({NODE: "0 J"})
    meter = Meter(CPU, 1, machine.root)
    machine.pass_time(10.0)
    machine.write({NODE: f"{joules:.0f} J"})
    assert meter.values()[0] == pytest.approx(joules / 4 if known else float("nan"), rel=1e-3, nan_ok=True)


def test_between_two_ticks_of_the_machine_nothing_is_lost(machine: Files) -> None:
    machine.write({NODE: "0 J"})
    meter = Meter(CPU, 1, machine.root)
    for joules in (100, 200):
        machine.now += 1e-4
        machine.write({NODE: f"{joules} J"})
        meter.sample()
    assert meter.joules == 0.0
    machine.pass_time(10.0)
    machine.write({NODE: "400 J"})
    assert meter.values()[0] == pytest.approx(100.0, rel=1e-3)


def test_a_gpu_is_busy_as_its_file_says_and_a_processor_as_its_threads_are(
    machine: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.write({f"{CARD}/gpu_busy_percent": 20})
    meter = Meter(GPU, 1, machine.root)
    machine.write({f"{CARD}/gpu_busy_percent": 60})
    assert meter.values()[1] == pytest.approx(0.4)
    meter = Meter(CPU, 1, machine.root)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    machine.pass_time(5.0)
    assert meter.values()[1] == pytest.approx(0.25), "one of four threads"
