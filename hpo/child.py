"""The first code of an attempt's process: ``python child.py LIFELINE MODULE ARGUMENTS...``."""

import os
import runpy
import signal
import sys
import threading


def main(arguments: list[str]) -> None:
    """Wait for the controller's word, then run the module; die with the controller."""
    lifeline, module, *rest = arguments
    descriptor = int(lifeline)
    if not os.read(descriptor, 1):
        return  # the controller died before its journal knew of us
    threading.Thread(target=_follow, args=(descriptor,), daemon=True).start()
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _follow(descriptor: int) -> None:
    """Kill this process and all it started as soon as the controller's end of the pipe is closed."""
    while os.read(descriptor, 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
