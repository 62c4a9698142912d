/* A host as it was written for the first version of this ABI: compiled with the headers in abi/, run with this library.
   Its structs are as long as they were, and its mnnkv_sum_tile is the one of those headers. */

#include <mnnkv.h>

#include <stdio.h>
#include <string.h>

enum { heads = 2, dims = 16, room = 512, prompt = 320 };

static int failures = 0;

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

/* The chat by logical position, [head][token][dim] of f16, and a layer's cache of it. */
static uint16_t key_rows[heads * room * dims], value_rows[heads * room * dims];
static uint16_t key_back[heads * room * dims], value_back[heads * room * dims];
static unsigned char key[1 << 16], value[1 << 16], blob[1 << 16];
static mnnkv_layout layout;
static mnnkv_cache cache;
static uint32_t chat_len;

static mnnkv_session* start(const char* config, const mnnkv_executor* executor, uint32_t restores_heads) {
    mnnkv_session* session = NULL;
    mnnkv_session_options options = {0};
    options.struct_size = (uint32_t)sizeof options;
    options.abi_version = MNNKV_ABI_VERSION;
    options.layers = 1;
    options.lanes = heads;
    options.config_json = config;
    options.config_len = strlen(config);
    options.executor = executor;
    options.host_threads = heads;
    options.restores_heads = restores_heads;
    check("create", mnnkv_session_create(&options, &session));
    cache.kv_len = 0;
    chat_len = 0;
    return session;
}

static void append(uint32_t count) {
    uint32_t head, token;
    for (head = 0; head < heads; ++head) {
        for (token = 0; token < count; ++token) {
            const size_t from = ((size_t)head * room + chat_len + token) * dims;
            const size_t to = ((size_t)head * count + token) * dims;
            memcpy(key_back + to, key_rows + from, dims * sizeof *key_rows);
            memcpy(value_back + to, value_rows + from, dims * sizeof *value_rows);
        }
    }
    check("scatter", mnnkv_kv_scatter(&layout, key_back, value_back, (size_t)heads * count * dims * sizeof *key_back,
                                      cache.kv_len, count, key, value));
    cache.kv_len += count;
    chat_len += count;
}

/* Token 100 gets most of the attention of one head, as long as it is there. */
static void attend(mnnkv_session* session, uint32_t count) {
    static float row[room];
    static double sums[room], factors[room];
    int32_t pairs[2 * room];
    size_t n_pairs = 0, i;
    uint32_t rows = 0, block_tokens = 0, head, at = 0;
    mnnkv_score_tile tile = {0};
    check("rows", mnnkv_session_scored_rows(session, 0, count, &rows, &block_tokens));
    if (rows == 0) {
        return;
    }
    check("positions", mnnkv_session_positions(session, 0, pairs, room, &n_pairs));
    for (i = 0; i < room; ++i) {
        row[i] = 0.001f;
    }
    tile.struct_size = (uint32_t)sizeof tile;
    tile.dtype = MNNKV_DTYPE_F32;
    tile.queries = 1;
    tile.tokens = cache.kv_len;
    tile.flags = MNNKV_TILE_FIRST | MNNKV_TILE_LAST;
    tile.data = row;
    for (i = 0; i < n_pairs; at += (uint32_t)pairs[2 * i + 1], ++i) {
        if (pairs[2 * i] <= 100 && 100 < pairs[2 * i] + pairs[2 * i + 1]) {
            row[at + 100 - (uint32_t)pairs[2 * i]] = 0.5f;
        }
    }
    for (head = 0; head < heads; ++head) {
        mnnkv_block_sums of_head = {0};
        of_head.struct_size = (uint32_t)sizeof of_head;
        of_head.flags = tile.flags;
        of_head.heads = of_head.rows = 1;
        of_head.block_tokens = block_tokens;
        of_head.blocks = room;
        of_head.sums = sums;
        of_head.factors = factors;
        mnnkv_sum_tile(&of_head, &tile);
        check("block sums", mnnkv_session_block_sums(session, 0, head, &of_head));
    }
}

static void step(mnnkv_session* session, uint32_t count) {
    check("begin", mnnkv_session_begin(session, 0, &cache));
    append(count);
    attend(session, count);
    check("end", mnnkv_session_end(session, 0, count == 1 ? heads : 0, count == 1, &cache));
}

/* Expects that tokens of the cache are those of the chat, bit for bit. Returns their number, without an open step's. */
static uint32_t verify(mnnkv_session* session) {
    int32_t pairs[2 * room];
    size_t n_pairs = 0, i;
    uint32_t at = 0, head;
    check("positions", mnnkv_session_positions(session, 0, pairs, room, &n_pairs));
    for (i = 0; i < n_pairs; ++i) {
        const uint32_t first = (uint32_t)pairs[2 * i], count = (uint32_t)pairs[2 * i + 1];
        const size_t bytes = (size_t)count * dims * sizeof *key_rows;
        check("gather", mnnkv_kv_gather(&layout, key, value, at, count, key_back, value_back, heads * bytes));
        for (head = 0; head < heads; ++head) {
            const size_t row = ((size_t)head * room + first) * dims, here = (size_t)head * count * dims;
            expect("a key of the chat", memcmp(key_back + here, key_rows + row, bytes) == 0);
            expect("a value of the chat", memcmp(value_back + here, value_rows + row, bytes) == 0);
        }
        at += count;
    }
    return at;
}

static void evict(void) {
    mnnkv_session* session = start("{\"kv_h2o_enable\": true, \"kv_h2o_policy\": \"mass\", \"kv_h2o_layer_start\": 0,"
                                   " \"kv_h2o_block_tokens\": 16, \"kv_h2o_recent_tokens\": 32,"
                                   " \"kv_h2o_trigger_min_tokens\": 64, \"kv_h2o_update_interval\": 2}", NULL, 0);
    mnnkv_metrics metrics = {0};
    int32_t pairs[2 * room];
    size_t n_pairs = 0, i;
    int has_100 = 0, has_pinned = 0;
    uint32_t n;
    metrics.struct_size = (uint32_t)sizeof metrics;
    check("pin", mnnkv_session_pin(session, 200, 8, 1));
    step(session, prompt);
    for (n = 0; n < 4; ++n) {
        step(session, 1);
    }
    expect("fewer tokens", verify(session) == cache.kv_len && cache.kv_len < prompt / 2);
    check("positions", mnnkv_session_positions(session, 0, pairs, room, &n_pairs));
    for (i = 0; i < n_pairs; ++i) {
        has_100 |= pairs[2 * i] <= 100 && 100 < pairs[2 * i] + pairs[2 * i + 1];
        has_pinned |= pairs[2 * i] <= 200 && 208 <= pairs[2 * i] + pairs[2 * i + 1];
    }
    expect("the token with attention stays", has_100);
    expect("pinned tokens stay", has_pinned);
    check("metrics", mnnkv_session_metrics(session, MNNKV_ALL_LAYERS, &metrics));
    expect("counted", (uint32_t)metrics.h2o_total_evict_tokens + cache.kv_len == chat_len);
    mnnkv_session_destroy(session);
}

static int32_t run_at_once(void* user, void (*run)(void* job), void* job) {
    ++*(uint32_t*)user;
    run(job);
    return 0;
}

static const char stores[] = "{\"kv_lossless_enable\": true, \"kv_lossless_runtime_enable\": true,"
                             " \"kv_lossless_runtime_mode\": \"store\", \"kv_lossless_block_tokens\": 32,"
                             " \"kv_lossless_hot_recent_tokens\": 16}";

static void store_and_park(void) {
    uint32_t jobs = 0, head;
    mnnkv_executor executor = {0};
    mnnkv_park_options options = {0};
    mnnkv_parked parked = {0};
    mnnkv_metrics metrics = {0};
    mnnkv_session* session;
    executor.struct_size = (uint32_t)sizeof executor;
    executor.submit = run_at_once;
    executor.user = &jobs;
    options.struct_size = (uint32_t)sizeof options;
    options.effort = 1;
    metrics.struct_size = (uint32_t)sizeof metrics;
    parked.struct_size = (uint32_t)sizeof parked;
    session = start(stores, &executor, 1);
    step(session, prompt);
    step(session, 1);
    step(session, 1);
    expect("jobs of the executor", jobs > 0);
    check("begin", mnnkv_session_begin(session, 0, &cache));
    expect("begin restores no head", mnnkv_session_check_heads(session, 0, 0, heads) == MNNKV_NOT_FOUND);
    append(1);
    for (head = 0; head < heads; ++head) {
        const void *k = NULL, *v = NULL;
        check("head", mnnkv_session_head(session, 0, head, head, &cache, &k, &v));
        /* h_pack is dims: V of a token is a row of it. */
        expect("a row of the head", k && v && memcmp(v, value_rows + (size_t)head * room * dims, dims * 2) == 0);
        check("restore", mnnkv_session_restore(session, 0, head, head, 1, &cache));
    }
    expect("tokens before the step", verify(session) == cache.kv_len - 1);
    check("end", mnnkv_session_end(session, 0, 0, 1, &cache));
    check("park", mnnkv_session_park(session, 0, &options, &cache, &parked));
    expect("all bytes", parked.raw_bytes == (uint64_t)cache.kv_len * heads * dims * 4);
    expect("fewer bytes", parked.encoded_bytes < parked.raw_bytes);
    check("metrics", mnnkv_session_metrics(session, MNNKV_ALL_LAYERS, &metrics));
    expect("a metric of parked tokens", (uint64_t)metrics.h2o_parked_raw_bytes == parked.raw_bytes);
    check("begin", mnnkv_session_begin(session, 0, &cache));
    for (head = 0; head < heads; ++head) {
        check("restore", mnnkv_session_restore(session, 0, head, head, 1, &cache));
    }
    expect("all tokens", verify(session) == chat_len);
    check("abort", mnnkv_session_abort(session, 0, &cache));
    mnnkv_session_destroy(session);
}

static unsigned char file[1 << 17];
static size_t file_len = 0;

static int32_t file_size(void* user, uint64_t* size) {
    (void)user;
    *size = file_len;
    return 0;
}

static int32_t file_read(void* user, uint64_t offset, void* to, size_t len) {
    (void)user;
    memcpy(to, file + offset, len);
    return 0;
}

static int32_t file_write(void* user, uint64_t offset, const void* from, size_t len) {
    (void)user;
    if (offset + len > sizeof file) {
        return 1;
    }
    memcpy(file + offset, from, len);
    file_len = offset + len > file_len ? (size_t)offset + len : file_len;
    return 0;
}

static int32_t file_sync(void* user) {
    (void)user;
    return 0;
}

static void save_and_load(void) {
    mnnkv_session* session = start(stores, NULL, 0);
    mnnkv_snapshot* snapshot = NULL;
    mnnkv_snapshot_io io = {0};
    mnnkv_snapshot_options options = {0};
    mnnkv_snapshot_info info = {0};
    mnnkv_snapshot_layer_info of_layer = {0};
    uint32_t written = 0;
    io.struct_size = (uint32_t)sizeof io;
    io.size = file_size;
    io.read = file_read;
    io.write = file_write;
    io.sync = file_sync;
    options.struct_size = (uint32_t)sizeof options;
    options.abi_version = MNNKV_ABI_VERSION;
    options.io = &io;
    options.fingerprint = "old";
    options.fingerprint_len = 3;
    options.access = MNNKV_SNAPSHOT_APPEND;
    info.struct_size = (uint32_t)sizeof info;
    of_layer.struct_size = (uint32_t)sizeof of_layer;
    step(session, prompt);
    check("a file", mnnkv_snapshot_create(&options, &snapshot));
    check("append", mnnkv_snapshot_append(snapshot, session, 0, NULL, &cache, &written));
    check("commit", mnnkv_snapshot_commit(snapshot));
    expect("written tokens", written == prompt);
    mnnkv_snapshot_destroy(snapshot);
    mnnkv_session_destroy(session);

    session = start(stores, NULL, 0);
    memset(key, 0, sizeof key);
    memset(value, 0, sizeof value);
    check("open", mnnkv_snapshot_open(&options, &snapshot));
    check("info", mnnkv_snapshot_get_info(snapshot, &info));
    check("layer info", mnnkv_snapshot_get_layer_info(snapshot, 0, &of_layer));
    expect("one layer", info.layers == 1 && info.fingerprint_bytes == 3 && of_layer.tokens == prompt);
    check("load", mnnkv_snapshot_load(snapshot, session, 0));
    mnnkv_snapshot_destroy(snapshot);
    cache.kv_len = of_layer.tokens;
    check("begin", mnnkv_session_begin(session, 0, &cache));
    expect("the saved chat", verify(session) == prompt);
    mnnkv_session_destroy(session);
}

static void encode(void) {
    mnnkv_gear_options options = {0};
    mnnkv_decode_options limits = {0};
    mnnkv_state_tensor tensor = {0};
    mnnkv_state_options threads = {0};
    mnnkv_h2o_config config;
    mnnkv_h2o_plan plan = {0};
    int32_t pairs[16];
    size_t len = 0, words = 0, n_pairs = 0;
    options.struct_size = (uint32_t)sizeof options;
    options.format = MNNKV_GEAR_FORMAT_V2;
    options.head_dim = dims;
    limits.struct_size = (uint32_t)sizeof limits;
    limits.max_working_bytes = 1 << 24;
    check("encode", mnnkv_encode_fp16_gear(key_rows, sizeof key_rows, &options, blob, sizeof blob, &len));
    check("decode", mnnkv_decode_gear(blob, len, MNNKV_DTYPE_F16, &limits, key_back, sizeof key_back, &words));
    expect("words come back", words == sizeof key_rows && memcmp(key_rows, key_back, words) == 0);

    tensor.struct_size = (uint32_t)sizeof tensor;
    tensor.dtype = MNNKV_DTYPE_F16;
    tensor.rows = heads * room;
    tensor.row_bytes = dims * 2;
    threads.struct_size = (uint32_t)sizeof threads;
    threads.threads = 1;
    check("encode a state",
          mnnkv_state_encode(value_rows, sizeof value_rows, &tensor, 1, &threads, blob, sizeof blob, &len));
    check("decode a state", mnnkv_state_decode(blob, len, &threads, value_back, sizeof value_back, &words));
    expect("a state comes back", words == sizeof value_rows && memcmp(value_rows, value_back, words) == 0);

    mnnkv_h2o_config_default(&config);
    plan.struct_size = (uint32_t)sizeof plan;
    check("plan", mnnkv_h2o_plan_reserve(NULL, 0, 1000, &config, pairs, 8, &n_pairs, &plan));
    expect("a plan", plan.kept_tokens + plan.evicted_tokens == 1000);
}

int main(void) {
    size_t i;
    uint64_t key_bytes = 0, value_bytes = 0;
    for (i = 0; i < sizeof key_rows / sizeof *key_rows; ++i) {
        key_rows[i] = (uint16_t)(0x3C00 + i % 61 % 7 + (i / dims % room) % 11);
        value_rows[i] = (uint16_t)(0xB800 + i % 53 % 5 + (i / dims % room) % 13);
    }
    layout.struct_size = (uint32_t)sizeof layout;
    layout.key_dtype = layout.value_dtype = MNNKV_DTYPE_F16;
    layout.kv_heads = heads;
    layout.head_dim = dims;
    layout.e_pack = 12;
    layout.l_pack = 1;
    layout.h_pack = 16;
    layout.flash_block = 64;
    layout.max_tokens = room;
    check("layout", mnnkv_layout_check(&layout, &key_bytes, &value_bytes));
    expect("sizes", key_bytes <= sizeof key && value_bytes <= sizeof value);
    cache.struct_size = (uint32_t)sizeof cache;
    cache.layout = &layout;
    cache.key = key;
    cache.value = value;
    expect("the library is not older", mnnkv_version() >= MNNKV_VERSION_NUMBER);
    expect("its ABI", mnnkv_abi_version() == MNNKV_ABI_VERSION);
    evict();
    store_and_park();
    save_and_load();
    encode();
    printf("old C host of %d.%d.%d: %s\n", MNNKV_VERSION_MAJOR, MNNKV_VERSION_MINOR, MNNKV_VERSION_PATCH,
           failures == 0 ? "runs" : "FAILED");
    return failures == 0 ? 0 : 1;
}
