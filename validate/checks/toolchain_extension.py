"""A tiny extension module builds, loads and answers."""

from __future__ import annotations

import importlib.util
import sysconfig

from validate.checks.toolchain_compilers import command, headline
from validate.expect import Expect
from validate.model import Check, Context, Result, failed, passed

CHECK = Check(
    title="an extension module builds and loads",
    explanation="The compiler and the headers are there but do not fit each other or the interpreter. The first error "
    "of the compiler names what is missing.",
    needs=("toolchain.compilers", "toolchain.headers"),
    seconds=60,
)
SOURCE = r"""
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *unused) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "tiny", NULL, -1, methods};
PyMODINIT_FUNC PyInit_tiny(void) { return PyModule_Create(&module); }
"""


def run(_expect: Expect, context: Context) -> Result:
    """Through cc and sysconfig's own paths."""
    source = context.scratch / "tiny.c"
    library = context.scratch / ("tiny" + (sysconfig.get_config_var("EXT_SUFFIX") or ".so"))
    source.write_text(SOURCE, encoding="ascii")
    include = sysconfig.get_path("include")
    built = command(["cc", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(library)])
    if built.returncode:
        return failed(f"the extension does not build: {headline(built.stdout)}", output=built.stdout[-2000:])
    spec = importlib.util.spec_from_file_location("tiny", library)
    if spec is None or spec.loader is None:
        return failed(f"{library.name} is no extension module for this interpreter")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return passed() if module.answer() == 42 else failed("the extension answers wrongly")  # noqa: PLR2004  as in SOURCE
