#!/usr/bin/env python3
"""Are the kernels that nattenc compiles the kernels that upstream's own build compiles?

For one unit of every family: nattenc builds its unit, torch-free; upstream's own generator writes the unit
of the same index, which nvcc compiles with PyTorch's headers and the same flags that change code. Then the
code section of every kernel is compared byte by byte.

Needs: a CUDA toolkit with cuobjdump and the libraries' headers (cublas, cusparse, cusolver), PyTorch's
headers (the folder torch/include of its wheel, unpacked), Python's own headers (python3-dev).

  nattenc fetch --variant cu130        # prints where natten's sources are
  scripts/same-kernels.py --nattenc nattenc --toolkit /usr/local/cuda --torch torch/include --sources DIR
"""

import argparse
import concurrent.futures
import json
import os
import shutil
import struct
import subprocess
import sys
import sysconfig
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Family: upstream's generator, the capability it is compared at, the define that its text asks for.
FAMILIES = {
    "reference": ("reference_fna", "9.0", None),
    "fna": ("fna", "9.0", None),
    "fmha": ("fmha", "9.0", None),
    "hopper_fna": ("hopper_fna", "9.0a", "NATTEN_WITH_HOPPER_FNA"),
    "hopper_fna_bwd": ("hopper_fna_bwd", "9.0a", "NATTEN_WITH_HOPPER_FNA"),
    "hopper_fmha": ("hopper_fmha", "9.0a", "NATTEN_WITH_HOPPER_FNA"),
    "hopper_fmha_bwd": ("hopper_fmha_bwd", "9.0a", "NATTEN_WITH_HOPPER_FNA"),
    "blackwell_fna": ("blackwell_fna", "10.0a", "NATTEN_WITH_BLACKWELL_FNA"),
    "blackwell_fna_bwd": ("blackwell_fna_bwd", "10.0a", "NATTEN_WITH_BLACKWELL_FNA"),
    "blackwell_fmha": ("blackwell_fmha", "10.0a", "NATTEN_WITH_BLACKWELL_FNA"),
    "blackwell_fmha_bwd": ("blackwell_fmha_bwd", "10.0a", "NATTEN_WITH_BLACKWELL_FNA"),
}

# Upstream's flags that change code, as its CMakeLists.txt has them in a release build.
FLAGS = [
    "-O3", "-std=c++17", "--use_fast_math", "--expt-relaxed-constexpr", "--extended-lambda", "-DNDEBUG",
    "-DNATTEN_WITH_CUTLASS", "-DCUTLASS_ENABLE_TENSOR_CORE_MMA=1", "-Xcompiler", "-fno-strict-aliasing,-fPIC",
]  # fmt: skip


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nattenc", default="nattenc", help="the nattenc to ask (default: on PATH)")
    parser.add_argument("--toolkit", type=Path, required=True, help="CUDA toolkit for both sides")
    parser.add_argument("--torch", type=Path, required=True, help="PyTorch's include folder")
    parser.add_argument("--python-include", type=Path, default=Path(sysconfig.get_paths()["include"]))
    parser.add_argument("--sources", type=Path, required=True, help="natten's unpacked source archive")
    parser.add_argument("--variant", default="cu130")
    parser.add_argument("--policy", default="default", choices=["default", "fine", "coarse"])
    parser.add_argument("--family", default=",".join(FAMILIES), help="families, joined by commas")
    parser.add_argument("--unit", action="append", default=[], metavar="FAMILY=INDEX",
                        help="another unit of a family than its last")  # fmt: skip
    parser.add_argument("--work", type=Path, default=ROOT / "target" / "same-kernels")
    parser.add_argument("-j", type=int, default=max(1, (os.cpu_count() or 2) // 2),
                        help="compilers of upstream's units side by side, each of up to 12 GB")  # fmt: skip
    parser.add_argument("--build-option", action="append", default=[], help="passed on to nattenc build")
    return parser.parse_args()


def splits(family, policy):
    table = tomllib.loads((ROOT / "templates" / "cuda" / family / "instances.toml").read_text())
    return table["splits"][policy]


def upstream(args, family, index, log):
    """Compiles upstream's unit; gives its object's path, wall and CPU seconds, peak kB."""
    generator, capability, define = FAMILIES[family]
    out = args.work / "upstream" / family
    out.mkdir(parents=True, exist_ok=True)
    count = str(splits(family, args.policy))
    script = args.sources / "scripts" / f"autogen_{generator}.py"
    subprocess.run([sys.executable, script, "--num-splits", count, "-o", out], check=True, capture_output=True)
    number = capability.replace(".", "")
    target = out / "unit.o"
    includes = [
        args.sources / "csrc" / "include", out / "autogen" / "include",
        args.sources / "third_party" / "cutlass" / "include",
        args.torch, args.torch / "torch" / "csrc" / "api" / "include", args.python_include,
    ]  # fmt: skip
    command = [args.toolkit / "bin" / "nvcc", *FLAGS, "-DTORCH_EXTENSION_NAME=libnatten"]
    command += [f"-D{define}"] if define else []
    command += [f"-I{path}" for path in includes]
    command += ["-gencode", f"arch=compute_{number},code=sm_{number}"]
    command += ["-c", out / "autogen" / "src" / "cuda" / family / f"source_{index}.cu", "-o", target]
    begin = time.monotonic()
    with open(log, "w") as file:
        process = subprocess.Popen([str(word) for word in command], stdout=file, stderr=file)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        tail = "\n".join(Path(log).read_text().splitlines()[-15:])
        raise SystemExit(f"{family}: upstream's unit does not compile (exit {process.returncode}), see {log}\n{tail}")
    return target, time.monotonic() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss


def kernels(args, binary, scratch):
    """Every kernel in an object's cubins, by mangled name: its code, and what its cubin's address slots hold."""
    scratch.mkdir(parents=True, exist_ok=True)
    for old in scratch.glob("*.cubin"):
        old.unlink()
    tool = args.toolkit / "bin" / "cuobjdump"
    subprocess.run([tool, "-xelf", "all", binary.resolve()], cwd=scratch, check=True, capture_output=True)
    found = {}
    for cubin in sorted(scratch.glob("*.cubin")):
        parts = sections(cubin.read_bytes())
        held = slots(parts)
        for name, _, code in parts:
            if name.startswith(".text."):
                found[name.removeprefix(".text.")] = (code, held)
    return found


def sections(elf):
    """Name, header and bytes of every section of a 64-bit little-endian ELF file (System V gABI, chapter 4)."""
    assert elf[:6] == b"\x7fELF\x02\x01", "not a 64-bit little-endian ELF file"
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    if count == 0:
        (count,) = struct.unpack_from("<Q", elf, table + 0x20)
    if names == 0xFFFF:
        (names,) = struct.unpack_from("<I", elf, table + 0x28)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, table + size * i) for i in range(count)]
    strings = headers[names][4]
    found = []
    for header in headers:
        begin = strings + header[0]
        data = b"" if header[1] == 8 else elf[header[4] : header[4] + header[5]]  # 8: SHT_NOBITS
        found.append((elf[begin : elf.index(b"\0", begin)].decode(), header, data))
    return found


def slots(parts):
    """What each slot of constant bank 4 is relocated to: text for a string, else the symbol's name.

    The bank is the cubin's table of addresses of global objects. A slot's place depends on how many
    objects the headers declare, used or not; what it points to is what the code means by it.
    """
    by_name = {name: (header, data) for name, header, data in parts}
    if ".rela.nv.constant4" not in by_name:
        return {}
    symbols, strings = by_name[".symtab"][1], by_name[".strtab"][1]
    held = {}
    for offset, info, addend in struct.iter_unpack("<QQq", by_name[".rela.nv.constant4"][1]):
        name, _, _, section, value, size = struct.unpack_from("<IBBHQQ", symbols, 24 * (info >> 32))
        if section < len(parts) and parts[section][0] == ".nv.global.init":
            held[offset] = parts[section][2][value + addend : value + size]
        else:
            held[offset] = (strings[name : strings.index(b"\0", name)], addend)
    return held


# Bits of a 16-byte instruction that reads constant memory (read off nvdisasm's output for sm_100a): the
# bank, and where the offset in bytes begins, by opcode: LDC and LDCU.
BANK = (54, 0x1F)
OFFSET = {0xB82: 38, 0x7AC: 37}


def same(left, right):
    """Whether two kernels are the same code; and how many instructions read an address from another slot."""
    (ours, our_slots), (theirs, their_slots) = left, right
    if ours == theirs:
        return True, 0
    if len(ours) != len(theirs):
        return False, 0
    moved = 0
    for at in range(0, len(ours), 16):
        if ours[at : at + 16] == theirs[at : at + 16]:
            continue
        words = [int.from_bytes(code[at : at + 16], "little") for code in (ours, theirs)]
        begin, bank = OFFSET.get(words[0] & 0xFFF), words[0] >> BANK[0] & BANK[1]
        if begin is None or bank != 4:
            return False, 0
        mask = (1 << BANK[0]) - (1 << begin)
        slot = [(word & mask) >> begin for word in words]
        if words[0] & ~mask != words[1] & ~mask or slot[0] not in our_slots:
            return False, 0
        if our_slots[slot[0]] != their_slots.get(slot[1]):
            return False, 0
        moved += 1
    return True, moved


def main():
    args = options()
    families = args.family.split(",")
    unknown = [family for family in families if family not in FAMILIES]
    if unknown:
        raise SystemExit(f"no such family: {', '.join(unknown)}; known: {', '.join(FAMILIES)}")
    # The last unit: in the families with kernels for old devices those are in the first ones.
    index = {family: splits(family, args.policy) - 1 for family in families}
    for text in args.unit:
        family, _, number = text.partition("=")
        if family not in index or not number.isdigit():
            raise SystemExit(f"--unit {text}: write FAMILY=INDEX, with one of {', '.join(families)}")
        index[family] = int(number)
    if not shutil.which(args.nattenc):
        raise SystemExit(f"there is no program {args.nattenc}; name one with --nattenc")
    for option in ("toolkit", "torch", "sources"):
        if not Path(getattr(args, option)).is_dir():
            raise SystemExit(f"--{option} {getattr(args, option)}: is no directory")
    args.work.mkdir(parents=True, exist_ok=True)

    units = [f"{family}_{number:03}" for family, number in index.items()]
    capabilities = sorted({FAMILIES[family][1] for family in families})
    ours = args.work / "ours"
    build = [
        args.nattenc, "build", "--variant", args.variant, "--toolkit", args.toolkit, "--policy", args.policy,
        "--unit", ",".join(units), "--capability", ",".join(capabilities), "--dist", ours, *args.build_option,
    ]  # fmt: skip
    # Long compiles first.
    order = sorted(families, key=lambda f: ("bwd" not in f, "hopper" not in f, "blackwell" not in f))
    with concurrent.futures.ThreadPoolExecutor(args.j) as pool:
        futures = {f: pool.submit(upstream, args, f, index[f], args.work / f"upstream-{f}.log") for f in order}
        built = subprocess.run([str(word) for word in build], cwd=ROOT)
        if built.returncode != 0:
            raise SystemExit(f"nattenc build ended with exit {built.returncode}")
        theirs = {family: future.result() for family, future in futures.items()}

    subprocess.run(["ar", "x", (ours / "lib" / "libnatten_kernels.a").resolve()], cwd=args.work, check=True)
    print(f"{'unit':<24} {'kernels':>7} {'equal':>6} {'moved':>6} {'differ':>6} {'dead':>5} {'bytes':>10}   upstream's: CPU s, peak GB")
    totals, wrong = [0, 0, 0], []
    for family, unit in zip(index, units):
        target, _, cpu, peak = theirs[family]
        left = kernels(args, args.work / f"{unit}.o", args.work / "cubins" / "ours" / family)
        right = kernels(args, target, args.work / "cubins" / "upstream" / family)
        verdicts = {name: same(left[name], right[name]) if name in right else (False, 0) for name in left}
        differ = [name for name, (equal, _) in verdicts.items() if not equal]
        moved = sum(1 for equal, slots_moved in verdicts.values() if equal and slots_moved)
        # Upstream compiles kernels for other devices too, into a message; nattenc leaves them out.
        dead = [name for name in right if name not in left]
        size = sum(len(left[name][0]) for name in left if name not in differ)
        equal = len(left) - len(differ) - moved
        print(f"{unit:<24} {len(left):>7} {equal:>6} {moved:>6} {len(differ):>6} {len(dead):>5} {size:>10}   {cpu:.0f}, {peak / 1e6:.1f}")
        for i, number in enumerate((len(left), moved, len(differ))):
            totals[i] += number
        wrong += [f"{unit}: {name}: {'other code' if name in right else 'upstream has none of this name'}" for name in differ]
    print(f"{totals[0]} kernels compared, {totals[2]} differ")
    if totals[1]:
        print(f"  moved: {totals[1]} kernels are equal but read addresses of strings from other slots of the cubin's")
        print("  table (constant bank 4): PyTorch's headers declare more global objects, which take slots too")
    for line in wrong:
        print(f"  {line}")
    if totals[0] == 0 or wrong:
        raise SystemExit(8)


if __name__ == "__main__":
    main()
