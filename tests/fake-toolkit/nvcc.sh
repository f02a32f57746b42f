#!/bin/sh
# A fake nvcc: see README.md.
here=$(cd "$(dirname "$0")" && pwd)
fake=$here/../fake
echo "nvcc $*" >> "$fake/calls"
case "$1" in
--version)
    [ -f "$fake/version" ] && exec cat "$fake/version"
    echo "nvcc: a fake compiler driver"
    echo "Cuda compilation tools, release @RELEASE@, V@VERSION@"
    ;;
--list-gpu-code) cat "$fake/capabilities" ;;
--dryrun)
    {
        echo "#\$ _HERE_=$here"
        echo "#\$ TOP=$here/.."
        echo "#\$ CICC_PATH=$here/../nvvm/bin"
        echo "#\$ PATH=$here/../nvvm/bin:$here:$PATH"
        echo "#\$ INCLUDES=\"-I$here/../include\"  "
        echo "#\$ LIBRARIES=  \"-L$here/../lib64/stubs\" \"-L$here/../lib64\""
    } >&2
    ;;
-std=c++17)
    case " $* " in *" -gencode arch="*) ;; *) echo "fake nvcc: no gencode" >&2; exit 97 ;; esac
    case " $* " in *" --bogus"*) echo "nvcc fatal   : Unknown option '--bogus'" >&2; exit 1 ;; esac
    [ -f "$fake/fail" ] && { cat "$fake/fail" >&2; exit 1; }
    [ -f "$fake/noise" ] && cat "$fake/noise" >&2
    [ -f "$fake/silent" ] || printf '\177ELFfake' > probe.o
    ;;
*) echo "fake nvcc: unknown arguments: $*" >&2; exit 97 ;;
esac
exit 0
