#!/usr/bin/env python3
"""Makes the CUDA build of torch importable where no CUDA package is installed: cpu-torch.py PYTHON_SITE_PACKAGES

The wheel's libraries name CUDA's shared objects as needed, some 3 GB of packages that a test on a CPU never calls.
This puts an object of each needed name beside them in which every symbol exists and functions answer 100
(cudaErrorNoDevice), and lets torch say that it is a CPU build.
For tests only: an environment for a GPU takes the plain wheels. Needs gcc and readelf. Running it twice is harmless.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ALWAYS_THERE = re.compile(r"^(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|gomp|python.*)\.so|ld-linux)")
COMPILER_VERSION = re.compile(r"^(GLIBC|GLIBCXX|CXXABI|GCC|GOMP|OMP|OACC)_")
#: What callers look at even though there is no device: texts of errors; whether a stream captures (no).
ANSWERS = {"cudaGetErrorString": 'const char *{}() {{ return "no CUDA here"; }}',
           "cudaGetErrorName": 'const char *{}() {{ return "cudaErrorNoDevice"; }}',
           "cudaStreamIsCapturing": "int {}(void *stream, int *status) {{ return *status = 0; }}"}
#: In each of our objects, to know them by.
MARK = "forebay_stands_in_for_cuda"
#: Symbols without a version that no library of torch defines may be those of the compiler's own libraries.
SYSTEM_LIBRARIES = ("libstdc++.so.6", "libgcc_s.so.1", "libc.so.6", "libm.so.6")


def main(site_packages):
    lib = site_packages / "torch" / "lib"
    there = [path for path in sorted(lib.glob("*.so*")) if is_elf(path) and not is_stub(path)]
    absent = {name for path in there for name in needed(path)} - {path.name for path in there}
    absent = sorted(name for name in absent if not ALWAYS_THERE.match(name))
    missing = missing_symbols(there, absent)
    for name in absent:
        compile_stub(lib / name, sorted(missing[name]))
    declare_cpu_build(site_packages / "torch" / "version.py")
    print(f"torch is a CPU build now: {len(absent)} stubs, {sum(map(len, missing.values()))} symbols", file=sys.stderr)


def missing_symbols(libraries, absent):
    """{library that shall have it: {(symbol, version or None)}} for all that `libraries` use and none defines."""
    used, defined, owner_of_version = set(), set(), {}
    for path in libraries:
        undefined_here, defined_here = symbols(path)
        used |= undefined_here
        defined |= defined_here
        owner_of_version.update(version_owners(path))
    for name in SYSTEM_LIBRARIES:
        path = Path(run("gcc", f"-print-file-name={name}").strip())
        if path.exists():
            defined |= symbols(path)[1]
    missing = {name: set() for name in absent}
    for symbol, version in used:
        if symbol in defined or symbol.startswith(("Py", "_Py")) or COMPILER_VERSION.match(version or ""):
            continue
        owner = owner_of_version.get(version)
        # Loaded before all of torch's own, any of them will do for a symbol without a version.
        missing[owner if owner in missing else absent[0]].add((symbol, version))
    return missing


def symbols(path):
    """-> ({(undefined symbol, version or None)}, {defined symbol}); weak undefined ones may stay undefined."""
    undefined, defined = set(), set()
    for line in run("readelf", "--dyn-syms", "--wide", path).splitlines():
        fields = line.split()
        if len(fields) < 8 or not re.fullmatch(r"\d+:", fields[0]):
            continue
        binding, section, (symbol, _, version) = fields[4], fields[6], fields[7].partition("@")
        if section != "UND":
            defined.add(symbol)
        elif binding != "WEAK":
            undefined.add((symbol, version.lstrip("@") or None))
    return undefined, defined


def version_owners(path):
    """{symbol version: the library that `path` expects it from}"""
    owners, library = {}, None
    for line in run("readelf", "--version-info", "--wide", path).splitlines():
        if found := re.search(r"Version:.* File: (\S+)", line):
            library = found[1]
        elif (found := re.search(r"Name: (\S+)\s+Flags", line)) and library:
            owners[found[1]] = library
    return owners


def compile_stub(path, missing):
    lines = [f"char {MARK};", "extern char _ZTVN10__cxxabiv117__class_type_infoE[] __attribute__((weak));"]
    by_version, names = {}, set()
    for symbol, version in missing:
        if version:
            by_version.setdefault(version, []).append(symbol)
        if symbol not in names:
            names.add(symbol)
            lines += definition(symbol, len(names))
    with tempfile.TemporaryDirectory() as directory:
        source, versions = Path(directory, "stub.c"), Path(directory, "versions")
        source.write_text("\n".join(lines) + "\n")
        versions.write_text("".join(f"{v} {{ global: {'; '.join(s)}; }};\n" for v, s in by_version.items()))
        path.unlink(missing_ok=True)
        run(
            *("gcc", "-w", "-fno-builtin", "-shared", "-fPIC", "-O1", f"-Wl,-soname,{path.name}"),
            *([f"-Wl,--version-script={versions}"] if by_version else []),
            *("-o", path, source, "-lstdc++"),
        )


def definition(symbol, number):
    if symbol.startswith("_ZTI"):
        # A C++ type: dynamic_cast reads its vtable pointer, which only the running program knows.
        return [
            f'__attribute__((weak)) void *{symbol}[4] = {{0, "{symbol[4:]}", 0, 0}};',
            f"__attribute__((constructor)) static void type_{number}(void) {{"
            f" if (&_ZTVN10__cxxabiv117__class_type_infoE[0])"
            f" {symbol}[0] = _ZTVN10__cxxabiv117__class_type_infoE + 16; }}",
        ]
    if symbol.startswith(("_ZTV", "_ZTS", "_ZTT", "_ZGV")):
        return [f"__attribute__((weak)) void *{symbol}[64];"]
    return [ANSWERS.get(symbol, "long {}() {{ return 100; }}").format(symbol)]


def declare_cpu_build(version_file):
    text = version_file.read_text()
    # A new file: the installer may have hard-linked the old one to its cache.
    version_file.unlink()
    version_file.write_text(re.sub(r"(?m)^cuda(: [^=]+)? = .*$", r"cuda\1 = None", text))


def needed(path):
    return re.findall(r"\(NEEDED\).*\[(.+?)\]", run("readelf", "--dynamic", "--wide", path))


def is_elf(path):
    with path.open("rb") as file:
        return not path.is_symlink() and file.read(4) == b"\x7fELF"


def is_stub(path):
    return path.stat().st_size < 2**20 and MARK in symbols(path)[1]


def run(*command):
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
