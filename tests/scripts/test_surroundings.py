"""Where the command line is started, and who reads what it prints: nothing there ends in a traceback, or ends the work."""

import os
import pwd
import sys
import tomllib
from pathlib import Path

import pytest

from hydragnn.base.errors import InputError
from hydragnn.base.files import write_json
from hydragnn.base.terminal import PlainConsole, Printed, printing
from hydragnn.config import parse_config
from hydragnn.ensemble.building.build import check_out
from hydragnn.hpo import campaign_settings, run_search
from hydragnn.runs import train
from hydragnn.scripts.__main__ import main
from tests.charged_rings import RUN, SEARCH, write_rings


def test_full_disks_end_no_work_but_lost_results_are_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = []
    with Path("/dev/full").open("w") as full, (tmp_path / "log").open("w") as log:
        monkeypatch.setattr(sys, "stderr", full)
        monkeypatch.setattr(sys, "stdout", log)
        with printing():
            for _ in range(3):
                PlainConsole(stderr=True).print("epoch 1/9")
                print("note", file=sys.stderr, flush=True)
            print("result")
            done.append("with a full log")
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(InputError, match="cannot print the result: No space left on device"), printing():
            print("result", flush=True)
            PlainConsole().print("result")
            done.append("with results lost")
        full.flush()  # which goes nowhere now
    assert (tmp_path / "log").read_text() == "result\n"
    assert done == ["with a full log", "with results lost"]


def test_work_goes_on_where_the_reader_of_its_log_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(BrokenPipeError), os.fdopen(writer, "w") as log:
        monkeypatch.setattr(sys, "stderr", log)
        with printing():
            PlainConsole(stderr=True).print("epoch 1/9")
            PlainConsole(work=True, file=Printed(log, raised=(BrokenPipeError,))).print("trial 1 of 9")
            done = True
    assert done


def test_letters_that_a_terminal_cannot_show_are_written_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w", encoding="ascii") as log:
        monkeypatch.setattr(sys, "stdout", log)
        with printing():
            PlainConsole().print("\xe9.h5", "\udcff.h5")
    assert (tmp_path / "log").read_text() == "\\xe9.h5 \\udcff.h5\n"


def test_a_name_that_is_no_text_is_refused_where_it_would_be_written_down(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the name /data/\\udcff.h5 is no UTF-8; rename that file or folder"):
        write_json(tmp_path / "config.json", {"data": {"store": "/data/\udcff.h5", "edges": True}})
    assert not [*tmp_path.iterdir()]


def test_a_folder_that_is_gone_and_a_user_without_a_home_are_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def nobody(_: int) -> None:
        raise KeyError

    with monkeypatch.context() as patch:
        patch.delenv("HOME")
        patch.setattr(pwd, "getpwuid", nobody)
        with pytest.raises(SystemExit, match="2"):
            main()
    assert "set HOME" in capsys.readouterr().err
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "is gone; cd to another" in capsys.readouterr().err


def test_a_folder_whose_name_is_no_utf8_takes_no_weights_which_could_not_be_read_there(tmp_path: Path) -> None:
    write_rings(tmp_path / "rings.h5", 12)
    run = tomllib.loads(RUN.replace("rings.h5", str(tmp_path / "rings.h5")))
    settings = campaign_settings({**run, **tomllib.loads(SEARCH)}, tmp_path / "CAMPAIGN.toml")
    out = tmp_path / "lat\udce9n"
    for make in (lambda: train(parse_config(run), out), lambda: run_search(settings, out), lambda: check_out(out)):
        with pytest.raises(InputError, match=r"lat\\xe9n is no UTF-8, and weights could not be read there"):
            make()
    assert not out.exists()
