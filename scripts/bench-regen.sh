#!/usr/bin/env bash
# How long rendering all units takes: `nattenc regen` beside upstream's own generators, in one run.
# Usage: scripts/bench-regen.sh [runs]   (best of; needs python3 and, the first time, the network)
# Both write upstream's default split into an empty directory. nattenc also renders the other two splits in
# memory and compares all with autogen.lock; upstream's scripts also write its dispatch headers.
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${1:-10}
if [[ $# -gt 1 || ! $runs =~ ^[1-9][0-9]*$ ]]; then
    sed -n '2,5s/^# //p' "$0"
    [[ $* == -h || $* == --help ]] || { echo "bench-regen.sh: runs is a number of 1 or more" >&2; exit 2; }
    exit 0
fi

cargo build --release --quiet -p nattenc
nattenc=${CARGO_TARGET_DIR:-target}/release/nattenc
"$nattenc" regen --check
version=$(sed -n 's/^natten = "\(.*\)"$/\1/p' build.toml)
home=${NATTENC_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/nattenc}
"$nattenc" regen --interface "$version" "$version" >/dev/null   # brings the sources into the store
sources=$(find "$home/trees" -maxdepth 3 -type d -name "natten-$version" -print -quit)

python3 - "$nattenc" "$sources" "$runs" <<'PY'
import ast, os, pathlib, subprocess, sys, tempfile, time

nattenc, sources, runs = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
setup = ast.parse((sources / "setup.py").read_text())
splits = next(ast.literal_eval(n.value) for n in setup.body
              if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "NUM_SPLITS")["default"]
env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}

def ours(out):
    subprocess.run([nattenc, "regen", "--out", f"{out}/ours"], check=True, stdout=subprocess.DEVNULL)

def theirs(out):
    for family, count in splits.items():
        name = family.replace("-", "_")
        script = next(p for p in (sources / f"scripts/autogen_{name}.py", sources / f"scripts/autogen_{name}_fna.py")
                      if p.is_file())
        subprocess.run([sys.executable, script, "-o", out, "--num-splits", str(count)], check=True, env=env,
                       cwd=sources, stdout=subprocess.DEVNULL)

best = {}
cpu = {}
units = {}
for _ in range(runs):
    # In turn, so that a busy moment of the machine hits both.
    for name, run in (("nattenc", ours), ("upstream", theirs)):
        with tempfile.TemporaryDirectory() as out:
            before, begun = os.times(), time.perf_counter()
            run(out)
            spent, after = time.perf_counter() - begun, os.times()
            used = sum(after[2:4]) - sum(before[2:4])
            best[name] = min(best.get(name, spent), spent)
            cpu[name] = min(cpu.get(name, used), used)
            units[name] = sum(1 for p in pathlib.Path(out).rglob("*.cu"))
for name in best:
    print(f"{name:<9} {1000 * best[name]:8.1f} ms wall, {1000 * cpu[name]:6.0f} ms CPU, {units[name]} units")
print(f"ratio     {best['upstream'] / best['nattenc']:8.1f} wall, {cpu['upstream'] / cpu['nattenc']:8.1f} CPU;"
      f" best of {runs}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
PY
