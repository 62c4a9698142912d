#!/bin/sh
# Says whether llama-server.patch fits a checkout of llama.cpp, or applies it. Builds nothing.
#
#   check.sh [--apply] LLAMA_CPP
#
# Exit status: 0 the patch fits or is applied, 1 it does not fit, 2 wrong use.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
apply=""
if [ "${1:-}" = --apply ]; then
    apply=yes
    shift
fi
if [ $# -ne 1 ] || [ ! -f "$1/tools/server/server-task.h" ]; then
    echo "usage: check.sh [--apply] LLAMA_CPP (a folder with tools/server/server-task.h)" >&2
    exit 2
fi
checkout=$(cd "$1" && pwd)
# shellcheck source=../common/patches.sh
. "$here/../common/patches.sh"

judge "$here/llama-server.patch" " Configure with -DLLAMA_MNNKV= and where mnn-kv is installed" "--apply" "$apply" && exit 0
printf 'llama-server.patch does not fit:\n%s\n' "$report"
echo "For another version insert the lines by hand: README.md, \"llama-server\", says where each belongs."
exit 1
