#include "ours.h"

#include <mnnkv/gear.h>

#include <stdint.h>
#include <string.h>

#define WORDS 4096

int ours_round_trip(void) {
    static uint16_t words[WORDS];
    static uint16_t back[WORDS];
    static unsigned char blob[4 * sizeof words];
    size_t blob_len = 0;
    size_t back_len = 0;
    uint32_t state = 7;
    int i;

    for (i = 0; i < WORDS; i++) {
        state = state * 1664525u + 1013904223u;
        /* Few distinct high bytes in random order: entropy coding wins, so the blob has zstd data. */
        words[i] = (uint16_t)(((0x38u + ((state >> 29) & 3u)) << 8) | (state >> 24));
    }
    if (mnnkv_encode_fp16_gear(words, sizeof words, NULL, blob, sizeof blob, &blob_len) != MNNKV_OK) {
        return 0;
    }
    if (mnnkv_decode_gear(blob, blob_len, MNNKV_DTYPE_F16, NULL, back, sizeof back, &back_len) != MNNKV_OK) {
        return 0;
    }
    return back_len == sizeof words && memcmp(words, back, sizeof words) == 0;
}
