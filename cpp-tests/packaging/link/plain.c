/* A host that only uses mnnkv. The test links other archives into it. */
#include "ours.h"

#include <stdio.h>

int main(void) {
    if (!ours_round_trip()) {
        printf("FAILED: our round trip\n");
        return 1;
    }
    printf("round trip ok\n");
    return 0;
}
