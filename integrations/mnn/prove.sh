#!/bin/sh
# Runs chats through every state of mnn-kv in a patched MNN, and compares their tokens with those of MNN alone. Where MNN was
# built with a sanitizer, mnn-kv and the program are built with it, too.
#
#   prove.sh MNN BUILD CONFIG [BUDGET_MB [THREADS]]
#
# MNN: the patched checkout. BUILD: a build folder of it with the targets MNN and llm (README.md, "Apply and build"), for a
# sanitizer configured with -DCMAKE_CXX_FLAGS="-fsanitize=address -fno-omit-frame-pointer", likewise for CMAKE_C_FLAGS, or with
# "thread". CONFIG: the config.json of a model. BUDGET_MB: a budget that does not hold 600 tokens raw; 8 suits SmolLM2-135M.
# THREADS: 1, 2 or 4, else all of them in turn.
# Builds go to BUILD/mnnkv-prove. The exit status is 0 if all chats passed and the sanitizer reported nothing.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
source=$(dirname "$(dirname "$here")")
if [ $# -lt 3 ] || [ ! -f "$1/include/MNN/MNNDefine.h" ] || [ ! -f "$2/CMakeCache.txt" ] || [ ! -f "$3" ]; then
    echo "usage: prove.sh MNN BUILD CONFIG [BUDGET_MB [THREADS]] (a patched checkout, its build folder, a model's config.json)" >&2
    exit 2
fi
mnn=$(cd "$1" && pwd) build=$(cd "$2" && pwd) config=$(cd "$(dirname "$3")" && pwd)/$(basename "$3") budget=${4:-8}
out=$build/mnnkv-prove
mkdir -p "$out/files"

# The sanitizer of MNN's build: address, thread or none.
kind=$(sed -n 's/^CMAKE_CXX_FLAGS:[^=]*=.*-fsanitize=\([a-z]*\).*/\1/p' "$build/CMakeCache.txt")
target=$(rustc -vV | sed -n 's/^host: //p')
cmake=$("$source/cmake/setup.sh" which cmake)

echo "mnn-kv, ${kind:-no sanitizer}"
"$cmake" -S "$source" -B "$out/mnnkv" --log-level=NOTICE -DCMAKE_BUILD_TYPE=Release -DMNNKV_MODEL=OFF \
    -DMNNKV_SANITIZE="$kind" -DMNNKV_RUST_TARGET="${kind:+$target}" -DCMAKE_INSTALL_PREFIX="$out/install" \
    -DCMAKE_INSTALL_LIBDIR=lib
"$cmake" --build "$out/mnnkv" > "$out/build.log"
"$cmake" --install "$out/mnnkv" > "$out/install.log"

# Names of ThreadSanitizer that the library has and GCC's runtime lacks; of the program, so that the library finds them.
names=
if [ "$kind" = thread ] && ${CXX:-c++} --version | grep -q "Free Software Foundation"; then
    ${CC:-cc} -O1 -fPIC -c "$source/cpp-tests/tsan_gcc.c" -o "$out/tsan_gcc.o"
    names="$out/tsan_gcc.o -rdynamic"
fi

# A part of libMNN where MNN_SEP_BUILD is on.
express=
if [ -d "$build/express" ] && ls "$build"/express/libMNN_Express.* >/dev/null 2>&1; then
    express="-L$build/express -Wl,-rpath,$build/express -lMNN_Express"
fi

# shellcheck disable=SC2086
${CXX:-c++} -std=c++11 -O1 -g ${kind:+-fsanitize=$kind} -I"$mnn/include" -I"$mnn/transformers/llm/engine/include" -I"$here" \
    "$here/prove.cpp" $names -L"$build" -Wl,-rpath,"$build" -lllm -lMNN $express -pthread -o "$out/mnnkv_prove"

export MNNKV_LIBRARY="$out/install/lib/libmnnkv.so"
export TSAN_OPTIONS="suppressions=$source/tests/thread_sanitizer.supp ${TSAN_OPTIONS:-}"
exec "$out/mnnkv_prove" "$config" "$out/files" "$budget" ${5:+"$5"}
