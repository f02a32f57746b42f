#!/bin/sh
# Puts a fake toolkit into DEST. Usage: make.sh DEST RELEASE VERSION    (make.sh /tmp/t 12.8 12.8.93)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dest=$1 release=$2 version=$3
mkdir -p "$dest/bin" "$dest/nvvm/bin" "$dest/include/crt" "$dest/lib64" "$dest/fake/host"
stamp() { sed -e "s/@RELEASE@/$release/g" -e "s/@VERSION@/$version/g" "$here/$1" > "$dest/$2"; }
for tool in ptxas cudafe++ fatbinary; do stamp tool.sh "bin/$tool"; done
stamp tool.sh nvvm/bin/cicc
stamp nvcc.sh bin/nvcc
stamp gcc.sh fake/host/gcc
cp "$dest/fake/host/gcc" "$dest/fake/host/cc1plus"
major=${release%.*} minor=${release#*.}
printf '#define CUDART_VERSION %d\n' $((major * 1000 + minor * 10)) > "$dest/include/cuda_runtime_api.h"
printf '#if __GNUC__ > 14\n#error unsupported\n#endif\n#if (__clang_major__ >= 20)\n#endif\n' > "$dest/include/crt/host_config.h"
# the constant that a real runtime's cudaRuntimeGetVersion stores, in the code of both architectures
word() { printf "\\$(printf %o $(($1 & 255)))\\$(printf %o $(($1 >> 8 & 255)))\\$(printf %o $(($1 >> 16 & 255)))\\$(printf %o $(($1 >> 24 & 255)))"; }
number=$((major * 1000 + minor * 10))
{
    printf '!<arch>\n'
    word $((0x52800002 | number << 5)); word $((0xb9000022))
    printf '\307\007'; word $number
} > "$dest/lib64/libcudart_static.a"
echo "sm_80 sm_90" | tr ' ' '\n' > "$dest/fake/capabilities"
echo "12.2.0" > "$dest/fake/gcc-version"
chmod +x "$dest/bin/"* "$dest/nvvm/bin/cicc" "$dest/fake/host/"*
