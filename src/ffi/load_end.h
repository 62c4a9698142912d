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
