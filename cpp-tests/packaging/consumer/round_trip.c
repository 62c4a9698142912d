/* The smallest host: prints the library's version, encodes a few hundred fp16 words and decodes them. */
#include <mnnkv/gear.h>

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define WORDS 400

static int failed(const char *what) {
    printf("FAILED: %s: %s\n", what, mnnkv_last_error());
    return 1;
}

int main(void) {
    uint16_t words[WORDS];
    uint16_t back[WORDS];
    unsigned char blob[4 * sizeof words];
    size_t blob_len = 0;
    size_t back_len = 0;
    uint32_t state = 1;
    int i;

    printf("mnnkv %u\n", (unsigned)mnnkv_version());
    printf("cpu %s\n", mnnkv_cpu_level());
    if (mnnkv_version() != MNNKV_VERSION_NUMBER || mnnkv_abi_version() != MNNKV_ABI_VERSION) {
        return failed("the library is not of this header's version");
    }

    /* Slowly varying exponents and noisy mantissas, as in real caches. */
    for (i = 0; i < WORDS; i++) {
        state = state * 1664525u + 1013904223u;
        words[i] = (uint16_t)(0x3800u + (uint32_t)(i % 8) * 0x0100u + (state >> 24));
    }
    if (mnnkv_encode_fp16_gear(words, sizeof words, NULL, blob, sizeof blob, &blob_len) != MNNKV_OK) {
        return failed("encode");
    }
    if (blob_len == 0 || blob_len >= sizeof words) {
        return failed("the blob is not smaller than the words");
    }
    if (mnnkv_decode_gear(blob, blob_len, MNNKV_DTYPE_F16, NULL, back, sizeof back, &back_len) != MNNKV_OK) {
        return failed("decode");
    }
    if (back_len != sizeof words || memcmp(words, back, sizeof words) != 0) {
        return failed("the words came back changed");
    }
    printf("round trip ok\n");
    return 0;
}
