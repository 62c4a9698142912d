/* A host that only uses mnnkv. What else is linked into it is the test's business. */
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
