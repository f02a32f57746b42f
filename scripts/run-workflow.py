#!/usr/bin/env python3
"""Runs every `run:` step of a workflow on this machine, job by job, each in a clone of its own of what is committed.

Run it after templates/ci/ has changed. Needs PyYAML. Steps that use an action are played: checkouts are clones, artifacts
and caches are directories below --work, where a directory of caches/ that is there already is one of an earlier run. A
job that fails ends its row, but for steps that always run, and the workflow. At the end a table of all steps.

Jobs of other matrices than the real ones, which may take hours:

  scripts/run-workflow.py .github/workflows/pr.yml --work /tmp/run --link target --output \\
    builds='{"include":[{"name":"x","variant":"cu130","shard":"1/1","index":1,"count":1,"max-minutes":30,
             "deadline":"20m","options":"--family token_permute"}]}' --output merges='{"include":[{"variant":"cu130"}]}'
"""
import argparse, json, os, re, shutil, subprocess, sys, time
from pathlib import Path

import yaml

ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument("workflow", type=Path)
ap.add_argument("--work", type=Path, required=True, help="an empty or new directory")
ap.add_argument("--link", action="append", default=[], help="an ignored path that clones share with this checkout")
ap.add_argument("--output", action="append", default=[], metavar="NAME=JSON", help="in the place of a job's output")
args = ap.parse_args()
repo = Path(__file__).resolve().parent.parent
flow = yaml.safe_load(args.workflow.read_text())
given = dict(text.split("=", 1) for text in args.output)
outputs, table = {}, []
for name in ("artifacts", "caches", "jobs"):
    (args.work / name).mkdir(parents=True, exist_ok=True)


def fill(text, values):
    def value(found):
        word = found[1].strip()
        if call := re.fullmatch(r"fromJSON\((.*)\)", word):
            word = call[1]
        if word not in values and not word.startswith("vars."):
            sys.exit(f"{args.workflow}: nothing is known of {word}")
        return str(values.get(word, ""))
    return re.sub(r"\$\{\{(.*?)\}\}", value, str(text))


def copy(source, target):
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    else:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def play(step, here, fill):
    action, given = step["uses"].split("@")[0], {k: fill(v) for k, v in step.get("with", {}).items()}
    artifacts, caches = args.work / "artifacts", args.work / "caches"
    if action == "actions/upload-artifact":
        shutil.rmtree(artifacts / given["name"], ignore_errors=True)
        copy(here / given["path"], artifacts / given["name"])
    elif action == "actions/download-artifact" and "name" in given:
        copy(artifacts / given["name"], here / given["path"])
    elif action == "actions/download-artifact":
        for found in sorted(artifacts.glob(given["pattern"])):
            copy(found, here / given["path"] / found.name)
    elif action == "actions/cache/save":
        copy(here / given["path"], caches / given["key"])
    elif action == "actions/cache/restore":
        keys = [given["key"], *given.get("restore-keys", "").split()]
        hit = next((h for key in keys for h in sorted(caches.glob(f"{key}*"), key=os.path.getmtime)[-1:]), None)
        print(f"    {hit.name if hit else 'no cache'}")
        if hit:
            copy(hit, here / given["path"])
    elif action != "actions/checkout":
        sys.exit(f"{args.workflow}: {action} is not known here")


def run(job, row, number, entry, values):
    """Runs a job for one row of its matrix; whether all of its steps ended well."""
    here = (args.work / "jobs" / f"{job}-{number}").resolve()
    subprocess.run(["git", "clone", "-q", str(repo), str(here)], check=True)
    for name in args.link:
        (here / name).symlink_to(repo / name)
    known = values | {f"matrix.{k}": v for k, v in row.items()}
    known |= {"github.workspace": here, "github.run_id": 1, "github.run_attempt": 1}
    env = {k: fill(v, known) for k, v in (flow.get("env", {}) | entry.get("env", {})).items()}
    env = {**os.environ, **env, "CI": "true", "GITHUB_WORKSPACE": str(here), "GITHUB_OUTPUT": str(here / ".outputs")}
    name, well = f"{job} {row.get('name', row.get('variant', ''))}".strip(), True
    for step in entry["steps"]:
        if not well and step.get("if") != "always()":
            continue
        print(f"{name}: {step.get('name', step.get('uses'))}", flush=True)
        if "uses" in step:
            play(step, here, lambda text: fill(text, known))
            continue
        start, command = time.monotonic(), fill(step["run"], known)
        code = subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command], cwd=here, env=env).returncode
        seconds = time.monotonic() - start
        print(f"    exit code {code} after {seconds:.0f} s", flush=True)
        table.append((flow["name"], name, step["name"], code, f"{seconds:.0f}"))
        well = well and code == 0
    if well and "outputs" in entry:
        lines = dict(line.split("=", 1) for line in (here / ".outputs").read_text().splitlines())
        outputs[job] = {name: given.get(name, lines[name]) for name in entry["outputs"]}
    return well


def run_all():
    """Runs the jobs in the order of the file, until one fails for a row; whether none did."""
    for job, entry in flow["jobs"].items():
        values = {f"needs.{j}.outputs.{k}": v for j, out in outputs.items() for k, v in out.items()}
        matrix = json.loads(fill(entry["strategy"]["matrix"], values))["include"] if "strategy" in entry else [{}]
        if not all([run(job, row, number, entry, values) for number, row in enumerate(matrix)]):
            return False
    return True


ended_well = run_all()
print("\n| workflow | job | step | exit code | s |\n|---|---|---|---|---|")
for line in table:
    print("| " + " | ".join(map(str, line)) + " |")
sys.exit(0 if ended_well else 1)
