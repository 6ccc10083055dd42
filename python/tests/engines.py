"""Modules of serving engines, from their own wheels, without what those depend on.

`LUNETTE_ENGINES` is a folder with their wheels; `cargo xtask test --lane python` fetches them. What a module imports and
is not there is stood in for by names that can be called, subclassed and given parameters, and do nothing.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
import zipfile
from pathlib import Path

import pytest

FOLDER = os.environ.get("LUNETTE_ENGINES", "")


class Anything:
    """What is imported and not there."""

    def __init__(self, *_args, **_kwargs):
        pass

    def __init_subclass__(cls, **_kwargs):
        pass

    def __class_getitem__(cls, _item):
        return cls

    def __call__(self, *_args, **_kwargs):
        return Anything()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class StandIn(types.ModuleType):
    """A module of such names."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (Anything,), {})
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stand-ins below these packages, where nothing else does."""

    def __init__(self, roots):
        self.roots = roots

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.roots:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


def wheel(package):
    """The wheel of a package; the test is skipped without."""
    found = sorted(Path(FOLDER).glob(f"{package}-*.whl")) if FOLDER else []
    if not found:
        pytest.skip(f"LUNETTE_ENGINES has no wheel of {package}")
    return zipfile.ZipFile(found[0])


def load(package, path, roots, **names):
    """One module of a wheel as it is there. Below `roots` stand-ins are imported; `names` replaces names of the module."""
    with wheel(package) as files:
        source = files.read(path).decode()
    finder = Finder(roots)
    before = set(sys.modules)
    sys.meta_path.append(finder)
    try:
        name = path.removesuffix(".py").replace("/", ".")
        module = types.ModuleType(name)
        module.__file__ = path
        # Dataclasses look for their module.
        sys.modules[name] = module
        exec(compile(source, path, "exec"), module.__dict__)
    finally:
        sys.meta_path.remove(finder)
        for added in set(sys.modules) - before:
            if added.partition(".")[0] in roots:
                del sys.modules[added]
    vars(module).update(names)
    return module
