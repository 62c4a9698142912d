// mnnkv/load.h: libmnnkv loaded at run time, for a program that is built without it.
//
// Generated from the other headers and src/ffi/load.h by `make header`; do not edit.
//
// This header defines the functions of all headers of libmnnkv. In one C or C++ file of each program or library that
// calls them, before any other include of this header, and nowhere else:
//
//   #define _GNU_SOURCE  // in C with glibc: before the first include of the file
//   #define MNNKV_LOAD_IMPLEMENTATION
//   #include "mnnkv/load.h"
//
//   const char *why = mnnkv_load(NULL);  // first; go on without mnn-kv where it returns a text
//
// Link with -ldl where dlopen needs it. No Rust, and no file of the library, is needed to build the program.

#ifndef MNNKV_LOAD_H
#define MNNKV_LOAD_H

#include "session.h"
#include "layout.h"
#include "h2o.h"
#include "store.h"
#include "gear.h"

#ifdef __cplusplus
extern "C" {
#endif

/// Loads libmnnkv, once in a program or library that has the implementation.
/// path: its file; NULL or "" = that of the environment variable MNNKV_LIBRARY, else the one beside the program or library
/// that calls, else the one that the system finds. If that library was itself loaded by
/// a relative path, the file beside it is not tried. The wrappers of mnnkv.hpp work with a loaded library, too.
///
/// Returns NULL once the library is loaded, else why it is not, a text that is valid until the next call. A file that is
/// named and cannot be loaded, another library, one of another ABI, and one of another version that lacks a function are
/// refused. Until the library is loaded all functions return MNNKV_UNSUPPORTED, 0 or "", and mnnkv_last_error the text. Never
/// unloaded; a call after that does nothing.
/// Threads: one at a time, and none in another function of the library meanwhile. With glibc the first call that a thread makes
/// allocates its thread-local memory, about 1 KB; glibc ends the process if malloc refuses that. In a program that is linked with
/// the library this memory comes with the thread.
const char *mnnkv_load(const char *path);

#ifdef MNNKV_LOAD_IMPLEMENTATION

#define MNNKV_LOAD_ABI "1"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#include <windows.h>
#define MNNKV_LOAD_NAME "mnnkv.dll"
#define MNNKV_LOAD_SEPARATOR '\\'
#else
#define MNNKV_LOAD_SEPARATOR '/'
#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>
#if defined(__GLIBC__) && !defined(__USE_GNU)
#error "define _GNU_SOURCE before the first include: mnnkv/load.h calls dladdr"
#endif
#if defined(__APPLE__)
#define MNNKV_LOAD_NAME "libmnnkv." MNNKV_LOAD_ABI ".dylib"
#elif defined(__ANDROID__)
#define MNNKV_LOAD_NAME "libmnnkv.so"
#else
#define MNNKV_LOAD_NAME "libmnnkv.so." MNNKV_LOAD_ABI
#endif
#endif

// Functions of two libraries that have the implementation do not meet.
#if defined(__GNUC__) && !defined(_WIN32)
#define MNNKV_LOAD_HIDDEN __attribute__((visibility("hidden")))
#else
#define MNNKV_LOAD_HIDDEN
#endif

static char mnnkv_load_why[1024] = "libmnnkv is not loaded";

#if defined(_WIN32)
static void *mnnkv_load_open(const char *path) {
    void *opened = (void *)LoadLibraryA(path);
    if (!opened) {
        snprintf(mnnkv_load_why, sizeof mnnkv_load_why, "%.900s cannot be loaded: error %lu", path, GetLastError());
    }
    return opened;
}

static void mnnkv_load_close(void *opened) { FreeLibrary((HMODULE)opened); }

static void mnnkv_load_find(void *opened, const char *name, void *function) {
    FARPROC found = GetProcAddress((HMODULE)opened, name);
    memcpy(function, &found, sizeof found);
}

static void mnnkv_load_own_path(char *path, size_t size) {
    HMODULE own = NULL;
    const DWORD flags = GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
    DWORD len = 0;
    if (GetModuleHandleExA(flags, mnnkv_load_why, &own)) {
        len = GetModuleFileNameA(own, path, (DWORD)size);
    }
    path[len < size ? len : 0] = 0;
}
#else
static void *mnnkv_load_open(const char *path) {
    void *opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!opened) {
        const char *error = dlerror();
        snprintf(mnnkv_load_why, sizeof mnnkv_load_why, "%s", error ? error : "dlopen failed");
    }
    return opened;
}

static void mnnkv_load_close(void *opened) { dlclose(opened); }

static void mnnkv_load_find(void *opened, const char *name, void *function) {
    void *found = dlsym(opened, name);
    memcpy(function, &found, sizeof found);
}

static void mnnkv_load_own_path(char *path, size_t size) {
    Dl_info own;
    path[0] = 0;
    if (!dladdr(mnnkv_load_why, &own) || !own.dli_fname) {
        return;
    }
#if defined(__linux__) && !defined(__ANDROID__)
    if (strcmp(own.dli_fname, program_invocation_name) == 0) {
        // The main program, whose name here is argv[0].
        const ssize_t len = readlink("/proc/self/exe", path, size);
        path[len > 0 && (size_t)len < size ? len : 0] = 0;
        return;
    }
#endif
    // A relative path is one of the folder that was the working folder when the library was loaded.
    if (own.dli_fname[0] == '/' && strlen(own.dli_fname) < size) {
        strcpy(path, own.dli_fname);
    }
}
#endif

/// The file that path, the environment or the own folder names; else the system's.
static const char *mnnkv_load_path(const char *path, char *beside, size_t size) {
    char *name;
    FILE *file;
    if (!path || !*path) {
        path = getenv("MNNKV_LIBRARY");
    }
    if (path && *path) {
        return path;
    }
    mnnkv_load_own_path(beside, size - sizeof MNNKV_LOAD_NAME);
    name = strrchr(beside, MNNKV_LOAD_SEPARATOR);
    name = name ? name + 1 : beside;
    memcpy(name, MNNKV_LOAD_NAME, sizeof MNNKV_LOAD_NAME);
    file = name > beside ? fopen(beside, "rb") : NULL;
    if (file) {
        fclose(file);
        return beside;
    }
    return MNNKV_LOAD_NAME;
}

static struct mnnkv_functions {
    const char *(*status_name)(mnnkv_status status);
    const char *(*last_error)(void);
    uint32_t (*version)(void);
    uint32_t (*abi_version)(void);
    const char *(*cpu_level)(void);
    mnnkv_status (*layout_check)(const mnnkv_layout *layout, uint64_t *key_bytes, uint64_t *value_bytes);
    mnnkv_status (*session_create)(const mnnkv_session_options *options, mnnkv_session **out);
    void (*session_destroy)(mnnkv_session *session);
    mnnkv_status (*session_begin)(mnnkv_session *session, uint32_t layer, mnnkv_cache *cache, mnnkv_step *step);
    mnnkv_status (*session_end)(mnnkv_session *session, uint32_t layer, uint32_t heads, uint32_t queries, mnnkv_cache *cache);
    mnnkv_status (*session_abort)(mnnkv_session *session, uint32_t layer, mnnkv_cache *cache);
    mnnkv_status (*session_window)(mnnkv_session *session, uint32_t layer, uint32_t window, uint32_t rollback);
    mnnkv_status (*session_attend)(const mnnkv_session *session, uint32_t layer, uint32_t part, uint32_t parts,
            const mnnkv_cache *cache, const mnnkv_attend *attend);
    mnnkv_status (*session_reset)(mnnkv_session *session, uint32_t layer);
    mnnkv_status (*session_keep)(mnnkv_session *session, uint32_t layer, const int32_t *logical_pairs, size_t n_pairs,
            mnnkv_cache *cache);
    mnnkv_status (*session_rewritten)(mnnkv_session *session, uint32_t layer, uint32_t begin, uint32_t count);
    mnnkv_status (*session_lengths)(const mnnkv_session *session, uint32_t layer, uint32_t *logical, uint32_t *physical);
    mnnkv_status (*session_positions)(const mnnkv_session *session, uint32_t layer, uint32_t kv_head, int32_t *pairs,
            size_t pairs_cap, size_t *n_pairs);
    mnnkv_status (*session_pin)(mnnkv_session *session, uint32_t first, uint32_t count, uint32_t on);
    mnnkv_status (*session_trim)(mnnkv_session *session, uint64_t bytes, uint64_t *in_use);
    mnnkv_status (*session_put)(mnnkv_session *session, const char *name, const void *bytes, size_t len);
    mnnkv_status (*session_get)(const mnnkv_session *session, const char *name, void *out, size_t cap, size_t *len);
    mnnkv_status (*session_save)(mnnkv_session *session, const char *path, const mnnkv_cache *caches, uint32_t layers,
            uint64_t *written);
    mnnkv_status (*session_open)(mnnkv_session *session, const char *path);
    mnnkv_status (*session_report)(const mnnkv_session *session, char *text, size_t cap, size_t *len);
    mnnkv_status (*kv_gather)(const mnnkv_layout *layout, const void *key, const void *value, uint32_t begin, uint32_t count,
            void *key_out, void *value_out, size_t cap_each);
    mnnkv_status (*kv_scatter)(const mnnkv_layout *layout, const void *key_in, const void *value_in, size_t len_each,
            uint32_t begin, uint32_t count, void *key, void *value);
    mnnkv_status (*kv_move)(const mnnkv_layout *layout, void *key, void *value, uint32_t src, uint32_t dst, uint32_t count);
    mnnkv_status (*kv_compact)(const mnnkv_layout *layout, void *key, void *value, uint32_t base, const int32_t *reserve_pairs,
            size_t n_pairs, uint32_t kv_len, uint32_t *new_len);
    mnnkv_status (*kv_zero)(const mnnkv_layout *layout, void *key, void *value, uint32_t begin, uint32_t count);
    mnnkv_status (*kv_release)(const mnnkv_layout *layout, void *key, void *value, uint32_t begin, uint32_t count,
            uint64_t *bytes);
    mnnkv_status (*kv_appended)(const mnnkv_layout *layout, void *key, void *value, uint32_t begin, uint32_t count);
    mnnkv_status (*kv_changed)(const mnnkv_layout *layout, void *key, void *value, uint32_t begin, uint32_t count,
            uint32_t kv_len);
    void (*h2o_config_default)(mnnkv_h2o_config *config);
    mnnkv_status (*h2o_update_scores)(float *scores, size_t n_blocks, const float *block_acc, float alpha, float norm);
    mnnkv_status (*h2o_plan_reserve)(const float *scores, size_t n_blocks, uint32_t kv_len, const mnnkv_h2o_config *config,
            int32_t *pairs, size_t pairs_cap, size_t *n_pairs, mnnkv_h2o_plan *plan);
    mnnkv_status (*session_block_sums)(mnnkv_session *session, uint32_t layer, uint32_t lane, const mnnkv_block_sums *sums);
    mnnkv_status (*store_create)(const mnnkv_store_config *config, uint32_t abi_version, mnnkv_store **out);
    void (*store_destroy)(mnnkv_store *store);
    mnnkv_status (*store_submit)(mnnkv_store *store, uint32_t layer, const mnnkv_layout *layout, const void *key,
            const void *value, uint32_t begin, uint32_t count, uint64_t *ticket);
    mnnkv_status (*store_commit)(mnnkv_store *store, uint32_t layer, const mnnkv_layout *layout, void *key, void *value,
            uint64_t *released_bytes);
    mnnkv_status (*store_restore)(mnnkv_store *store, uint32_t layer, const mnnkv_layout *layout, void *key, void *value,
            uint64_t *restored_bytes);
    mnnkv_status (*store_compacted)(mnnkv_store *store, uint32_t layer, const int32_t *reserve_pairs, size_t n_pairs);
    mnnkv_status (*store_stats)(const mnnkv_store *store, mnnkv_store_statistics *statistics);
    size_t (*gear_bound)(size_t src_len, uint32_t dtype);
    mnnkv_status (*encode_gear)(const void *src, size_t src_len, uint32_t dtype, const mnnkv_gear_options *options, void *dst,
            size_t dst_cap, size_t *dst_len);
    mnnkv_status (*encode_fp16_gear)(const void *src, size_t src_len, const mnnkv_gear_options *options, void *dst,
            size_t dst_cap, size_t *dst_len);
    void (*thread_trim)(void);
    mnnkv_status (*decode_gear)(const void *src, size_t src_len, uint32_t dtype, const mnnkv_decode_options *options, void *dst,
            size_t dst_cap, size_t *dst_len);
} mnnkv_loaded;

static const char *const mnnkv_load_names[] = {
    "mnnkv_status_name",
    "mnnkv_last_error",
    "mnnkv_version",
    "mnnkv_abi_version",
    "mnnkv_cpu_level",
    "mnnkv_layout_check",
    "mnnkv_session_create",
    "mnnkv_session_destroy",
    "mnnkv_session_begin",
    "mnnkv_session_end",
    "mnnkv_session_abort",
    "mnnkv_session_window",
    "mnnkv_session_attend",
    "mnnkv_session_reset",
    "mnnkv_session_keep",
    "mnnkv_session_rewritten",
    "mnnkv_session_lengths",
    "mnnkv_session_positions",
    "mnnkv_session_pin",
    "mnnkv_session_trim",
    "mnnkv_session_put",
    "mnnkv_session_get",
    "mnnkv_session_save",
    "mnnkv_session_open",
    "mnnkv_session_report",
    "mnnkv_kv_gather",
    "mnnkv_kv_scatter",
    "mnnkv_kv_move",
    "mnnkv_kv_compact",
    "mnnkv_kv_zero",
    "mnnkv_kv_release",
    "mnnkv_kv_appended",
    "mnnkv_kv_changed",
    "mnnkv_h2o_config_default",
    "mnnkv_h2o_update_scores",
    "mnnkv_h2o_plan_reserve",
    "mnnkv_session_block_sums",
    "mnnkv_store_create",
    "mnnkv_store_destroy",
    "mnnkv_store_submit",
    "mnnkv_store_commit",
    "mnnkv_store_restore",
    "mnnkv_store_compacted",
    "mnnkv_store_stats",
    "mnnkv_gear_bound",
    "mnnkv_encode_gear",
    "mnnkv_encode_fp16_gear",
    "mnnkv_thread_trim",
    "mnnkv_decode_gear",
};

MNNKV_LOAD_HIDDEN const char *mnnkv_status_name(mnnkv_status status) {
    return mnnkv_loaded.status_name ? mnnkv_loaded.status_name(status) : "";
}

MNNKV_LOAD_HIDDEN const char *mnnkv_last_error(void) {
    return mnnkv_loaded.last_error ? mnnkv_loaded.last_error() : mnnkv_load_why;
}

MNNKV_LOAD_HIDDEN uint32_t mnnkv_version(void) {
    return mnnkv_loaded.version ? mnnkv_loaded.version() : 0;
}

MNNKV_LOAD_HIDDEN uint32_t mnnkv_abi_version(void) {
    return mnnkv_loaded.abi_version ? mnnkv_loaded.abi_version() : 0;
}

MNNKV_LOAD_HIDDEN const char *mnnkv_cpu_level(void) {
    return mnnkv_loaded.cpu_level ? mnnkv_loaded.cpu_level() : "";
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_layout_check(const mnnkv_layout *layout, uint64_t *key_bytes, uint64_t *value_bytes) {
    return mnnkv_loaded.layout_check ? mnnkv_loaded.layout_check(layout, key_bytes, value_bytes) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_session_create(const mnnkv_session_options *options, mnnkv_session **out) {
    return mnnkv_loaded.session_create ? mnnkv_loaded.session_create(options, out) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN void mnnkv_session_destroy(mnnkv_session *session) {
    if (mnnkv_loaded.session_destroy) {
        mnnkv_loaded.session_destroy(session);
    }
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_session_begin(mnnkv_session *session, uint32_t layer, mnnkv_cache *cache, mnnkv_step *step) {
    return mnnkv_loaded.session_begin ? mnnkv_loaded.session_begin(session, layer, cache, step) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_session_end(mnnkv_session *session, uint32_t layer, uint32_t heads, uint32_t queries,
            mnnkv_cache *cache) {
    return mnnkv_loaded.session_end ? mnnkv_loaded.session_end(session, layer, heads, queries, cache) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_session_abort(mnnkv_session *session, uint32_t layer, mnnkv_cache *cache) {
    return mnnkv_loaded.session_abort ? mnnkv_loaded.session_abort(session, layer, cache) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_session_window(mnnkv_session *session, uint32_t layer, uint32_t window, uint32_t rollback) {
    return mnnkv_loaded.session_window ? mnnkv_loaded.session_window(session, layer, window, rollback) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_session_attend(const mnnkv_session *session, uint32_t layer, uint32_t part, uint32_t parts,
            const mnnkv_cache *cache, const mnnkv_attend *attend) {
    return mnnkv_loaded.session_attend ? mnnkv_loaded.session_attend(session, layer, part, parts, cache,
            attend) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_session_reset(mnnkv_session *session, uint32_t layer) {
    return mnnkv_loaded.session_reset ? mnnkv_loaded.session_reset(session, layer) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_session_keep(mnnkv_session *session, uint32_t layer, const int32_t *logical_pairs,
            size_t n_pairs, mnnkv_cache *cache) {
    return mnnkv_loaded.session_keep ? mnnkv_loaded.session_keep(session, layer, logical_pairs, n_pairs,
            cache) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_session_rewritten(mnnkv_session *session, uint32_t layer, uint32_t begin, uint32_t count) {
    return mnnkv_loaded.session_rewritten ? mnnkv_loaded.session_rewritten(session, layer, begin, count) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_session_lengths(const mnnkv_session *session, uint32_t layer, uint32_t *logical,
            uint32_t *physical) {
    return mnnkv_loaded.session_lengths ? mnnkv_loaded.session_lengths(session, layer, logical, physical) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_session_positions(const mnnkv_session *session, uint32_t layer, uint32_t kv_head,
            int32_t *pairs, size_t pairs_cap, size_t *n_pairs) {
    return mnnkv_loaded.session_positions ? mnnkv_loaded.session_positions(session, layer, kv_head, pairs, pairs_cap,
            n_pairs) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_session_pin(mnnkv_session *session, uint32_t first, uint32_t count, uint32_t on) {
    return mnnkv_loaded.session_pin ? mnnkv_loaded.session_pin(session, first, count, on) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_session_trim(mnnkv_session *session, uint64_t bytes, uint64_t *in_use) {
    return mnnkv_loaded.session_trim ? mnnkv_loaded.session_trim(session, bytes, in_use) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_session_put(mnnkv_session *session, const char *name, const void *bytes, size_t len) {
    return mnnkv_loaded.session_put ? mnnkv_loaded.session_put(session, name, bytes, len) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_session_get(const mnnkv_session *session, const char *name, void *out, size_t cap,
            size_t *len) {
    return mnnkv_loaded.session_get ? mnnkv_loaded.session_get(session, name, out, cap, len) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_session_save(mnnkv_session *session, const char *path, const mnnkv_cache *caches,
            uint32_t layers, uint64_t *written) {
    return mnnkv_loaded.session_save ? mnnkv_loaded.session_save(session, path, caches, layers, written) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_session_open(mnnkv_session *session, const char *path) {
    return mnnkv_loaded.session_open ? mnnkv_loaded.session_open(session, path) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_session_report(const mnnkv_session *session, char *text, size_t cap, size_t *len) {
    return mnnkv_loaded.session_report ? mnnkv_loaded.session_report(session, text, cap, len) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_kv_gather(const mnnkv_layout *layout, const void *key, const void *value, uint32_t begin,
            uint32_t count, void *key_out, void *value_out, size_t cap_each) {
    return mnnkv_loaded.kv_gather ? mnnkv_loaded.kv_gather(layout, key, value, begin, count, key_out, value_out,
            cap_each) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_kv_scatter(const mnnkv_layout *layout, const void *key_in, const void *value_in,
            size_t len_each, uint32_t begin, uint32_t count, void *key, void *value) {
    return mnnkv_loaded.kv_scatter ? mnnkv_loaded.kv_scatter(layout, key_in, value_in, len_each, begin, count, key,
            value) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_kv_move(const mnnkv_layout *layout, void *key, void *value, uint32_t src, uint32_t dst,
            uint32_t count) {
    return mnnkv_loaded.kv_move ? mnnkv_loaded.kv_move(layout, key, value, src, dst, count) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_kv_compact(const mnnkv_layout *layout, void *key, void *value, uint32_t base,
            const int32_t *reserve_pairs, size_t n_pairs, uint32_t kv_len, uint32_t *new_len) {
    return mnnkv_loaded.kv_compact ? mnnkv_loaded.kv_compact(layout, key, value, base, reserve_pairs, n_pairs, kv_len,
            new_len) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_kv_zero(const mnnkv_layout *layout, void *key, void *value, uint32_t begin, uint32_t count) {
    return mnnkv_loaded.kv_zero ? mnnkv_loaded.kv_zero(layout, key, value, begin, count) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_kv_release(const mnnkv_layout *layout, void *key, void *value, uint32_t begin,
            uint32_t count, uint64_t *bytes) {
    return mnnkv_loaded.kv_release ? mnnkv_loaded.kv_release(layout, key, value, begin, count, bytes) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_kv_appended(const mnnkv_layout *layout, void *key, void *value, uint32_t begin,
            uint32_t count) {
    return mnnkv_loaded.kv_appended ? mnnkv_loaded.kv_appended(layout, key, value, begin, count) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_kv_changed(const mnnkv_layout *layout, void *key, void *value, uint32_t begin,
            uint32_t count, uint32_t kv_len) {
    return mnnkv_loaded.kv_changed ? mnnkv_loaded.kv_changed(layout, key, value, begin, count, kv_len) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN void mnnkv_h2o_config_default(mnnkv_h2o_config *config) {
    if (mnnkv_loaded.h2o_config_default) {
        mnnkv_loaded.h2o_config_default(config);
    }
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_h2o_update_scores(float *scores, size_t n_blocks, const float *block_acc, float alpha,
            float norm) {
    return mnnkv_loaded.h2o_update_scores ? mnnkv_loaded.h2o_update_scores(scores, n_blocks, block_acc, alpha,
            norm) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_h2o_plan_reserve(const float *scores, size_t n_blocks, uint32_t kv_len,
            const mnnkv_h2o_config *config, int32_t *pairs, size_t pairs_cap, size_t *n_pairs, mnnkv_h2o_plan *plan) {
    return mnnkv_loaded.h2o_plan_reserve ? mnnkv_loaded.h2o_plan_reserve(scores, n_blocks, kv_len, config, pairs, pairs_cap,
            n_pairs, plan) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_session_block_sums(mnnkv_session *session, uint32_t layer, uint32_t lane,
            const mnnkv_block_sums *sums) {
    return mnnkv_loaded.session_block_sums ? mnnkv_loaded.session_block_sums(session, layer, lane, sums) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_store_create(const mnnkv_store_config *config, uint32_t abi_version, mnnkv_store **out) {
    return mnnkv_loaded.store_create ? mnnkv_loaded.store_create(config, abi_version, out) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN void mnnkv_store_destroy(mnnkv_store *store) {
    if (mnnkv_loaded.store_destroy) {
        mnnkv_loaded.store_destroy(store);
    }
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_store_submit(mnnkv_store *store, uint32_t layer, const mnnkv_layout *layout,
            const void *key, const void *value, uint32_t begin, uint32_t count, uint64_t *ticket) {
    return mnnkv_loaded.store_submit ? mnnkv_loaded.store_submit(store, layer, layout, key, value, begin, count,
            ticket) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_store_commit(mnnkv_store *store, uint32_t layer, const mnnkv_layout *layout, void *key,
            void *value, uint64_t *released_bytes) {
    return mnnkv_loaded.store_commit ? mnnkv_loaded.store_commit(store, layer, layout, key, value,
            released_bytes) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_store_restore(mnnkv_store *store, uint32_t layer, const mnnkv_layout *layout, void *key,
            void *value, uint64_t *restored_bytes) {
    return mnnkv_loaded.store_restore ? mnnkv_loaded.store_restore(store, layer, layout, key, value,
            restored_bytes) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_store_compacted(mnnkv_store *store, uint32_t layer, const int32_t *reserve_pairs,
            size_t n_pairs) {
    return mnnkv_loaded.store_compacted ? mnnkv_loaded.store_compacted(store, layer, reserve_pairs, n_pairs) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_store_stats(const mnnkv_store *store, mnnkv_store_statistics *statistics) {
    return mnnkv_loaded.store_stats ? mnnkv_loaded.store_stats(store, statistics) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN size_t mnnkv_gear_bound(size_t src_len, uint32_t dtype) {
    return mnnkv_loaded.gear_bound ? mnnkv_loaded.gear_bound(src_len, dtype) : 0;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_encode_gear(const void *src, size_t src_len, uint32_t dtype,
            const mnnkv_gear_options *options, void *dst, size_t dst_cap, size_t *dst_len) {
    return mnnkv_loaded.encode_gear ? mnnkv_loaded.encode_gear(src, src_len, dtype, options, dst, dst_cap,
            dst_len) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_encode_fp16_gear(const void *src, size_t src_len, const mnnkv_gear_options *options,
            void *dst, size_t dst_cap, size_t *dst_len) {
    return mnnkv_loaded.encode_fp16_gear ? mnnkv_loaded.encode_fp16_gear(src, src_len, options, dst, dst_cap,
            dst_len) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN void mnnkv_thread_trim(void) {
    if (mnnkv_loaded.thread_trim) {
        mnnkv_loaded.thread_trim();
    }
}

MNNKV_LOAD_HIDDEN mnnkv_status mnnkv_decode_gear(const void *src, size_t src_len, uint32_t dtype,
            const mnnkv_decode_options *options, void *dst, size_t dst_cap, size_t *dst_len) {
    return mnnkv_loaded.decode_gear ? mnnkv_loaded.decode_gear(src, src_len, dtype, options, dst, dst_cap,
            dst_len) : MNNKV_UNSUPPORTED;
}

MNNKV_LOAD_HIDDEN const char *mnnkv_load(const char *path) {
    const size_t size = sizeof(void (*)(void)), count = sizeof mnnkv_load_names / sizeof *mnnkv_load_names;
    struct mnnkv_functions found;
    void (*function)(void) = NULL;
    char beside[4096];
    void *opened;
    size_t i;
    if (mnnkv_loaded.abi_version) {
        return NULL;
    }
    path = mnnkv_load_path(path, beside, sizeof beside);
    opened = mnnkv_load_open(path);
    if (!opened) {
        return mnnkv_load_why;
    }
    mnnkv_load_find(opened, "mnnkv_abi_version", &found.abi_version);
    if (!found.abi_version || found.abi_version() != MNNKV_ABI_VERSION) {
        if (found.abi_version) {
            snprintf(mnnkv_load_why, sizeof mnnkv_load_why, "%.900s has ABI %u; %u expected", path,
                     (unsigned)found.abi_version(), (unsigned)MNNKV_ABI_VERSION);
        } else {
            snprintf(mnnkv_load_why, sizeof mnnkv_load_why, "%.900s is not libmnnkv", path);
        }
        mnnkv_load_close(opened);
        return mnnkv_load_why;
    }
    for (i = 0; i < count; ++i) {
        mnnkv_load_find(opened, mnnkv_load_names[i], &function);
        if (!function) {
            snprintf(mnnkv_load_why, sizeof mnnkv_load_why, "%.900s is of another version than mnnkv.h: it has no %s",
                     path, mnnkv_load_names[i]);
            mnnkv_load_close(opened);
            return mnnkv_load_why;
        }
        memcpy((char *)&found + i * size, &function, size);
    }
    mnnkv_loaded = found;
    return NULL;
}

#endif  // MNNKV_LOAD_IMPLEMENTATION

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_LOAD_H
