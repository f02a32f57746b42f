#!/bin/sh
# A fake cicc, ptxas, cudafe++ or fatbinary. It is only looked at: its bytes hold the banner
# Cuda compilation tools, release @RELEASE@, V@VERSION@
echo "$(basename "$0"): a fake tool was run: $*" >&2
exit 97
