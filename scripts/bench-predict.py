#!/usr/bin/env python3
"""Compares predicted with measured CPU time, by unit and by unit and gencode.

    nattenc plan --variant cu130 --section core --json >plan.json
    nattenc build --variant cu130 --section core
    scripts/bench-predict.py plan.json $NATTENC_HOME/history.json

The plan must be that of the build: the history holds what the jobs of that name last took. Units of which
the history lacks a job are left out. A machine is faster or slower than the one that the cost table was
fitted on by some factor: it is printed (the ratio of all that was measured to all that was predicted), and
errors are given without and with it. --json prints the rows. Needs python 3 and nothing else.
"""

import argparse
import json
import pathlib
import re
import statistics


def measured(history, unit, prediction):
    """[(gencode, seconds)] and the whole unit's seconds; None where a job is missing."""
    label = prediction["unit"]

    def cpu(kind, *arch):
        return history["/".join((f"{kind} {label}", *arch))]["cpu"]

    try:
        rows = []
        for gencode in prediction["gencodes"]:
            virtual = gencode["virtual_arch"]
            # nvcc's preprocessing is named without the suffix.
            front = cpu("preprocess", re.match(r"compute_\d+", virtual)[0]) + cpu("cicc", virtual)
            rows.append((virtual, front + sum(cpu("ptxas", code["code"]) for code in gencode["codes"])))
        host = sum(cpu(kind) for kind in ("preprocess", "cudafe++", "fatbinary", "host"))
    except KeyError:
        return None
    return rows, host + sum(seconds for _, seconds in rows)


def figures(name, pairs):
    """A line of errors of [(predicted, measured)], and the factor between the sums."""
    factor = sum(m for _, m in pairs) / sum(p for p, _ in pairs)

    def errors(scale):
        each = [abs(scale * p - m) / m for p, m in pairs]
        return f"median {100 * statistics.median(each):5.1f} %  worst {100 * max(each):5.1f} %"

    total = sum(p for p, _ in pairs)
    return (
        f"{name:<22} {len(pairs):>3}  {errors(1.0)}  total {100 * (1 / factor - 1):+5.1f} %"
        f"  (predicted {total:.0f} s)  with factor {factor:.2f}: {errors(factor)}"
    )


def document(path):
    """A JSON file that a user named."""
    try:
        return json.loads(pathlib.Path(path).read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"bench-predict.py: {path}: {error}")


def plan_of(path):
    """What `nattenc plan --json` wrote."""
    found = document(path)
    if not isinstance(found, dict) or not {"units", "prediction"} <= found.keys():
        raise SystemExit(f"bench-predict.py: {path}: not what `nattenc plan --json` prints")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=pathlib.Path)
    parser.add_argument("history", type=pathlib.Path)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead")
    args = parser.parse_args()

    plan, history = plan_of(args.plan), document(args.history)
    rows, units = [], []
    for unit, prediction in zip(plan["units"], plan["prediction"]["units"]):
        found = measured(history, unit, prediction)
        if found is None:
            continue
        for gencode, (virtual, seconds) in zip(prediction["gencodes"], found[0]):
            predicted = gencode["front_seconds"] + sum(code["ptxas_seconds"] for code in gencode["codes"])
            rows.append({"unit": prediction["unit"], "gencode": virtual, "predicted": predicted, "measured": seconds})
        units.append((prediction["cpu_seconds"], found[1]))
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    if not rows:
        raise SystemExit("bench-predict.py: the history has no unit of this plan with all its jobs")
    print(f"{'unit':<32} {'gencode':<14} {'predicted':>10} {'measured':>10} {'error':>8}")
    for row in rows:
        error = 100 * (row["predicted"] / row["measured"] - 1)
        print(f"{row['unit']:<32} {row['gencode']:<14} {row['predicted']:>8.1f} s {row['measured']:>8.1f} s {error:>+6.1f} %")
    print(figures("unit and gencode", [(row["predicted"], row["measured"]) for row in rows]))
    print(figures("whole unit", units))


if __name__ == "__main__":
    main()
