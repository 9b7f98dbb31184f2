"""PEP 517 backend: setuptools, which asks for torch only where the target environment has none.

pip builds in an environment of its own but with the interpreter of the target environment, whose site-packages is therefore
still known by path.
"""

import os
import sysconfig
from collections.abc import Mapping
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403


def _target_has_torch() -> bool:
    folders = [os.environ.get("TORCH_DIR", "")]
    folders += [os.path.join(sysconfig.get_path(name), "torch") for name in ("purelib", "platlib")]
    return any(os.path.isdir(os.path.join(folder, "include", "ATen")) for folder in folders if folder)


def _requirements(found: list[str]) -> list[str]:
    return found if _target_has_torch() else [*found, "torch==2.13.0"]


def get_requires_for_build_wheel(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """Requirements of a wheel build."""
    return _requirements(build_meta.get_requires_for_build_wheel(config_settings))


def get_requires_for_build_editable(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """Requirements of an editable build."""
    return _requirements(build_meta.get_requires_for_build_editable(config_settings))
