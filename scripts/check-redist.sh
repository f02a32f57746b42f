#!/usr/bin/env bash
# Runs the provider `redist` against a server of our own that has a real toolkit packed as NVIDIA packs hers,
# then against one that serves a wrong byte. CI runs it.
# Usage: check-redist.sh TOOLKIT      a CUDA 12.4 toolkit
set -euo pipefail
toolkit=${1:?usage: check-redist.sh TOOLKIT}
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
servers=()
trap 'kill "${servers[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT

serve() { # DIR PORTFILE
  python3 - "$1" "$2" <<'PY' &
import functools, http.server, sys
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=sys.argv[1])
handler.log_message = lambda *_: None
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
open(sys.argv[2], "w").write(str(server.server_address[1]))
server.serve_forever()
PY
  servers+=($!)
  for _ in $(seq 100); do [[ -s $2 ]] && return; sleep 0.1; done
  echo "the server did not start" >&2
  exit 1
}

nattenc() { cargo run --release --quiet --manifest-path "$root/Cargo.toml" -p nattenc -- "$@"; }

python3 "$root/scripts/pack-redist.py" "$toolkit" "$work/good" 12.4.1
cp -r "$work/good" "$work/bad"
python3 - "$work/bad/cuda_cccl/linux-x86_64/cuda_cccl-linux-x86_64-12.4.1-archive.tar.xz" <<'PY'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(5000)
    byte = f.read(1)[0]
    f.seek(5000)
    f.write(bytes([byte ^ 1]))
PY
mkdir "$work/project"
cp -r "$root/build.toml" "$root/variants" "$root/nattenc.lock" "$work/project/"
cd "$work/project"
unset CUDA_HOME CUDA_PATH

serve "$work/bad" "$work/bad.port"
status=0
NATTENC_HOME=$work/home NATTENC_REDIST_URL=http://127.0.0.1:$(cat "$work/bad.port") \
  nattenc fetch --variant cu124 2>"$work/bad.txt" || status=$?
tail -12 "$work/bad.txt"
[[ $status == 8 ]] || { echo "a wrong byte ended with exit code $status, not 8" >&2; exit 1; }
cmp "$root/nattenc.lock" nattenc.lock

serve "$work/good" "$work/good.port"
export NATTENC_HOME=$work/home NATTENC_REDIST_URL=http://127.0.0.1:$(cat "$work/good.port")
nattenc fetch --variant cu124
grep -c '^\[\[redist\]\]' nattenc.lock
nattenc fetch --variant cu124 --offline --locked
nattenc build --variant cu124 --offline --locked --family compute_delta --capability 9.0
