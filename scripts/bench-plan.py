#!/usr/bin/env python3
"""What pruning and PTX sharing save: CPU seconds of the core section, measured on a sample of its units.

Three builds of the same units for 8.0, 9.0, 10.0 and 12.0, each with an empty cache of its own: everything
for every capability, as upstream compiles it (--no-prune --no-share); with pruning and `identical` sharing,
which is nattenc's default; with `valid` sharing too. The sample stands for the whole section: units of one
family of which the same is built, shared and left out are alike, and each such group counts by what upstream's
files in it cost (COSTS, a table file,capability,exit,wall_s,cpu_s,… of one capability) where that is known, else
by its units.

With --history no build runs: the jobs of each plan are priced by what jobs of the same name took in earlier
builds of those units with --no-prune --no-share (the history.json of their stores, averaged).

  scripts/bench-plan.py --nattenc target/release/nattenc --costs COSTS -j 2 -- --offline
  scripts/bench-plan.py --nattenc target/release/nattenc --costs COSTS --history FILE --history FILE
"""

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CAPABILITIES = "8.0,9.0,10.0,12.0"
BUILDS = {
    "all": ["--no-prune", "--no-share"],
    "identical": ["--share", "identical"],
    "valid": ["--share", "valid"],
}
SAMPLE = (
    "reference_000 fna_000 fna_004 fna_010 fna_013 fna_022 fna_031 fna_034 fna_038 fna_061 "
    "fmha_000 fmha_003 fmha_005 token_permute_000 compute_delta_000"
).split()  # fmt: skip


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nattenc", default="nattenc", help="the nattenc to measure (default: on PATH)")
    parser.add_argument("--variant", default="cu130")
    parser.add_argument("--costs", type=Path, help="costs of upstream's files, to weight the groups by")
    parser.add_argument("--unit", default=",".join(SAMPLE), help="the sample, joined by commas")
    parser.add_argument("--work", type=Path, default=ROOT / "target" / "bench-plan", help="emptied at the start")
    parser.add_argument("--store", type=Path, default=Path(os.environ.get("NATTENC_HOME", "~/.cache/nattenc")).expanduser(),
                        help="where fetched files are, for --offline")  # fmt: skip
    parser.add_argument("--history", type=Path, action="append", default=[], help="measured jobs, instead of builds")
    parser.add_argument("-j", default="2", help="compilers side by side")
    parser.add_argument("rest", nargs="*", help="further options of nattenc build, after --")
    return parser.parse_args()


def plan(args, *more):
    command = [args.nattenc, "plan", "--variant", args.variant, "--section", "core", "--capability", CAPABILITIES, "--json"]
    run = subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"bench-plan.py: {' '.join(command)}:\n{run.stderr}")
    return {unit["name"]: unit for unit in json.loads(run.stdout)["units"]}


def of_unit(label):
    """The unit of a job of the history."""
    found = re.search(r" core/([a-z_]+_\d+)(/|$)", label)
    return found and found[1]


def price(args, name):
    """CPU seconds by unit of one way's plan, by what its jobs took elsewhere."""
    taken = {}
    for file in args.history:
        for label, cost in json.loads(file.read_text()).items():
            taken.setdefault(label, []).append(cost["cpu"])
    cost = {label: sum(values) / len(values) for label, values in taken.items()}
    seconds = {}
    for unit, what in plan(args, *BUILDS[name]).items():
        if unit not in args.unit.split(","):
            continue
        own = [f"{kind} core/{unit}" for kind in ("preprocess", "cudafe++", "fatbinary", "host")]
        for gencode in what["gencodes"]:
            virtual = re.search(r"compute_\w+", gencode)[0]
            own += [f"{kind} core/{unit}/{virtual}" for kind in ("preprocess", "cicc")]
            own += [f"ptxas core/{unit}/{real}" for real in re.findall(r"sm_\w+", gencode)]
        lacking = [label for label in own if label not in cost]
        if lacking:
            raise SystemExit(f"not in the histories: {', '.join(lacking)}")
        seconds[unit] = sum(cost[label] for label in own)
    return seconds


def measure(args, name):
    """CPU seconds by unit of one build."""
    home = args.work / name
    (home / "blobs").parent.mkdir(parents=True)
    shutil.copytree(args.store / "blobs", home / "blobs")
    command = [
        args.nattenc, "build", "--variant", args.variant, "--capability", CAPABILITIES, "--unit", args.unit,
        "--dist", args.work / f"dist-{name}", "-j", args.j, *BUILDS[name], *args.rest,
    ]  # fmt: skip
    with open(args.work / f"{name}.log", "w") as log:
        environment = {**os.environ, "NATTENC_HOME": str(home)}
        subprocess.run([str(word) for word in command], cwd=ROOT, env=environment, stdout=log, stderr=log, check=True)
    seconds = {}
    for label, cost in json.loads((home / "history.json").read_text()).items():
        unit = of_unit(label)
        if unit:
            seconds[unit] = seconds.get(unit, 0) + cost["cpu"]
    return seconds


def main():
    args = options()
    if not shutil.which(args.nattenc):
        raise SystemExit(f"bench-plan.py: there is no program {args.nattenc}; name one with --nattenc")
    for path in [*args.history, *([args.costs] if args.costs else [])]:
        if not path.is_file():
            raise SystemExit(f"bench-plan.py: there is no file {path}")
    canonical, live = plan(args, "--no-prune"), plan(args)
    unknown = [unit for unit in args.unit.split(",") if unit not in canonical]
    if unknown:
        raise SystemExit(f"bench-plan.py: no unit of the core section: {', '.join(unknown)}")
    if not args.history:
        made = {*BUILDS, *(f"dist-{name}" for name in BUILDS), *(f"{name}.log" for name in BUILDS)}
        others = [entry.name for entry in args.work.iterdir() if entry.name not in made] if args.work.exists() else []
        if others:
            raise SystemExit(f"bench-plan.py: {args.work} would be emptied, and holds {others[0]}; give another --work")
        shutil.rmtree(args.work, ignore_errors=True)
        args.work.mkdir(parents=True)
    upstream = {}
    if args.costs:
        try:
            for row in csv.DictReader(open(args.costs)):
                found = re.search(r"cuda/([a-z_]+)/source_(\d+)\.cu", row["file"])
                if found:
                    upstream[f"{found[1]}_{int(found[2]):03}"] = float(row["cpu_s"])
        except (KeyError, TypeError, ValueError) as why:
            raise SystemExit(f"bench-plan.py: {args.costs} is no table with columns file and cpu_s: {why!r}")

    def group(unit):
        if unit not in live:
            return unit.rsplit("_", 1)[0], "dead"
        return unit.rsplit("_", 1)[0], *(row["decision"] for row in live[unit]["capabilities"])

    sample = args.unit.split(",")
    groups = {}
    for unit in canonical:
        groups.setdefault(group(unit), []).append(unit)
    missing = [key for key in groups if not any(group(unit) == key for unit in sample)]
    measured = {name: (price if args.history else measure)(args, name) for name in BUILDS}

    print(f"{'unit':<20} {'':<6}" + "".join(f"{name + ', s':>14}" for name in BUILDS))
    for unit in sample:
        print(f"{unit:<20} {'live' if unit in live else 'dead':<6}" + "".join(f"{measured[name].get(unit, 0):>14.1f}" for name in BUILDS))
    sums = {name: sum(values.get(unit, 0) for unit in sample) for name, values in measured.items()}
    print(f"{'sample':<27}" + "".join(f"{sums[name]:>14.1f}" for name in BUILDS))

    whole = dict.fromkeys(BUILDS, 0.0)
    for key, units in groups.items():
        inside = [unit for unit in sample if group(unit) == key]
        if not inside:
            continue
        known = all(unit in upstream for unit in units)
        weight = sum(upstream[u] for u in units) / sum(upstream[u] for u in inside) if known else len(units) / len(inside)
        for name in BUILDS:
            whole[name] += weight * sum(measured[name].get(unit, 0) for unit in inside)
    print(f"{'whole core section':<27}" + "".join(f"{whole[name]:>14.0f}" for name in BUILDS))
    print(f"{'ratio':<27}" + "".join(f"{whole[name] / whole['all']:>14.3f}" for name in BUILDS))
    for key in missing:
        print(f"not in the sample, left out of the whole: {' '.join(key)}: {len(groups[key])} units")


if __name__ == "__main__":
    main()
