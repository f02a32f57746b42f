#!/usr/bin/env python3
"""Packs an installed CUDA toolkit as NVIDIA publishes its redistributables, to serve it to the provider `redist`.

Usage: pack-redist.py TOOLKIT DEST RELEASE      RELEASE as 12.4.1

Writes DEST/redistrib_RELEASE.json and, for each component, a tar.xz below DEST, in the layout of NVIDIA's
own manifests: component -> platform -> relative_path, sha256, size. Run it for tests of the provider, or to
mirror a toolkit on a network that cannot reach NVIDIA's.
"""

import hashlib
import json
import lzma
import os
import sys
import tarfile

PLATFORM = "linux-x86_64"

# Which part of a toolkit belongs to which component, first match wins. What no rule names goes to cuda_nvcc.
COMPONENTS = [
    ("cuda_cudart", ("lib64/", "lib/", "include/cuda_runtime", "include/driver_", "include/cuda.h")),
    ("cuda_cccl", ("include/cub/", "include/thrust/", "include/cuda/", "include/nv/", "include/cccl/")),
    ("cuda_nvcc", ("",)),
]


def component(path):
    return next(name for name, prefixes in COMPONENTS if path.startswith(prefixes))


def pack(toolkit, paths, top, archive):
    """A tar.xz of `paths` below the directory `top`; same input, same bytes."""
    os.makedirs(os.path.dirname(archive), exist_ok=True)
    with lzma.open(archive, "wb", preset=0) as stream, tarfile.open(fileobj=stream, mode="w") as tar:
        for path in sorted(paths):
            info = tar.gettarinfo(os.path.join(toolkit, path), arcname=f"{top}/{path}")
            info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
            if info.isfile():
                with open(os.path.join(toolkit, path), "rb") as content:
                    tar.addfile(info, content)
            else:
                tar.addfile(info)


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    toolkit, dest, release = sys.argv[1:]
    parts = {name: [] for name, _ in COMPONENTS}
    for folder, _, names in os.walk(toolkit):
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), toolkit)
            parts[component(path)].append(path)
    manifest = {"release_date": "1970-01-01", "release_label": release}
    for name, paths in parts.items():
        top = f"{name}-{PLATFORM}-{release}-archive"
        relative = f"{name}/{PLATFORM}/{top}.tar.xz"
        archive = os.path.join(dest, relative)
        pack(toolkit, paths, top, archive)
        with open(archive, "rb") as stream:
            digest = hashlib.sha256(stream.read()).hexdigest()
        manifest[name] = {
            "name": name,
            "license": "CUDA Toolkit",
            "version": release,
            PLATFORM: {"relative_path": relative, "sha256": digest, "size": str(os.path.getsize(archive))},
        }
    with open(os.path.join(dest, f"redistrib_{release}.json"), "w", encoding="utf-8") as stream:
        json.dump(manifest, stream, indent=2, sort_keys=True)


if __name__ == "__main__":
    main()
