#!/usr/bin/env python3
"""Fits templates/cuda/costs.toml, the table of what compiling costs, to builds that were measured.

    nattenc build --variant cu130 --section core          # with an empty NATTENC_HOME/history.json
    nattenc plan --variant cu130 --section core --json >plan.json
    scripts/fit-costs.py --sample plan.json $NATTENC_HOME/history.json

Each --sample is the plan of a build and the history that it left; HISTORY@0.7 says that its machine took
1/0.7 of the time that the table's machine takes. Rows without a measured job stay as they are. Same inputs,
same bytes. It prints, per family and phase, how far the fit is off, and how far it is off for units that it
was not fitted to (each unit left out once). --check writes nothing. Needs python 3.11 and nothing else.

--totals PLAN CSV FAMILIES adds units of which the CPU time of one whole nvcc call is known (columns file, as
fna/source_56.cu, capability, exit, cpu_s); what the host's phases leave of it is dealt out to cicc and ptxas in
proportion to their predictions, so it says much about what sets kernels apart and little about the phases. Units
without a live kernel say how much more than ours such a compile takes at all, which is taken off the others.

A quantity (CPU seconds, memory in MB, bytes) of a phase is

    header + capability * sum over live kernels of (kernel * product of weights) + dead * dead kernels

The fit minimises squared relative errors; what few jobs decide stays near the table's old header and kernel,
and near weights of 1.
"""

import argparse
import csv
import json
import math
import pathlib
import re
import statistics
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
PHASES = ["preprocess", "cudafe", "cicc", "ptxas", "fatbinary", "host"]
# What sets kernels apart in each phase.
DEVICE = ["direction", "rank", "dtype", "shape", "head-dim", "schedule", "causal"]
WEIGHTS = {
    "preprocess": [],
    "cudafe": ["direction", "rank", "head-dim"],
    "cicc": DEVICE,
    "ptxas": DEVICE,
    "fatbinary": ["direction", "rank", "dtype"],
    "host": ["direction", "rank", "head-dim"],
}
# Kernels cost this phase something.
GROWS = {"cudafe", "cicc", "ptxas", "fatbinary", "host"}
SCHEDULES = {"_coop": "cooperative", "_pp": "ping-pong", "_persistent": "persistent"}
# How far a parameter may stray, in terms of the error of one job: (0.05 / spread) ** 2.
STRAY_WEIGHT = (0.05 / 0.25) ** 2
STRAY_BASE = (0.05 / 1.0) ** 2
# Characters of fatbinary's C text for a byte of the fatbin: eight are written as 0x0123456789abcdef and a comma.
TEXT = 2.4
# Below these, differences are noise: seconds, megabytes, bytes.
FLOOR = {"cpu": 0.5, "memory": 50.0, "bytes": 20000.0}


def features(name, family):
    """What a kernel is, from its name: [(key, value)], as the table's weights are written."""
    found = [("direction", "backward" if re.search(r"_backward|_unpermute", name) else "forward")]
    if rank := re.search(r"(\d)d(_|$)", name):
        found.append(("rank", rank[1]))
    for dtype, word in [("float32",) * 2, ("bfloat16",) * 2, ("float16",) * 2, ("e4m3", "float8_e4m3"), ("e5m2", "float8_e5m2")]:
        if dtype in name:
            found.append(("dtype", word))
            break
    if shape := re.search(r"_(\d+x\d+x\d+)(_|$)", name):
        found += [("shape", shape[1]), ("head-dim", shape[1].split("x")[2])]
    elif align := re.search(r"_align(\d+)$", name):
        found.append(("shape", align[1]))
    if family.startswith(("hopper", "blackwell")) and "bwd" not in family:
        mark = next((m for m in SCHEDULES if m + "_" in name + "_"), None)
        found.append(("schedule", SCHEDULES.get(mark, "non-persistent")))
    if mask := re.search(r"(?:_cm_|causal)([01](?:[x_][01])*)", name):
        found.append(("causal", str(mask[1].count("1"))))
    return found


def ranges(family):
    """Start -> end of the family's SM ranges."""
    path = ROOT / "templates/cuda" / family / "instances.toml"
    return dict(tomllib.loads(path.read_text()).get("sm", []))


def number(arch):
    return int(re.search(r"_(\d+)", arch)[1])


class Job:
    """One measured job: its unit, what it worked on, what it took."""

    def __init__(self, unit, live, dead, sm, measured):
        self.unit, self.live, self.dead, self.sm, self.measured = unit, live, dead, sm, measured


def jobs(plan, history, speed, tag):
    """(family, phase) -> jobs."""
    costs = document(history)
    found = {}
    for unit in plan_of(plan)["units"]:
        family, label = unit["family"], f"{unit['section']}/{unit['name']}"
        starts = ranges(family)
        kernels = [(features(k, family), re.search(r"_sm(\d+)_", k)) for k in unit["kernels"]]

        def add(phase, name, live, dead, sm):
            cost = costs.get(name)
            if cost is None:
                return
            measured = {"cpu": cost["cpu"] * speed, "memory": cost["memory"] / 2**20}
            # fatbinary writes its fatbin as C text, which the host compile takes into the object.
            fatbin = costs.get(f"fatbinary {label}", {}).get("bytes", 0) / TEXT
            written = {"ptxas": cost.get("bytes", 0), "fatbinary": fatbin, "host": cost.get("bytes", 0) - fatbin}
            if cost.get("bytes") and fatbin and phase in written:
                measured["bytes"] = float(written[phase])
            job = Job(f"{tag} {label}", live, dead, sm, measured)
            found.setdefault((family, phase), []).append(job)

        everything = [f for f, _ in kernels]
        images = []
        for gencode in unit["gencodes"]:
            virtual, codes = re.fullmatch(r"arch=([^,]+),code=\[?([^\]]+)\]?", gencode).groups()
            sm = number(virtual)
            alive = [f for f, low in kernels if not low or int(low[1]) <= sm < starts[int(low[1])]]
            dead = len(kernels) - len(alive)
            # nvcc's preprocessing is named without the suffix.
            add("preprocess", f"preprocess {label}/compute_{sm}", alive, dead, sm)
            add("cicc", f"cicc {label}/{virtual}", alive, dead, sm)
            for real in (code for code in codes.split(",") if code.startswith("sm_")):
                images += alive
                add("ptxas", f"ptxas {label}/{real}", alive, dead, number(real))
        add("preprocess", f"preprocess {label}", everything, 0, None)
        add("cudafe", f"cudafe++ {label}", everything, 0, None)
        # What fatbinary compresses is every image.
        add("fatbinary", f"fatbinary {label}", images, 0, None)
        add("host", f"host {label}", everything, 0, None)
    return found


def totals(plan, file, families):
    """[(family, seconds, {phase: job})] of whole compiles for one capability."""
    units = {u["name"]: u for u in plan_of(plan)["units"]}
    found = []
    for row in csv.DictReader(pathlib.Path(file).read_text().splitlines()):
        part = re.search(r"(\w+)/source_(\d+)\.cu$", row["file"])
        unit = units.get(f"{part[1]}_{int(part[2]):03}") if part else None
        if unit is None or part[1] not in families.split(",") or row["exit"] != "0":
            continue
        starts, sm = ranges(part[1]), int(re.match(r"\d+", row["capability"])[0])
        kernels = [(features(k, part[1]), re.search(r"_sm(\d+)_", k)) for k in unit["kernels"]]
        alive = [f for f, low in kernels if not low or int(low[1]) <= sm < starts[int(low[1])]]
        dead = len(kernels) - len(alive)
        name = f"{file} {part[1]} {part[2]}"
        found.append((part[1], float(row["cpu_s"]), {
            phase: Job(name, alive, dead, sm if phase in ("cicc", "ptxas") else None, {}) for phase in PHASES
        }))
    return found


def deal_out(wholes, lines):
    """Device jobs by family and phase, each with its part of what its unit's host jobs leave of the total."""
    found, rests = {}, {}
    for family, seconds, phases in wholes:
        predicted = {phase: lines[family, phase].predict(job) for phase, job in phases.items()}
        # There are two preprocessings.
        rest = seconds - sum(predicted.values()) - predicted["preprocess"]
        rests.setdefault((family, bool(phases["cicc"].live)), []).append((rest, predicted, phases))
    for (family, live), units in sorted(rests.items()):
        # Units without a live kernel show what such a compile takes beside what ours does.
        overhead = statistics.median(rest for rest, _, _ in rests.get((family, False), [(0.0, {}, {})]))
        for rest, predicted, phases in units if live else []:
            device = predicted["cicc"] + predicted["ptxas"]
            for phase in ("cicc", "ptxas"):
                job = phases[phase]
                seconds = predicted[phase] * (1 + (rest - overhead) / device)
                part = Job(job.unit, job.live, job.dead, job.sm, {"cpu": max(seconds, 0.0)})
                found.setdefault((family, phase), []).append(part)
    return found


class Line:
    """A quantity of a phase: the parameters' logarithms, fitted."""

    def __init__(self, phase, quantity, base, jobs):
        self.quantity = quantity
        self.names = [("header", None)]
        grows = phase in GROWS
        if grows:
            self.names.append(("kernel", None))
            if any(job.dead for job in jobs):
                self.names.append(("dead", None))
            wanted = WEIGHTS[phase] if quantity != "bytes" else DEVICE
            seen = sorted({f for job in jobs for k in job.live for f in k if f[0] in wanted}, key=order)
            several = {key for key, _ in seen if sum(k == key for k, _ in seen) > 1}
            self.names += [f for f in seen if f[0] in several]
            sms = sorted({job.sm for job in jobs if job.sm is not None})
            self.names += [("capability", sm) for sm in sms[1:]]
        self.place = {name: i for i, name in enumerate(self.names)}
        typical = statistics.median(job.measured[quantity] for job in jobs)
        start = {
            "header": base.get("header") or typical / 3,
            "kernel": base.get("kernel") or typical / 3 / max(1, statistics.mean(len(j.live) for j in jobs)),
        }
        # An empty body is a small part of a kernel.
        start["dead"] = start["kernel"] / 15
        self.centre = [math.log(max(start.get(n, 1.0), 1e-9)) for n, _ in self.names]
        self.stray = [STRAY_BASE if n in start else STRAY_WEIGHT for n, _ in self.names]
        self.theta = list(self.centre)

    def predict(self, job, gradient=None):
        theta, place = self.theta, self.place
        total = math.exp(theta[0])
        if gradient is not None:
            gradient[0] += total
        if ("kernel", None) not in place:
            return total
        if (dead := place.get(("dead", None))) is not None:
            part = math.exp(theta[dead]) * job.dead
            total += part
            if gradient is not None:
                gradient[dead] += part
        factor = place.get(("capability", job.sm))
        for kernel in job.live:
            used = [1] + [i for f in kernel if (i := place.get(f)) is not None]
            used += [factor] if factor is not None else []
            part = math.exp(sum(theta[i] for i in used))
            total += part
            if gradient is not None:
                for i in used:
                    gradient[i] += part
        return total

    def error(self, job):
        measured = job.measured[self.quantity]
        return (self.predict(job) - measured) / max(measured, FLOOR[self.quantity])

    def loss(self, jobs):
        away = sum(s * (t - c) ** 2 for s, t, c in zip(self.stray, self.theta, self.centre))
        return away + sum(self.error(job) ** 2 for job in jobs)

    def fit(self, jobs):
        """Levenberg and Marquardt's method."""
        size, damping, loss = len(self.theta), 1e-2, self.loss(jobs)
        for _ in range(60):
            matrix = [[0.0] * size for _ in range(size)]
            slope = [s * (t - c) for s, t, c in zip(self.stray, self.theta, self.centre)]
            for i in range(size):
                matrix[i][i] += self.stray[i]
            for job in jobs:
                gradient = [0.0] * size
                measured = job.measured[self.quantity]
                scale = max(measured, FLOOR[self.quantity])
                error = (self.predict(job, gradient) - measured) / scale
                used = [i for i in range(size) if gradient[i]]
                for i in used:
                    slope[i] += error * gradient[i] / scale
                    for j in used:
                        matrix[i][j] += gradient[i] * gradient[j] / scale**2
            before = list(self.theta)
            while damping < 1e9:
                damped = [row[:] for row in matrix]
                for i in range(size):
                    damped[i][i] *= 1 + damping
                step = solve(damped, slope)
                self.theta = [t - max(-2.0, min(2.0, s)) for t, s in zip(before, step)]
                better = self.loss(jobs)
                if better < loss:
                    damping /= 5
                    break
                self.theta = before
                damping *= 5
            if self.theta is before or loss - better < 1e-9 * loss:
                break
            loss = better
        return self

    def text(self):
        """As an inline table; what makes no difference is left out."""
        value = {name: math.exp(t) for name, t in zip(self.names, self.theta)}
        parts = [f"header = {short(value[('header', None)])}"]
        for key in ("kernel", "dead"):
            if (key, None) in value:
                parts.append(f"{key} = {short(value[(key, None)])}")
        weights = [(n, v) for n, v in value.items() if n[1] is not None and n[0] != "capability"]
        weights = [f'"{k}={w}" = {short(v)}' for (k, w), v in weights if abs(math.log(v)) > 0.01]
        if weights:
            parts.append(f"weights = {{ {', '.join(weights)} }}")
        factors = [f'"{n[1] // 10}.{n[1] % 10}" = {short(v)}' for n, v in value.items() if n[0] == "capability"]
        if factors:
            parts.append(f"capabilities = {{ {', '.join(factors)} }}")
        return f"{{ {', '.join(parts)} }}"


def solve(matrix, right):
    """Gauss's elimination with pivots."""
    size = len(right)
    rows = [row + [r] for row, r in zip(matrix, right)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(rows[k][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for k in range(i + 1, size):
            if factor := rows[k][i] / rows[i][i]:
                rows[k] = [a - factor * b for a, b in zip(rows[k], rows[i])]
    found = [0.0] * size
    for i in reversed(range(size)):
        found[i] = (rows[i][size] - sum(rows[i][j] * found[j] for j in range(i + 1, size))) / rows[i][i]
    return found


def order(feature):
    key, value = feature
    return DEVICE.index(key), [int(n) if n.isdigit() else n for n in re.split("x", value)]


def short(value):
    return f"{float(f'{value:.3g}'):.10g}" if value >= 1e-6 else "0"


def percent(errors):
    return f"{100 * statistics.median(map(abs, errors)):.1f} %"


def left_out(table, family, phase, quantity, jobs):
    """The error for each unit of a fit to the others."""
    errors, units = [], sorted({job.unit for job in jobs})
    for unit in units if len(units) > 1 else []:
        line = fitted(table, family, phase, quantity, [job for job in jobs if job.unit != unit])
        errors += [line.error(job) for job in jobs if job.unit == unit]
    return percent(errors) if errors else "-"


def inline(line):
    """A line of the old table, as it was."""
    parts = []
    for key, value in line.items():
        if isinstance(value, dict):
            value = "{ " + ", ".join(f'"{k}" = {short(v)}' for k, v in value.items()) + " }"
        else:
            value = short(value)
        parts.append(f"{key} = {value}")
    return "{ " + ", ".join(parts) + " }"


def with_totals(found, wholes, table):
    """The measured jobs, and those that whole compiles are dealt out to; a few rounds settle it."""
    families, both = sorted({family for family, _, _ in wholes}), found
    for _ in range(4 if wholes else 0):
        lines = {}
        for family in families:
            for phase in PHASES:
                if not found.get((family, phase)):
                    sys.exit(f"fit-costs.py: --totals: no --sample has a {phase} job of {family}")
                lines[family, phase] = fitted(table, family, phase, "cpu", both[family, phase])
        dealt = deal_out(wholes, lines)
        both = {key: jobs + dealt.get(key, []) for key, jobs in found.items()}
    return both


def fitted(table, family, phase, quantity, jobs):
    return Line(phase, quantity, table["family"][family][phase].get(quantity, {}), jobs).fit(jobs)


def rows(table, found, machine):
    """Every row of the table as text, with a line of errors for those that were fitted."""
    for family, phases in table["family"].items():
        for phase in PHASES:
            row, measured = phases[phase], found.get((family, phase), [])
            lines = {q: inline(row[q]) for q in ("cpu", "memory", "bytes") if q in row}
            source, errors = row["source"], []
            if measured:
                for quantity in ("cpu", "memory", "bytes"):
                    has = [job for job in measured if quantity in job.measured]
                    if has:
                        line = fitted(table, family, phase, quantity, has)
                        lines[quantity] = line.text()
                        errors += [percent([line.error(job) for job in has]), left_out(table, family, phase, quantity, has)]
                units = len({job.unit for job in measured})
                where = f", {machine}" if machine else ""
                wholes = sum("memory" not in job.measured for job in measured)
                dealt = f", {wholes} of them parts of whole compiles" if wholes else ""
                source = f"fit to {len(measured)} jobs of {units} units{dealt}{where}; median error {errors[0]}"
                print(f"{family:<18} {phase:<10} {len(measured):>5} {units:>5} " + " ".join(f"{e:>9}" for e in errors))
            yield f"\n[family.{family}.{phase}]\nsource = {json.dumps(source)}"
            yield from (f"{quantity} = {line}" for quantity, line in lines.items())


def document(path):
    """A JSON file that a user named."""
    try:
        return json.loads(pathlib.Path(path).read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"fit-costs.py: {path}: {error}")


def plan_of(path):
    """What `nattenc plan --json` wrote."""
    found = document(path)
    if not isinstance(found, dict) or not {"units", "prediction"} <= found.keys():
        raise SystemExit(f"fit-costs.py: {path}: not what `nattenc plan --json` prints")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", nargs=2, action="append", metavar=("PLAN", "HISTORY"), required=True)
    parser.add_argument("--totals", nargs=3, action="append", metavar=("PLAN", "CSV", "FAMILIES"), default=[])
    parser.add_argument("--table", type=pathlib.Path, default=ROOT / "templates/cuda/costs.toml")
    parser.add_argument("--machine", default="", help="where the samples were measured, for the rows' source")
    parser.add_argument("--check", action="store_true", help="print the errors, write nothing")
    args = parser.parse_args()

    found = {}
    for tag, (plan, history) in enumerate(args.sample):
        history, _, text = history.partition("@")
        try:
            speed = float(text or 1)
        except ValueError:
            raise SystemExit(f"fit-costs.py: {history}@{text}: {text!r} is no number; write HISTORY@0.7")
        for key, measured in jobs(plan, history, speed, tag).items():
            found.setdefault(key, []).extend(measured)
    if not found:
        raise SystemExit("fit-costs.py: no history has a job of its plan; the table is as it was")
    try:
        text = args.table.read_text()
    except OSError as error:
        raise SystemExit(f"fit-costs.py: {args.table}: {error}")
    table = tomllib.loads(text)
    try:
        wholes = [whole for sample in args.totals for whole in totals(*sample)]
    except OSError as error:
        raise SystemExit(f"fit-costs.py: --totals: {error}")
    except (KeyError, TypeError, ValueError) as why:
        raise SystemExit(f"fit-costs.py: --totals: no table with columns file, capability, exit and cpu_s: {why!r}")
    print(f"{'':<18} {'':<10} {'':>5} {'':>5} " + " ".join(f"{q:>9} {'left out':>9}" for q in ("cpu", "memory", "bytes")))
    out = [text[: text.index("\n[family.")].rstrip("\n"), *rows(table, with_totals(found, wholes, table), args.machine)]
    if not args.check:
        args.table.write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
