/* The smallest host of both libraries: the size of a model's cache by one, a layout checked by the other. */
#include <mnnkv.h>
#include <mnnkv/model.h>

#include <stdio.h>
#include <string.h>

static int failed(const char *what) {
    printf("FAILED: %s: %s%s\n", what, mnnkv_last_error(), mnnkv_model_last_error());
    return 1;
}

int main(void) {
    static const char config[] =
        "{\"num_hidden_layers\": 4, \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"head_dim\": 16}";
    mnnkv_sizing *model = NULL;
    mnnkv_sizing_total total;
    mnnkv_layout layout;
    uint64_t key_bytes = 0;
    uint64_t value_bytes = 0;

    memset(&total, 0, sizeof total);
    total.struct_size = (uint32_t)sizeof total;
    if (mnnkv_sizing_create(config, sizeof config - 1, MNNKV_ABI_VERSION, &model) != MNNKV_OK ||
        mnnkv_sizing_bytes(model, NULL, 100, &total) != MNNKV_OK) {
        return failed("sizing");
    }
    mnnkv_sizing_destroy(model);

    memset(&layout, 0, sizeof layout);
    layout.struct_size = (uint32_t)sizeof layout;
    layout.key_dtype = MNNKV_DTYPE_F16;
    layout.value_dtype = MNNKV_DTYPE_F16;
    layout.kv_heads = 2;
    layout.head_dim = 16;
    layout.e_pack = layout.l_pack = layout.h_pack = layout.flash_block = 1;
    layout.max_tokens = 100;
    if (mnnkv_layout_check(&layout, &key_bytes, &value_bytes) != MNNKV_OK) {
        return failed("layout");
    }
    if (total.raw != 4 * (key_bytes + value_bytes)) {
        return failed("the libraries disagree about the bytes of a cache");
    }

    /* Each library has the text of its own failures. */
    if (mnnkv_layout_check(NULL, NULL, NULL) == MNNKV_OK || strstr(mnnkv_last_error(), "layout") == NULL ||
        mnnkv_model_last_error()[0] != '\0') {
        return failed("the text of a failure in libmnnkv");
    }
    if (mnnkv_sizing_bytes(NULL, NULL, 100, &total) == MNNKV_OK || mnnkv_model_last_error()[0] == '\0' ||
        strstr(mnnkv_last_error(), "layout") == NULL) {
        return failed("the text of a failure in libmnnkv_model");
    }
    printf("round trip ok\n");
    return 0;
}
