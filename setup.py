"""Compiled kernels of the package; everything else of the installation is in pyproject.toml.

    python setup.py build_ext --inplace     # into this checkout; pip install does the same

Without a C++ compiler the installation goes on, and kernels are plain torch.
"""

import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

LOOPS = Extension(
    "hydragnn.kernels.cpu.csr",
    ["hydragnn/kernels/cpu/csr.cpp"],
    depends=[
        "hydragnn/kernels/cpu/along.h",
        "hydragnn/kernels/cpu/elementwise.h",
        "hydragnn/kernels/cpu/powers.h",
        "hydragnn/kernels/cpu/table.h",
        "hydragnn/kernels/cpu/trilinear.h",
        "hydragnn/kernels/cpu/vectors.h",
    ],
    extra_compile_args=["-O3", "-std=c++17", "-Wall", "-Wextra", "-ffp-contract=off", "-fno-math-errno"],
    optional=True,
)


class BuildLibrary(build_ext):
    """Build a library with a plain C interface, which needs no headers of Python."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return the library's name, beside the sources, with the machine's name."""
        return f"{fullname.replace('.', '/')}.{sysconfig.get_platform()}.so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """Return the source's symbols; a module would have PyInit."""
        return list(ext.export_symbols)


setup(ext_modules=[LOOPS], cmdclass={"build_ext": BuildLibrary})
