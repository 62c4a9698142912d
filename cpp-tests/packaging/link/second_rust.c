/* A host with a second Rust library. */
#include "ours.h"

#include <stdio.h>

int other_catches_its_panic(int argument);

int main(void) {
    int pass;

    for (pass = 0; pass < 2; pass++) {
        if (other_catches_its_panic(20) != -20) {
            printf("FAILED: the other library's panic\n");
            return 1;
        }
        if (!ours_round_trip()) {
            printf("FAILED: our round trip\n");
            return 1;
        }
    }
    printf("round trip ok\n");
    return 0;
}
