"""The compiled parts of the package; everything else of the installation is in pyproject.toml.

    python setup.py build_ext --inplace     # into this checkout; pip install does the same

`csr` are the kernels for CPUs, `arena` is the memory of their tensors. Without a C++ compiler the installation goes on, and plain torch and glibc serve.
"""

import sys
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

LOOPS = Extension(
    "hydragnn.kernels.csr",
    ["hydragnn/kernels/csr.cpp"],
    depends=[
        "hydragnn/kernels/along.h",
        "hydragnn/kernels/elementwise.h",
        "hydragnn/kernels/powers.h",
        "hydragnn/kernels/softmax.h",
        "hydragnn/kernels/table.h",
        "hydragnn/kernels/trilinear.h",
        "hydragnn/kernels/vectors.h",
    ],
    extra_compile_args=["-O3", "-std=c++17", "-Wall", "-Wextra", "-ffp-contract=off", "-fno-math-errno"],
    optional=True,
)


ARENA = Extension(
    "hydragnn.arena",
    ["hydragnn/arena.cpp"],
    extra_compile_args=["-O2", "-std=c++17", "-Wall", "-Wextra"],
    libraries=["dl", "pthread"] if sys.platform == "linux" else [],
    optional=True,
)


class BuildLibrary(build_ext):
    """Builds a library with a plain C interface, which is no module of Python and needs no headers of it."""

    def get_ext_filename(self, fullname: str) -> str:
        """Beside the sources, named after the machine, with dots that no name of a module has."""
        return f"{fullname.replace('.', '/')}.{sysconfig.get_platform()}.so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """None beside those of the sources; a module would have PyInit."""
        return list(ext.export_symbols)


setup(ext_modules=[LOOPS, ARENA], cmdclass={"build_ext": BuildLibrary})
