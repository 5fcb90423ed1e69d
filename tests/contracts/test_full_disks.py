"""Full disks and limits of files end stores and predictions in one sentence: engines in C would end the process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tests.filling
from hydragnn.base.errors import InputError
from hydragnn.base.files import write_atomically

SIZES = [0, 1 << 16, 1_900_000, 20_000_000]
"""From no room at all, through every piece, to enough."""
superuser = pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="superusers of Linux mount disks")


@pytest.mark.parametrize("way", [pytest.param("disk", marks=superuser), "limit"])
def test_where_there_is_no_room_a_sentence_says_so_and_nothing_is_left(tmp_path: Path, way: str) -> None:
    words = [sys.executable, "-P", tests.filling.__file__, str(tmp_path), way, *map(str, SIZES)]
    run = subprocess.run([*(["unshare", "--mount"] if way == "disk" else []), *words], capture_output=True, text=True)
    if way == "disk" and ("cannot be mounted" in run.stderr or "unshare failed" in run.stderr):
        pytest.skip("file systems cannot be mounted here")
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(rows) == len(tests.filling.KINDS) * len(SIZES), run.stderr
    refused = 0
    for kind, size, code, text, left in rows:
        where = (kind, size, code, text, left)
        if code:
            refused += 1
            assert (code, text.count("\n"), left) == (2, 1, []), where
            assert text.startswith("cannot write ") and "free space" in text, where
        else:
            assert (text, left) == ("", [kind]), where
    assert refused >= 7 and all(code == 0 for _, size, code, *_ in rows if size == SIZES[-1])


def test_a_pipe_or_a_device_is_no_place_for_a_file_and_stays_what_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in (pipe, Path(os.devnull)):  # root may rename files onto both
        before = place.stat()
        with pytest.raises(InputError, match="no regular file, and would be replaced"):
            write_atomically(place, "some text")
        assert (place.stat().st_ino, place.stat().st_mode) == (before.st_ino, before.st_mode)
