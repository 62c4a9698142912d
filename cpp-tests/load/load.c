// A C program that is built with mnnkv/load.h and without the library: argv[1] is its path, argv[2] a file of text, argv[3] a
// shared library that is another one. Without arguments it loads what it finds.

#define _GNU_SOURCE
#define MNNKV_LOAD_IMPLEMENTATION
#include <mnnkv/load.h>

static int failed;

static void check(const char *what, int right) {
    if (!right) {
        printf("%s: \"%s\"\n", what, mnnkv_last_error());
        failed = 1;
    }
}

static int refuses(const char *path, const char *text) {
    const char *why = mnnkv_load(path);
    return why && strstr(why, text) && strcmp(why, mnnkv_last_error()) == 0;
}

int main(int argc, char **argv) {
    const uint16_t words[64] = {1, 2, 3};
    unsigned char encoded[4096];
    uint16_t decoded[64];
    size_t len = 0, back = 0;
    mnnkv_session_options options;
    mnnkv_session *session = NULL;
    if (argc != 4) {
        const char *why = mnnkv_load(NULL);
        printf("%s\n", why ? why : "loaded");
        return why ? 1 : 0;
    }
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.abi_version = MNNKV_ABI_VERSION;
    options.layers = 1;
    check("nothing is loaded", strcmp(mnnkv_last_error(), "libmnnkv is not loaded") == 0);
    check("a session", mnnkv_session_create(&options, &session) == MNNKV_UNSUPPORTED && !session);
    check("a number", mnnkv_abi_version() == 0 && mnnkv_gear_bound(100, MNNKV_DTYPE_F16) == 0);
    check("a text", strcmp(mnnkv_status_name(MNNKV_OK), "") == 0);
    mnnkv_session_destroy(NULL);

    check("no file", refuses("/nowhere/libmnnkv.so", "/nowhere/libmnnkv.so"));
    check("a file of text", refuses(argv[2], argv[2]));
    check("another library", refuses(argv[3], "is not libmnnkv"));
    setenv("MNNKV_LIBRARY", "/elsewhere/libmnnkv.so", 1);
    check("a wrong environment", refuses("", "/elsewhere/libmnnkv.so"));
    check("still nothing", mnnkv_session_create(&options, &session) == MNNKV_UNSUPPORTED);

    setenv("MNNKV_LIBRARY", argv[1], 1);
    check("the library", !mnnkv_load(NULL));
    check("its ABI", mnnkv_abi_version() == MNNKV_ABI_VERSION);
    check("loaded once", !mnnkv_load("/nowhere/libmnnkv.so"));
    check("a name", strcmp(mnnkv_status_name(MNNKV_OK), "OK") == 0);
    check("encode", mnnkv_encode_fp16_gear(words, sizeof words, NULL, encoded, sizeof encoded, &len) == MNNKV_OK);
    check("decode", mnnkv_decode_gear(encoded, len, MNNKV_DTYPE_F16, NULL, decoded, sizeof decoded, &back) == MNNKV_OK);
    check("the same words", back == sizeof words && memcmp(decoded, words, sizeof words) == 0);
    check("a session", mnnkv_session_create(&options, &session) == MNNKV_OK && session);
    mnnkv_session_destroy(session);
    check("an error", mnnkv_session_create(NULL, &session) == MNNKV_INVALID_ARGUMENT &&
                          strstr(mnnkv_last_error(), "options"));
    return failed;
}
