"""Modules of serving engines, from their own wheels, without what those depend on.

`LUNETTE_ENGINES` is a folder with their wheels; `cargo xtask test --lane python` fetches them. What a module imports and
is not there is stood in for by names that can be called, subclassed and given parameters, and do nothing.
"""

import abc
import contextlib
import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import sys
import types
import zipfile
from pathlib import Path

import pytest

FOLDER = os.environ.get("LUNETTE_ENGINES", "")


class Tensor:
    """As much of a tensor as most modules look at: its address, and how long it is."""

    def __init__(self, value):
        self.bytes = ctypes.create_string_buffer(value, len(value))
        self.nbytes = len(value)

    def data_ptr(self):
        return ctypes.addressof(self.bytes)

    def numel(self):
        return self.nbytes

    def element_size(self):
        return 1

    @property
    def value(self):
        return self.bytes.raw


def example(heading, kind):
    """The settings that examples/README.md has below a heading."""
    text = (Path(__file__).parent.parent / "examples/README.md").read_text()
    (part,) = [each for each in text.split("\n## ") if each.startswith(heading)]
    return part.partition(f"```{kind}\n")[2].partition("```")[0]


def noise(size, seed=0):
    return random.Random(seed).randbytes(size)


class Named(abc.ABCMeta):
    """Names of a class that is not there are such classes too."""

    def __getattr__(cls, name):
        if name.startswith("_"):
            raise AttributeError(name)
        made = type(name, (Anything,), {})
        setattr(cls, name, made)
        return made


class Anything(metaclass=Named):
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
    """A module of such names, and of the modules below it whose sources are given."""

    __path__ = ()

    def __init__(self, name, sources):
        super().__init__(name)
        self.__sources = sources

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        below = f"{self.__name__}.{name}"
        if below in self.__sources:
            return importlib.import_module(below)
        made = type(name, (Anything,), {})
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules below these packages where nothing else does: those whose sources are given, and stand-ins.
    `names` has what some names of stand-ins are."""

    def __init__(self, roots, sources=None, names=None):
        self.roots, self.sources, self.names = roots, sources or {}, names or {}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.roots:
            return importlib.machinery.ModuleSpec(name, self, is_package=name not in self.sources)
        return None

    def create_module(self, spec):
        return None if spec.name in self.sources else StandIn(spec.name, self.sources)

    def exec_module(self, module):
        name = module.__name__
        if name in self.sources:
            path = name.replace(".", "/") + ".py"
            exec(compile(self.sources[name], path, "exec"), module.__dict__)
        vars(module).update(self.names.get(name, {}))


def wheel(package):
    """The wheel of a package; the test is skipped without."""
    found = sorted(Path(FOLDER).glob(f"{package}-*.whl")) if FOLDER else []
    if not found:
        pytest.skip(f"LUNETTE_ENGINES has no wheel of {package}")
    return zipfile.ZipFile(found[0])


@contextlib.contextmanager
def importing(package, prefixes, roots, names):
    """While it lasts, the modules of a wheel below these paths can be imported, and stand-ins for all others below
    `roots`. `names` has names of modules that are replaced, by the modules' names."""
    with wheel(package) as files:
        members = [each for each in files.namelist() if each.startswith(prefixes) and each.endswith(".py")]
        plain = [each for each in members if not each.endswith("__init__.py")]
        sources = {each[:-3].replace("/", "."): files.read(each).decode() for each in plain}
    finder = Finder(roots, sources, names)
    before = set(sys.modules)
    sys.meta_path.append(finder)
    try:
        yield importlib.import_module
    finally:
        sys.meta_path.remove(finder)
        for added in set(sys.modules) - before:
            if added.partition(".")[0] in roots:
                del sys.modules[added]


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
