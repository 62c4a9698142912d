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
