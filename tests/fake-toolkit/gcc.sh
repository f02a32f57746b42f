#!/bin/sh
# A fake gcc: see README.md.
here=$(cd "$(dirname "$0")" && pwd)
case "$*" in
--version) echo "gcc (a fake) $(cat "$here/../gcc-version")" ;;
"-dumpfullversion -dumpversion") cat "$here/../gcc-version" ;;
-print-prog-name=cc1plus) echo "$here/cc1plus" ;;
*) echo "fake gcc: unknown arguments: $*" >&2; exit 97 ;;
esac
