#!/usr/bin/env python3
"""What the engine saves: the same units with nattenc, and as whole nvcc commands with ninja, make and sccache.

With nattenc, in order, each a whole process in a project and a store of its own below --work:
  cold              an empty cache; against the lower bound max(critical path, CPU sum / -j)
  unchanged         again, and the same of the first unit alone: what 144 units would take by the difference
  fresh clone       the same in another directory: no cicc, ptxas or host compile may run
  records, objects  a cache of all records and the bytes of the objects alone: likewise
  capability added  --added too: no other capability's device job may run
  hopper header     another text in a CUTLASS header of Hopper's, which core does not read and Blackwell does: of core
                    nothing may run
  other release     --release of NATTEN, with the cache of the pinned one: phases that are used again. What two
                    releases share is the same in either direction
With ninja, make and sccache (under ninja): cold, unchanged, fresh clone, capability added. They compile objects
alone: nattenc's figures hold the link, the packing and the verification of the artifact too.

Ratios are to nattenc's cold build. What must not run and did is told, and is exit code 1. Times are those of
this machine as it is: for figures that mean something let nothing else run on it.

  scripts/bench-engine.py --nattenc target/release/nattenc --ninja ninja --sccache sccache
  scripts/bench-engine.py --nattenc target/release/nattenc --unit fna_011,hopper_fna_000 --capability 8.0,9.0a -j 2
  scripts/bench-engine.py --nattenc target/release/nattenc --warm --unit '' --only unchanged,clone,bare

Needs python 3, and on PATH g++ and what is named.
"""

import argparse
import json
import os
import pathlib
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCENES = ["unchanged", "clone", "bare", "added", "header", "release", "others"]
NEVER = {"cicc", "ptxas", "host"}
HEADER = "include/cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized.hpp"
ALL_UNITS = 144


def stop(text):
    raise SystemExit(f"bench-engine.py: {text}")


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nattenc", default="nattenc", help="the nattenc to measure (default: on PATH)")
    parser.add_argument("--variant", default="cu130")
    parser.add_argument("--unit", default="token_permute_000,fna_000", help="the units, joined by commas; '' for all of them")
    parser.add_argument("--capability", default="8.0", help="what they are built for (default: 8.0)")
    parser.add_argument("--added", default="9.0", help="the capability that is added (default: 9.0)")
    parser.add_argument("--release", default="0.21.6", help="the other release of NATTEN (default: 0.21.6)")
    parser.add_argument("--only", default=",".join(SCENES), help=f"some of {','.join(SCENES)}")
    parser.add_argument("--warm", action="store_true", help="begin with the finished work of --store, not with none")
    parser.add_argument("--repeat", type=int, default=5, help="how often the unchanged build is timed (default: 5)")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "target" / "bench-engine", help="emptied at the start")
    parser.add_argument("--store", type=pathlib.Path, default=pathlib.Path(os.environ.get("NATTENC_HOME", "~/.cache/nattenc")).expanduser(),
                        help="where fetched files are (default: NATTENC_HOME)")  # fmt: skip
    parser.add_argument("--ninja", help="this ninja too")
    parser.add_argument("--make", default=shutil.which("make"), help="this make too (default: on PATH)")
    parser.add_argument("--sccache", help="this sccache too, under --ninja")
    parser.add_argument("--memory", help="budget, as 12G (default: nattenc's own)")
    parser.add_argument("-j", type=int, default=2, help="compilers side by side")
    parser.add_argument("rest", nargs="*", help="further options of nattenc build, after --")
    args = parser.parse_args()
    args.only = args.only.split(",")
    for name in args.only:
        if name not in SCENES:
            stop(f"--only: there is no {name!r}; there are {', '.join(SCENES)}")
    for tool in ["nattenc", "ninja", "make", "sccache"]:
        program = getattr(args, tool)
        found = program and shutil.which(program)
        if program and not found:
            stop(f"there is no program {program}")
        setattr(args, tool, found and os.path.abspath(found))
    if args.sccache and not args.ninja:
        stop("--sccache needs --ninja")
    if args.j < 1 or args.repeat < 1:
        stop("-j and --repeat are at least 1")
    if not (args.store / "blobs").is_dir():
        stop(f"{args.store} holds nothing that was fetched: run `nattenc fetch`, or name the store with --store")
    mark = args.work / "bench-engine"
    if args.work.exists() and any(args.work.iterdir()) and not mark.is_file():
        stop(f"{args.work} would be emptied, and is not this script's; give another --work")
    shutil.rmtree(args.work, ignore_errors=True)
    args.work.mkdir(parents=True)
    args.work = args.work.resolve()
    mark.write_text("")
    return args


class Held(threading.Thread):
    """The most that all processes below one held together, bytes, looked at ten times a second."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.highest = pid, 0
        self.start()

    def below(self, pid):
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                for child in pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                    yield child
                    yield from self.below(child)
        except OSError:
            return

    def run(self):
        page = os.sysconf("SC_PAGE_SIZE")
        while os.path.exists(f"/proc/{self.pid}"):
            held = 0
            for pid in set(self.below(self.pid)):
                try:
                    held += int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * page
                except (OSError, IndexError):
                    continue
            self.highest = max(self.highest, held)
            time.sleep(0.1)


class Nattenc:
    """Builds with one store."""

    def __init__(self, args):
        self.args, self.store = args, args.work / "store"
        self.store.mkdir()
        for part in ["blobs", "trees", *(["cache", "history.json", "digests.json"] if args.warm else [])]:
            at = args.store / part
            if at.is_dir():
                shutil.copytree(at, self.store / part, symlinks=True)
            elif at.is_file():
                shutil.copy2(at, self.store / part)

    def project(self, name):
        """A directory with what a build is described by."""
        at = self.args.work / name
        at.mkdir()
        for part in ["build.toml", "nattenc.lock"]:
            shutil.copy(ROOT / part, at / part)
        shutil.copytree(ROOT / "variants", at / "variants")
        return at

    def build(self, project, capability=None, unit=None, store=None, may_fail=False):
        """Builds; the summary, the jobs, and how long the process took. Nothing where it fails and may."""
        args = self.args
        unit = args.unit if unit is None else unit
        command = [args.nattenc, "build", "--variant", args.variant, "--capability", capability or args.capability, "-j", str(args.j), "--json"]
        command += [word for name in unit.split(",") if name for word in ("--unit", name)]
        command += (["--memory", args.memory] if args.memory else []) + args.rest
        with open(args.work / f"{project.name}.log", "a") as log:
            environment = {**os.environ, "NATTENC_HOME": str(store or self.store)}
            begun = time.monotonic()
            run = subprocess.Popen(command, cwd=project, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
            held = Held(run.pid)
            out = run.communicate()[0]
            wall = time.monotonic() - begun
        if run.returncode and may_fail:
            return None
        if run.returncode:
            stop(f"{shlex.join(command)} ended with {run.returncode}: see {log.name}")
        summary = json.loads(out)
        jobs = json.loads((project / "build" / args.variant / "jobs.json").read_text())
        return {**summary, "process": wall, "records": jobs, "held": held.highest}


def ran(built):
    """By kind, how many jobs ran."""
    kinds = {}
    for job in built["records"]:
        if job["how"] == "ran":
            kinds[job["kind"]] = kinds.get(job["kind"], 0) + 1
    return kinds


def words(kinds):
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "nothing"


def lower_bound(jobs, cores):
    """Seconds: the longest chain, and all CPU time on so many cores."""
    units = {}
    for job in jobs:
        parts = job["label"].split("/")
        if len(parts) >= 2:
            units.setdefault("/".join(parts[:2]), []).append((job["kind"], parts[2:], job["wall"]))
    longest = 0.0
    for unit in units.values():

        def wall(kind, deep):
            return max([seconds for k, arch, seconds in unit if k == kind and bool(arch) == deep], default=0.0)

        front = max(wall("preprocess", False) + wall("cudafe++", False), wall("preprocess", True))
        longest = max(longest, front + wall("cicc", True) + wall("ptxas", True) + wall("fatbinary", False) + wall("host", False))
    ends = sum(job["wall"] for job in jobs if job["kind"] in ("archive", "link"))
    return longest + ends, sum(job["cpu"] for job in jobs) / cores


class Table:
    """Rows that are printed as they come, and what was not as it must be."""

    def __init__(self):
        self.base, self.wrong = None, []
        print(f"{'tool':<10} {'build':<26} {'wall, s':>9} {'ratio':>7}  what ran")

    def row(self, tool, build, wall, what):
        self.base = self.base or wall
        print(f"{tool:<10} {build:<26} {wall:>9.3f} {wall / self.base:>7.3f}  {what}", flush=True)

    def never(self, build, kinds, allowed=()):
        over = {kind: count for kind, count in kinds.items() if kind in NEVER and kind not in allowed}
        if over:
            self.wrong.append(f"{build}: {words(over)} ran")


def unchanged(args, table, nattenc, first, built):
    def times(project, unit=None):
        walls = []
        for _ in range(args.repeat):
            again = nattenc.build(project, unit=unit)
            if again["ran"] or not again["unchanged"]:
                table.wrong.append(f"unchanged: {words(ran(again))} ran")
            walls.append(again["process"])
        return statistics.median(walls)

    whole = times(first)
    table.row("nattenc", "unchanged", whole, f"{built['units']} units, {built['jobs']} jobs; median of {args.repeat}")
    units = [name for name in args.unit.split(",") if name]
    if not units:
        units = [sorted(job["label"].split("/")[1] for job in built["records"] if job["kind"] == "host" and "/" in job["label"])[0]]
    if built["units"] > 1:
        alone = nattenc.project("alone")
        nattenc.build(alone, unit=units[0])
        least = times(alone, units[0])
        each = (whole - least) / (built["units"] - 1)
        table.row("nattenc", "unchanged, one unit", least, f"{units[0]}; median of {args.repeat}")
        table.row("nattenc", f"unchanged, {ALL_UNITS} units", least + each * (ALL_UNITS - 1), f"by the difference of the two, {1000 * each:.1f} ms a unit; not measured")


def clone(table, nattenc, built):
    found = nattenc.build(nattenc.project("clone"))
    table.never("fresh clone", ran(found))
    table.row("nattenc", "fresh clone", found["process"], words(ran(found)))


def bare(args, table, nattenc):
    """A store of which the cache holds all records, and of bytes those of the objects and of dry runs."""
    store = args.work / "store-bare"
    store.mkdir()
    for part in ["blobs", "trees"]:
        (store / part).symlink_to(nattenc.store / part)
    shutil.copytree(nattenc.store / "cache" / "ac", store / "cache" / "ac")
    kept = lost = 0
    keep = set()
    for record in (store / "cache" / "ac").glob("*/*"):
        action = json.loads(record.read_text())
        digests = {blob["sha256"] for blob in action["outputs"]}
        keep |= digests if action["kind"] in ("host", "dry run") else set()
    for blob in (nattenc.store / "cache" / "cas").glob("*/*"):
        size = blob.stat().st_size
        if blob.name in keep:
            to = store / "cache" / "cas" / blob.parent.name / blob.name
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(blob, to)
            kept += size
        else:
            lost += size
    found = nattenc.build(nattenc.project("bare"), store=store)
    table.never("records, objects", ran(found))
    table.row("nattenc", "records, objects", found["process"], f"{words(ran(found))}; {kept / 1e6:.1f} MB of {(kept + lost) / 1e6:.1f} MB of bytes were there")


def added(args, table, nattenc):
    project = nattenc.project("added")
    nattenc.build(project)
    found = nattenc.build(project, capability=f"{args.capability},{args.added}")
    number = re.sub(r"\D", "", args.added)
    for job in found["records"]:
        device = job["label"].split("/")[2:]
        if job["how"] == "ran" and job["kind"] in NEVER and device and not re.search(rf"_{number}[af]?$", device[0]):
            table.wrong.append(f"capability added: {job['kind']} {job['label']} ran")
    table.row("nattenc", f"capability added: {args.added}", found["process"], words(ran(found)))


def header(args, table, nattenc):
    project = nattenc.project("header")
    nattenc.build(project)
    manifest = json.loads((project / "dist" / args.variant / "manifest.json").read_text())
    own = list(nattenc.store.glob(f"trees/*/tree/natten-{manifest['upstream']['natten']}/third_party/cutlass"))
    if len(own) != 1 or not (own[0] / HEADER).is_file():
        stop(f"there is no {HEADER} in {own or 'the store'}: name another in HEADER")
    shutil.copytree(own[0], project / "cutlass")
    edited = project / "cutlass" / HEADER
    edited.chmod(0o644)
    edited.write_text(edited.read_text() + "static_assert(sizeof(int) == 4, \"\");\n")
    text = (project / "build.toml").read_text()
    (project / "build.toml").write_text(text.replace("[upstream]", '[upstream]\ncutlass = { path = "cutlass", versions = ">=4" }', 1))
    found = nattenc.build(project)
    others = {}
    for job in found["records"]:
        if job["how"] == "ran" and job["label"].startswith("core/"):
            others[job["kind"]] = others.get(job["kind"], 0) + 1
    own = {kind: count - others.get(kind, 0) for kind, count in ran(found).items() if count > others.get(kind, 0)}
    if others:
        table.wrong.append(f"hopper header: of core {words(others)} ran")
    table.row("nattenc", "hopper header", found["process"], f"of core {words(others)}; of others {words(own)}")


def release(args, table, nattenc):
    project = nattenc.project("release")
    pinned = re.search(r'(?m)^natten = "([^"]+)"', (project / "build.toml").read_text())
    if not pinned:
        stop("build.toml: no line natten = \"…\"")
    text = (project / "build.toml").read_text().replace(pinned[0], f'natten = "{args.release}"', 1)
    (project / "build.toml").write_text(text)
    found = nattenc.build(project, may_fail=True)
    if not found:
        print(f"{'nattenc':<10} {args.release:<26} {'-':>9} {'-':>7}  not built: see {args.work / 'release.log'}")
        return
    phases = {}
    for job in found["records"]:
        count = phases.setdefault(job["kind"], [0, 0])
        count[0] += job["how"] == "cached"
        count[1] += 1
    used = ", ".join(f"{kind} {100 * cached / count:.0f} % of {count}" for kind, (cached, count) in sorted(phases.items()))
    table.row("nattenc", f"{args.release} after {pinned[1]}", found["process"], f"used again: {used}")


class Others:
    """The same units as whole nvcc commands."""

    def __init__(self, args, nattenc, first):
        self.args, self.first = args, first
        manifest = json.loads((first / "dist" / args.variant / "manifest.json").read_text())
        sources = list(nattenc.store.glob(f"trees/*/tree/natten-{manifest['upstream']['natten']}/csrc"))
        release = manifest["toolkit"] if isinstance(manifest["toolkit"], str) else manifest["toolkit"]["version"]
        homes = [nvcc.parent.parent for nvcc in nattenc.store.glob("trees/*/tree/**/bin/nvcc") if release in self.version(nvcc)]
        if len(sources) != 1 or len(homes) != 1:
            stop(f"sources and toolkit are not once in the store: {sources} {homes}; name a store of one build with --store")
        self.links = {"src": sources[0].parent, "tk": homes[0], "inc": first / "build" / args.variant / "inc"}

    @staticmethod
    def version(nvcc):
        return subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout

    def commands(self, capability):
        """By unit: the family's directory, and the arguments of nvcc."""
        command = [self.args.nattenc, "plan", "--variant", self.args.variant, "--capability", capability, "--commands", "--json"]
        command += [word for name in self.args.unit.split(",") if name for word in ("--unit", name)]
        run = subprocess.run(command, cwd=self.first, capture_output=True, text=True, check=False)
        if run.returncode:
            stop(f"{shlex.join(command)}:\n{run.stderr}")
        return {unit["name"]: (unit["family"], shlex.split(unit["command"])[1:]) for unit in json.loads(run.stdout)["units"]}

    def lay_out(self, at, capability, wrapper):
        """Directories of units with what they read, and the files that ninja and make go by."""
        at.mkdir(exist_ok=True)
        rules, targets, makefile = ["rule unit\n  command = sh $unit/unit.sh\n  depfile = $unit/unit.d\n  deps = gcc\n"], [], ""
        for name, (family, arguments) in self.commands(capability).items():
            unit = at / name
            unit.mkdir(exist_ok=True)
            for link, target in self.links.items():
                if not (unit / link).is_symlink():
                    (unit / link).symlink_to(target)
            source = self.first / "build" / self.args.variant / "src" / family / f"{name}.cu"
            self.write(unit / "unit.cu", source.read_text())
            call = shlex.join([*wrapper, str(self.links["tk"] / "bin" / "nvcc"), *arguments, "-MD", "-MF", "unit.d.part"])
            # The names in the list of headers are those of the unit's directory.
            mend = f"sed -e 's#\\(^\\| \\)\\([^ /:\\\\]\\)#\\1{name}/\\2#g' unit.d.part >unit.d"
            self.write(unit / "unit.sh", f"set -e\ncd {name}\necho {name} >>../ran\n{call}\n{mend}\n")
            rules.append(f"build {name}/unit.o: unit {name}/unit.cu | {name}/unit.sh\n  unit = {name}\n")
            targets.append(f"{name}/unit.o")
            makefile += f"{name}/unit.o: {name}/unit.cu {name}/unit.sh\n\tsh {name}/unit.sh\n-include {name}/unit.d\n"
        self.write(at / "build.ninja", "\n".join(rules))
        self.write(at / "Makefile", f"all: {' '.join(targets)}\n{makefile}")

    @staticmethod
    def write(path, text):
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)

    def run(self, at, command, environment):
        """Seconds, and the units that were compiled."""
        (at / "ran").write_text("")
        begun = time.monotonic()
        with open(at / "log", "a") as log:
            run = subprocess.run(command, cwd=at, env={**os.environ, **environment}, stdout=log, stderr=log, check=False)
        wall = time.monotonic() - begun
        if run.returncode:
            return None, f"ended with {run.returncode}: see {log.name}"
        return wall, len((at / "ran").read_text().split())

    def measure(self, table, tool, command, wrapper=(), environment=None, compiled=None):
        """The four builds of one tool."""
        args, environment = self.args, environment or {}
        both = f"{args.capability},{args.added}"
        one, two = args.work / f"{tool}-one", args.work / f"{tool}-two"
        builds = [("cold", one, args.capability), ("unchanged", one, None), ("fresh clone", two, args.capability),
                  (f"capability added: {args.added}", one, both)]  # fmt: skip
        for build, at, capability in builds:
            if capability:
                self.lay_out(at, capability, wrapper)
            before = compiled() if compiled else 0
            wall, count = self.run(at, command, environment)
            if wall is None:
                print(f"{tool:<10} {build:<26} {'-':>9} {'-':>7}  {count}")
                return
            what = f"{count} nvcc" if not compiled else f"{count} calls of sccache, {compiled() - before} phases compiled"
            table.row(tool, build, wall, what)


def others(args, table, nattenc, first):
    units = Others(args, nattenc, first)
    if args.make:
        units.measure(table, "make", [args.make, "-j", str(args.j), "all"])
    if args.ninja:
        ninja = [args.ninja, "-j", str(args.j)]
        units.measure(table, "ninja", ninja)
    if args.sccache:
        environment = {"SCCACHE_DIR": str(args.work / "sccache"), "SCCACHE_SERVER_PORT": "4399", "SCCACHE_IDLE_TIMEOUT": "0",
                       "SCCACHE_BASEDIRS": f"{args.work}/sccache-one:{args.work}/sccache-two"}  # fmt: skip
        whole = {**os.environ, **environment}

        def call(*words):
            return subprocess.run([args.sccache, *words], env=whole, capture_output=True, text=True, check=False)

        def compiled():
            try:
                counts = json.loads(call("--show-stats", "--stats-format", "json").stdout)["stats"]["cache_misses"]["counts"]
            except (ValueError, KeyError):
                return 0
            return sum(counts.values())

        call("--start-server")
        try:
            units.measure(table, "sccache", ninja, [args.sccache], environment, compiled)
        finally:
            call("--stop-server")


def main():
    args = options()
    nattenc = Nattenc(args)
    table = Table()
    first = nattenc.project("first")
    built = nattenc.build(first)
    path, cores = lower_bound(built["records"], args.j)
    bound = max(path, cores)
    if built["cached"]:
        table.row("nattenc", "warm", built["process"], f"{built['units']} units; {words(ran(built))}")
    else:
        table.row("nattenc", "cold", built["process"], f"{built['units']} units; {words(ran(built))}")
        print(f"{'':<10} makespan {built['wall']:.1f} s, {built['wall'] / bound:.2f} of the bound {bound:.1f} s (critical path {path:.1f} s, CPU / {args.j} {cores:.1f} s)")  # fmt: skip
        print(f"{'':<10} held together at most {built['peak_memory'] / 1e9:.2f} GB as nattenc says, {built['held'] / 1e9:.2f} GB as seen from outside"
              + (f", budget {args.memory}" if args.memory else ""))  # fmt: skip
    for scene in args.only:
        match scene:
            case "unchanged":
                unchanged(args, table, nattenc, first, built)
            case "clone":
                clone(table, nattenc, built)
            case "bare":
                bare(args, table, nattenc)
            case "added":
                added(args, table, nattenc)
            case "header":
                header(args, table, nattenc)
            case "release":
                release(args, table, nattenc)
            case "others":
                others(args, table, nattenc, first)
    for line in table.wrong:
        print(f"NOT AS IT MUST BE: {line}")
    return 1 if table.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
