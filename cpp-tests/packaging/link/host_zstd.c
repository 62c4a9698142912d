/* A host with its own zstd. */
#include "ours.h"

#include <stdio.h>
#include <string.h>
#include <zstd.h>

/* The host's libzstd.a matches its header, and works. */
static int host_round_trip(void) {
    static char text[20000];
    static char packed[40000];
    static char back[sizeof text];
    size_t i;
    size_t len;

    for (i = 0; i < sizeof text; i++) {
        text[i] = (char)("host data, not ours "[i % 20] + (char)(i / 4000));
    }
    len = ZSTD_compress(packed, sizeof packed, text, sizeof text, 3);
    if (ZSTD_isError(len) || len >= sizeof text) {
        return 0;
    }
    return ZSTD_decompress(back, sizeof back, packed, len) == sizeof text && memcmp(text, back, sizeof text) == 0;
}

int main(void) {
    int pass;

    /* In turns: neither may leave state behind that breaks the other. */
    for (pass = 0; pass < 2; pass++) {
        if (ZSTD_versionNumber() != ZSTD_VERSION_NUMBER) {
            printf("FAILED: host's zstd is %u, its header says %u\n", ZSTD_versionNumber(),
                   (unsigned)ZSTD_VERSION_NUMBER);
            return 1;
        }
        if (!host_round_trip()) {
            printf("FAILED: the host's own round trip\n");
            return 1;
        }
        if (!ours_round_trip()) {
            printf("FAILED: our round trip\n");
            return 1;
        }
    }
    printf("zstd %u\nround trip ok\n", ZSTD_versionNumber());
    return 0;
}
