#!/usr/bin/env python3
"""Runs every `run:` step of a workflow on this machine, job by job, each in a clone of its own of what is committed.

Run it after templates/ci/ has changed. Needs PyYAML. Steps that use an action are played: checkouts are clones, artifacts
and caches are directories below --work. Jobs of other matrices than the real ones, which may take hours:

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
outputs = {}
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


for job, entry in flow["jobs"].items():
    values = {f"needs.{j}.outputs.{k}": v for j, out in outputs.items() for k, v in out.items()}
    matrix = json.loads(fill(entry["strategy"]["matrix"], values))["include"] if "strategy" in entry else [{}]
    for number, row in enumerate(matrix):
        here = (args.work / "jobs" / f"{job}-{number}").resolve()
        subprocess.run(["git", "clone", "-q", str(repo), str(here)], check=True)
        for name in args.link:
            (here / name).symlink_to(repo / name)
        known = values | {f"matrix.{k}": v for k, v in row.items()}
        known |= {"github.workspace": here, "github.run_id": 1, "github.run_attempt": 1}
        env = {k: fill(v, known) for k, v in (flow.get("env", {}) | entry.get("env", {})).items()}
        env = {**os.environ, **env, "GITHUB_OUTPUT": str(here / ".outputs")}
        for step in entry["steps"]:
            print(f"{job} {row.get('name', row.get('variant', ''))}: {step.get('name', step.get('uses'))}", flush=True)
            if "uses" in step:
                play(step, here, lambda text: fill(text, known))
                continue
            start = time.monotonic()
            done = subprocess.run(["bash", "-eo", "pipefail", "-c", fill(step["run"], known)], cwd=here, env=env)
            print(f"    exit code {done.returncode} after {time.monotonic() - start:.0f} s", flush=True)
            if done.returncode:
                sys.exit(1)
        if "outputs" in entry:
            lines = dict(line.split("=", 1) for line in (here / ".outputs").read_text().splitlines())
            outputs[job] = {name: given.get(name, lines[name]) for name in entry["outputs"]}
