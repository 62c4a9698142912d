/* A host of both libraries. */
#include "ours.h"

#include <mnnkv/model.h>

#include <stdio.h>

int main(void) {
    static const char config[] =
        "{\"num_hidden_layers\": 4, \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"head_dim\": 16}";
    mnnkv_sizing *model = NULL;
    int pass;

    for (pass = 0; pass < 2; pass++) {
        if (mnnkv_sizing_create(config, sizeof config - 1, MNNKV_ABI_VERSION, &model) != MNNKV_OK) {
            printf("FAILED: sizing: %s\n", mnnkv_model_last_error());
            return 1;
        }
        mnnkv_sizing_destroy(model);
        if (mnnkv_sizing_create("[", 1, MNNKV_ABI_VERSION, &model) == MNNKV_OK) {
            printf("FAILED: a config that is none\n");
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
