"""Builds torch_tpu._C with make: the C core (core/Makefile) and the C++ bridge (bridge/Makefile)."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = os.path.dirname(os.path.abspath(__file__))


def torch_dir() -> str:
    """Folder of the torch package of the environment that the wheel is for."""
    candidates = [os.environ.get("TORCH_DIR", "")]
    candidates += [os.path.join(sysconfig.get_path(name), "torch") for name in ("purelib", "platlib")]
    spec = importlib.util.find_spec("torch")
    if spec and spec.origin:
        candidates.append(os.path.dirname(spec.origin))
    for folder in candidates:
        if folder and os.path.isdir(os.path.join(folder, "include", "ATen")):
            return folder
    sys.exit("torch_tpu: no torch with headers found; install torch==2.13.0 first or set TORCH_DIR")


def pjrt_include() -> str:
    """Folder of pjrt_c_api.h, from the build requirement xla-cpu-pjrt."""
    spec = importlib.util.find_spec("xla_plugins.xla_cpu_pjrt")
    for place in list(spec.submodule_search_locations or []) if spec else []:
        folder = os.path.join(place, "include")
        if os.path.isfile(os.path.join(folder, "pjrt_c_api.h")):
            return folder
    sys.exit("torch_tpu: pjrt_c_api.h not found; the wheel xla-cpu-pjrt brings it")


class MakeExtension(build_ext):
    """Lets make do the compiling; its objects stay in build/ and are reused."""

    def build_extension(self, ext: Extension) -> None:
        """Builds the one extension."""
        out = os.path.abspath(self.get_ext_fullpath(ext.name))
        os.makedirs(os.path.dirname(out), exist_ok=True)
        jobs = f"-j{os.cpu_count() or 1}"
        include = f"PJRT_INC={pjrt_include()}"
        subprocess.check_call(["make", jobs, "-C", os.path.join(ROOT, "core"), include])
        subprocess.check_call(
            [
                "make",
                jobs,
                "-C",
                os.path.join(ROOT, "bridge"),
                f"TORCH_DIR={torch_dir()}",
                f"PY_INCLUDE={sysconfig.get_path('include')}",
                f"OUT={out}",
            ]
        )
        # Python started in this folder imports the package from here: it needs the extension too.
        shutil.copy(out, os.path.join(ROOT, "torch_tpu"))


setup(ext_modules=[Extension("torch_tpu._C", [])], cmdclass={"build_ext": MakeExtension})
