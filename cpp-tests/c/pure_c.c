/* The header is C, and so may a host be: every group of functions once, without a line of C++. */

#include <mnnkv/gear.h>
#include <mnnkv/h2o.h>
#include <mnnkv/layout.h>
#include <mnnkv/session.h>
#include <mnnkv/store.h>
#ifdef MNNKV_MODEL
#include <mnnkv/model.h>
#endif

#include <stdio.h>
#include <string.h>

enum { heads = 2, dims = 16, tokens = 192, kept = 128 };

static int failures = 0;

/* A call that must succeed. */
static void check(const char* what, mnnkv_status status) {
    if (status != MNNKV_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, mnnkv_status_name(status), mnnkv_last_error());
        ++failures;
    }
}

static void expect(const char* what, int holds) {
    if (!holds) {
        fprintf(stderr, "%s does not hold\n", what);
        ++failures;
    }
}

/* f16 rows [head][token][dim] that compress: a few different words. */
static uint16_t key_rows[heads * tokens * dims], value_rows[heads * tokens * dims];
static uint16_t key_back[heads * tokens * dims], value_back[heads * tokens * dims];
static unsigned char key[1 << 16], value[1 << 16], blob[1 << 16];

static mnnkv_status encode(const void *rows, size_t len, uint32_t dtype, const mnnkv_gear_options *options,
                           size_t *length) {
    return mnnkv_encode_gear(rows, len, dtype, options, blob, sizeof blob, length);
}

static mnnkv_status decode(size_t length, uint32_t dtype, void *back, size_t *words) {
    return mnnkv_decode_gear(blob, length, dtype, NULL, back, sizeof key_back, words);
}

static void encode_and_decode(void) {
    mnnkv_gear_options options = {0};
    size_t length = 0, words = 0;
    options.struct_size = (uint32_t)sizeof options;
    options.predictors = MNNKV_PREDICT_RAW | MNNKV_PREDICT_XOR_SEQ;
    expect("the bound", mnnkv_gear_bound(sizeof key_rows, MNNKV_DTYPE_F16) <= sizeof blob);

    check("encode fp16", mnnkv_encode_fp16_gear(key_rows, sizeof key_rows, &options, blob, sizeof blob, &length));
    expect("a smaller blob", length < sizeof key_rows);
    check("decode fp16", decode(length, MNNKV_DTYPE_F16, key_back, &words));
    expect("fp16 words come back", words == sizeof key_rows && memcmp(key_rows, key_back, words) == 0);

    check("encode fp32", encode(value_rows, sizeof value_rows, MNNKV_DTYPE_F32, NULL, &length));
    check("decode fp32", decode(length, MNNKV_DTYPE_F32, value_back, &words));
    expect("fp32 words come back", words == sizeof value_rows && memcmp(value_rows, value_back, words) == 0);

    /* All zeros but the size: CHECKED for these types. */
    memset(&options, 0, sizeof options);
    options.struct_size = (uint32_t)sizeof options;
    check("encode bf16", encode(key_rows, sizeof key_rows, MNNKV_DTYPE_BF16, &options, &length));
    expect("a smaller blob of bf16", length < sizeof key_rows);
    check("decode bf16", decode(length, MNNKV_DTYPE_BF16, key_back, &words));
    expect("bf16 words come back", words == sizeof key_rows && memcmp(key_rows, key_back, words) == 0);
    expect("of no other type", decode(length, MNNKV_DTYPE_INT8, key_back, &words) ==
                                   MNNKV_INVALID_ARGUMENT);

    check("encode int8", encode(value_rows, sizeof value_rows, MNNKV_DTYPE_INT8, NULL, &length));
    check("decode int8", decode(length, MNNKV_DTYPE_INT8, value_back, &words));
    expect("int8 words come back", words == sizeof value_rows && memcmp(value_rows, value_back, words) == 0);
    mnnkv_thread_trim();
}

static void pack(mnnkv_layout* layout) {
    uint64_t key_bytes = 0, value_bytes = 0;
    memset(layout, 0, sizeof *layout);
    layout->struct_size = (uint32_t)sizeof *layout;
    layout->key_dtype = MNNKV_DTYPE_F16;
    layout->value_dtype = MNNKV_DTYPE_F16;
    layout->kv_heads = heads;
    layout->head_dim = dims;
    layout->e_pack = 12;
    layout->l_pack = 1;
    layout->h_pack = 16;
    layout->flash_block = 64;
    layout->max_tokens = tokens;
    check("layout", mnnkv_layout_check(layout, &key_bytes, &value_bytes));
    expect("sizes", key_bytes == sizeof key_rows && value_bytes == sizeof value_rows);
    check("scatter", mnnkv_kv_scatter(layout, key_rows, value_rows, sizeof key_rows, 0, tokens, key, value));
    check("gather", mnnkv_kv_gather(layout, key, value, 0, tokens, key_back, value_back, sizeof key_back));
    expect("rows come back", memcmp(key_rows, key_back, sizeof key_rows) == 0 &&
                                 memcmp(value_rows, value_back, sizeof value_rows) == 0);
    /* Token 17, dim 3: the second token of the second group of K, the only row of V. */
    expect("the word's place in K", memcmp(key + 2 * (16 * 16 + 3 * 16 + 1), &key_rows[17 * dims + 3], 2) == 0);
    expect("the word's place in V", memcmp(value + 2 * (17 * 16 + 3), &value_rows[17 * dims + 3], 2) == 0);
}

static void plan_and_compact(const mnnkv_layout* layout) {
    float scores[12] = {0};
    float attention[12];
    int32_t pairs[16];
    size_t n_pairs = 0;
    uint32_t new_len = 0;
    mnnkv_h2o_config config;
    mnnkv_h2o_plan plan;
    int i;
    for (i = 0; i < 12; ++i) {
        attention[i] = i == 4 || i == 5 ? 1.0f : 9.0f;
    }
    mnnkv_h2o_config_default(&config);
    config.block_tokens = 16;
    config.sink_tokens = 16;
    config.recent_tokens = 32;
    config.target_tokens = tokens - 32;
    memset(&plan, 0, sizeof plan);
    plan.struct_size = sizeof plan;
    check("scores", mnnkv_h2o_update_scores(scores, 12, attention, config.ema_alpha, 4.0f));
    check("plan", mnnkv_h2o_plan_reserve(scores, 12, tokens, &config, pairs, 8, &n_pairs, &plan));
    expect("the two weak blocks go", n_pairs == 2 && pairs[0] == 0 && pairs[1] == 64 && pairs[2] == 96 &&
                                         pairs[3] == 96 && plan.evicted_tokens == 32);
    check("compact", mnnkv_kv_compact(layout, key, value, 0, pairs, n_pairs, tokens, &new_len));
    expect("the new length", new_len == plan.kept_tokens);
    check("move", mnnkv_kv_move(layout, key, value, new_len - kept, 0, kept));
    check("gather", mnnkv_kv_gather(layout, key, value, kept - 96, 96, key_back, value_back, sizeof key_back));
    for (i = 0; i < heads; ++i) {
        const size_t rows = (size_t)96 * dims;
        expect("kept rows", memcmp(key_back + (size_t)i * rows, key_rows + ((size_t)i * tokens + 96) * dims,
                                   rows * sizeof *key_rows) == 0);
    }
}

static void store_and_restore(const mnnkv_layout* layout) {
    mnnkv_store* store = NULL;
    mnnkv_store_config config = {0};
    mnnkv_store_statistics statistics = {0};
    uint64_t ticket = 0, released = 0, restored = 0;
    const int32_t all[2] = {0, kept};
    static unsigned char key_before[sizeof key], value_before[sizeof value];
    config.struct_size = (uint32_t)sizeof config;
    statistics.struct_size = (uint32_t)sizeof statistics;
    memcpy(key_before, key, sizeof key);
    memcpy(value_before, value, sizeof value);

    check("create", mnnkv_store_create(&config, MNNKV_ABI_VERSION, &store));
    check("submit", mnnkv_store_submit(store, 1, layout, key, value, 0, kept, &ticket));
    check("commit", mnnkv_store_commit(store, 1, layout, key, value, &released));
    expect("the tokens are gone", memcmp(key, key_before, sizeof key) != 0);
    check("compacted", mnnkv_store_compacted(store, 1, all, 1));
    check("restore", mnnkv_store_restore(store, 1, layout, key, value, &restored));
    expect("restored bytes", restored == 2u * heads * kept * dims * sizeof(uint16_t));
    expect("the cache is back", memcmp(key, key_before, sizeof key) == 0 &&
                                    memcmp(value, value_before, sizeof value) == 0);
    check("stats", mnnkv_store_stats(store, &statistics));
    expect("one block", statistics.submitted_blocks == 1 && statistics.resident_blocks == 1);
    mnnkv_store_destroy(store);
    mnnkv_store_destroy(NULL);
}

/* The engine of the example below: rows from a table, without an attention. */
static void append(mnnkv_cache* cache, uint32_t count) {
    check("append", mnnkv_kv_scatter(cache->layout, key_rows, value_rows, (size_t)heads * count * dims * 2,
                                     cache->kv_len, count, cache->key, cache->value));
}

static mnnkv_status attention(const mnnkv_cache* cache, const mnnkv_attend* attend) {
    (void)cache;
    (void)attend;
    return MNNKV_OK;
}

/* The example of mnnkv/session.h; a test keeps the two the same. */
/* [example] */
static mnnkv_status step(mnnkv_session* session, uint32_t layer, mnnkv_cache* cache, const mnnkv_attend* attend) {
    mnnkv_step step = {0};
    step.struct_size = sizeof step;
    mnnkv_status status = mnnkv_session_begin(session, layer, cache, &step);
    if (status != MNNKV_OK) return status;
    append(cache, attend->rows);  // writes K and V of the new tokens from cache->kv_len on
    cache->kv_len += attend->rows;
    status = step.attends ? mnnkv_session_attend(session, layer, 0, 1, cache, attend)  // with threads: a part on each
                          : attention(cache, attend);                                  // the cache has all tokens
    if (status == MNNKV_OK) status = mnnkv_session_end(session, layer, attend->heads, attend->rows, cache);
    if (status == MNNKV_OK) return MNNKV_OK;
    cache->kv_len = step.kv_len;
    mnnkv_session_abort(session, layer, cache);
    return status;
}
/* [example] */
static uint16_t queries[tokens * heads * dims], attended[tokens * heads * dims];

static void session_step(mnnkv_session* session, mnnkv_cache* cache, uint32_t count) {
    mnnkv_attend attend = {0};
    attend.struct_size = sizeof attend;
    attend.dtype = MNNKV_DTYPE_F16;
    attend.heads = heads;
    attend.rows = count;
    attend.head_dim = dims;
    attend.queries = queries;
    attend.output = attended;
    attend.causal = 1;
    check("step", step(session, 0, cache, &attend));
}

static void run_a_session(const mnnkv_layout* layout) {
    static const char config[] =
        "{\"kv_h2o_enable\": true, \"kv_h2o_layer_start\": 0, \"kv_h2o_block_tokens\": 16,"
        " \"kv_h2o_sink_tokens\": 16, \"kv_h2o_recent_tokens\": 32, \"kv_h2o_trigger_min_tokens\": 64,"
        " \"kv_h2o_update_interval\": 1, \"kv_h2o_target_lossy_ratio\": 2, \"kv_h2o_evict_unscored\": true, \"kv_lossless_enable\": true,"
        " \"kv_lossless_runtime_enable\": true, \"kv_lossless_runtime_mode\": \"store\","
        " \"kv_lossless_block_tokens\": 16, \"kv_lossless_hot_recent_tokens\": 16,"
        " \"kv_lossless_async_threads\": 0, \"kv_h2o_nonsense\": 1}";
    mnnkv_session* session = NULL;
    mnnkv_cache cache;
    int32_t pairs[32];
    const int32_t rollback[2] = {0, 120};
    uint32_t logical = 0, physical = 0;
    mnnkv_step step = {0};
    size_t n_pairs = 0, len = 0;
    mnnkv_session_options options;
    mnnkv_score_tile tile = {0};
    mnnkv_block_sums sums = {0};
    static const float row[tokens];
    static double room[tokens / 16], factor[1];
    static char text[1 << 14];

    step.struct_size = sizeof step;
    step.rows = 1;
    tile.struct_size = sizeof tile;
    tile.dtype = MNNKV_DTYPE_F32;
    tile.queries = 1;
    tile.tokens = tokens;
    tile.flags = MNNKV_TILE_FIRST | MNNKV_TILE_LAST;
    tile.data = row;
    sums.struct_size = sizeof sums;
    sums.flags = MNNKV_TILE_FIRST | MNNKV_TILE_LAST;
    sums.heads = sums.rows = 1;
    sums.block_tokens = 16;
    sums.blocks = tokens / 16;
    sums.sums = room;
    sums.factors = factor;
    memset(&cache, 0, sizeof cache);
    cache.struct_size = (uint32_t)sizeof cache;
    cache.layout = layout;
    cache.key = key;
    cache.value = value;

    memset(&options, 0, sizeof options);
    options.struct_size = (uint32_t)sizeof options;
    options.abi_version = MNNKV_ABI_VERSION;
    options.layers = 1;
    options.lanes = heads;
    options.config_json = config;
    options.config_len = sizeof config - 1;
    check("session", mnnkv_session_create(&options, &session));
    expect("room for a report", mnnkv_session_report(session, NULL, 0, &len) == MNNKV_BUFFER_TOO_SMALL);
    check("a report", mnnkv_session_report(session, text, sizeof text, &len));
    expect("the unknown key", strstr(text, "kv_h2o_nonsense") != NULL && len == strlen(text) + 1);

    session_step(session, &cache, 120);
    session_step(session, &cache, 1);
    session_step(session, &cache, 1);
    session_step(session, &cache, 1);
    check("lengths", mnnkv_session_lengths(session, 0, &logical, &physical));
    expect("evicted tokens", logical == 123 && physical == cache.kv_len && physical < 100);
    check("positions", mnnkv_session_positions(session, 0, MNNKV_IN_CACHE, pairs, 16, &n_pairs));
    expect("sink and recent tokens stay", n_pairs >= 1 && pairs[0] == 0 && pairs[1] >= 16 &&
                                              pairs[2 * n_pairs - 2] + pairs[2 * n_pairs - 1] == 123);
    check("keep", mnnkv_session_keep(session, 0, rollback, 1, &cache));
    expect("a rollback", cache.kv_len == physical - 3);
    check("begin", mnnkv_session_begin(session, 0, &cache, NULL));
    check("gather", mnnkv_kv_gather(layout, key, value, 0, 16, key_back, value_back, sizeof key_back));
    expect("the first token", memcmp(key_back, key_rows, dims * sizeof *key_rows) == 0);
    check("rewritten", mnnkv_session_rewritten(session, 0, 0, 16));
    check("abort", mnnkv_session_abort(session, 0, &cache));
    check("begin", mnnkv_session_begin(session, 0, &cache, &step));
    expect("one of a step of one", step.scored_rows == 1 && step.block_tokens == 16 && step.kv_len == cache.kv_len);
    mnnkv_sum_tile(&sums, &tile);
    check("ignored sums", mnnkv_session_block_sums(session, 0, 0, &sums));
    check("a step without attention", mnnkv_session_end(session, 0, 0, 0, &cache));

    check("a report", mnnkv_session_report(session, text, sizeof text, &len));
    expect("what was measured", strstr(text, "\"h2o_total_evict_tokens\":") != NULL && len == strlen(text) + 1);
    expect("what was not", strstr(text, "\"h2o_lossless_async_queue_peak\":") == NULL);
    check("reset", mnnkv_session_reset(session, MNNKV_ALL_LAYERS));
    check("lengths", mnnkv_session_lengths(session, 0, &logical, &physical));
    expect("nothing is left", logical == 0 && physical == 0);
    mnnkv_session_destroy(session);
    mnnkv_session_destroy(NULL);
}

static void attend_to_a_session(const mnnkv_layout* layout) {
    static const char config[] = "{\"kv_quant\": \"k8v4\"}";
    mnnkv_session* session = NULL;
    mnnkv_session_options options = {0};
    mnnkv_cache cache = {0};
    cache.struct_size = sizeof cache;
    cache.layout = layout;
    cache.key = key;
    cache.value = value;
    options.struct_size = sizeof options;
    options.abi_version = MNNKV_ABI_VERSION;
    options.layers = 1;
    options.lanes = 1;
    options.config_json = config;
    options.config_len = sizeof config - 1;
    options.attends = 1;
    check("session", mnnkv_session_create(&options, &session));
    session_step(session, &cache, 150);
    session_step(session, &cache, 1);
    expect("quantised tokens have left the cache", cache.kv_len < 100);
    expect("V is negative in the table", attended[0] > 0x8000);
    mnnkv_session_destroy(session);
}

static void clear(const mnnkv_layout* layout) {
    uint64_t released = 0;
    size_t i;
    int all_zero = 1;
    check("zero", mnnkv_kv_zero(layout, key, value, 0, 100));
    check("release", mnnkv_kv_release(layout, key, value, 100, tokens - 100, &released));
    for (i = 0; i < sizeof key_rows; ++i) {
        all_zero = all_zero && key[i] == 0 && value[i] == 0;
    }
    expect("all tokens are zero", all_zero);
}

static void save_a_chat(const mnnkv_layout* layout) {
    static const char path[] = "pure_c.kv";
    mnnkv_session* session = NULL;
    mnnkv_session_options options = {0};
    mnnkv_cache cache = {0};
    char text[32];
    size_t len = 0;
    uint32_t logical = 0;
    uint64_t written = 0;
    cache.struct_size = sizeof cache;
    cache.layout = layout;
    cache.key = key;
    cache.value = value;
    options.struct_size = sizeof options;
    options.abi_version = MNNKV_ABI_VERSION;
    options.layers = 1;
    options.lanes = 1;
    options.fingerprint = "model";
    options.fingerprint_len = 5;
    remove(path);
    check("session", mnnkv_session_create(&options, &session));
    session_step(session, &cache, 100);
    check("put", mnnkv_session_put(session, "tokens", "1 2 3", 5));
    check("save", mnnkv_session_save(session, path, &cache, 1, &written));
    expect("bytes written", written > 0);
    mnnkv_session_destroy(session);
    memset(key, 0, sizeof key);
    check("session", mnnkv_session_create(&options, &session));
    check("open", mnnkv_session_open(session, path));
    check("get", mnnkv_session_get(session, "tokens", text, sizeof text, &len));
    expect("the section", len == 5 && memcmp(text, "1 2 3", 5) == 0);
    check("lengths", mnnkv_session_lengths(session, 0, &logical, &cache.kv_len));
    check("begin", mnnkv_session_begin(session, 0, &cache, NULL));
    check("gather", mnnkv_kv_gather(layout, key, value, 0, 16, key_back, value_back, sizeof key_back));
    expect("the first token is back", cache.kv_len == 100 && memcmp(key_back, key_rows, dims * sizeof *key_rows) == 0);
    mnnkv_session_destroy(session);
    remove(path);
}

#ifdef MNNKV_MODEL
static void size_a_model(void) {
    static const char config[] =
        "{\"num_hidden_layers\": 4, \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"head_dim\": 16}";
    mnnkv_sizing* model = NULL;
    mnnkv_sizing_options options;
    mnnkv_sizing_total total = {0};
    uint64_t longest = 0, bytes = 0;
    total.struct_size = (uint32_t)sizeof total;
    mnnkv_sizing_options_default(&options);
    check("read a config", mnnkv_sizing_create(config, sizeof config - 1, MNNKV_ABI_VERSION, &model));
    check("size", mnnkv_sizing_bytes(model, &options, 100, &total));
    expect("2 x 4 layers x 2 heads x 16 x 2 bytes a token", total.raw == 100u * 512);
    check("fill a budget", mnnkv_sizing_longest(model, NULL, 51711, &longest, &bytes));
    expect("one token more would not fit", longest == 100 && bytes == total.peak);
    mnnkv_sizing_destroy(model);
    expect("a refusal of model", mnnkv_sizing_create(config, 1, MNNKV_ABI_VERSION, &model) != MNNKV_OK);
    expect("its text, in its library", mnnkv_model_last_error()[0] != '\0');
    expect("and not in the other", strcmp(mnnkv_model_last_error(), mnnkv_last_error()) != 0);
}
#endif

int main(void) {
    mnnkv_layout layout;
    size_t i;
    for (i = 0; i < sizeof key_rows / sizeof *key_rows; ++i) {
        key_rows[i] = (uint16_t)(0x3C00 + i % 61 % 7);
        value_rows[i] = (uint16_t)(0xB800 + i % 53 % 5);
    }
    expect("the version", mnnkv_version() == MNNKV_VERSION_NUMBER && mnnkv_abi_version() == MNNKV_ABI_VERSION);
    expect("no failure yet", mnnkv_last_error()[0] == '\0');
    encode_and_decode();
    pack(&layout);
    plan_and_compact(&layout);
    store_and_restore(&layout);
    run_a_session(&layout);
    attend_to_a_session(&layout);
    clear(&layout);
    save_a_chat(&layout);
#ifdef MNNKV_MODEL
    size_a_model();
#endif
    expect("a refusal", mnnkv_layout_check(NULL, NULL, NULL) == MNNKV_INVALID_ARGUMENT);
    expect("its text", strstr(mnnkv_last_error(), "layout") != NULL);
    printf("pure C: %s (version %u, %s)\n", failures == 0 ? "every group works" : "FAILED", (unsigned)mnnkv_version(),
           mnnkv_cpu_level());
    return failures == 0 ? 0 : 1;
}
