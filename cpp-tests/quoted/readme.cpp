// The example of README.md; a test keeps the two the same.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mnnkv/session.h>
#include <vector>

/// A host with one layer: a packed cache, without an attention of its own.
struct Host {
    mnnkv_layout layout = mnnkv_layout();
    std::vector<std::uint16_t> key, value, query, output;
    std::uint32_t kv_len = 0, heads = 2;

    void append(std::uint32_t tokens);
    void attention(std::uint32_t layer, std::uint32_t tokens);
    mnnkv_attend queries(std::uint32_t tokens);
};
// [readme]
#include <mnnkv.hpp>

const char* const config = R"({"kv_memory_mb": 64})";

// One step of one layer: append and attention between two calls. A session with options.attends = 1.
mnnkv::status run(mnnkv::session& session, Host& host, uint32_t layer, uint32_t tokens) {
    mnnkv_cache cache = mnnkv::make<mnnkv_cache>();
    cache.layout = &host.layout;
    cache.key = host.key.data();
    cache.value = host.value.data();
    cache.kv_len = host.kv_len;
    mnnkv_step step = mnnkv::make<mnnkv_step>();
    mnnkv::status s = session.begin(layer, cache, step);  // tokens leave the cache for few bits, as the budget asks
    if (!s) return s;
    host.kv_len = step.kv_len;
    host.append(tokens);                              // K and V of the new tokens; if buffers have moved, set cache.key, ...
    cache.kv_len = host.kv_len;
    if (step.attends) {                               // over all tokens, in the cache or not
        s = session.attend(layer, 0, 1, cache, host.queries(tokens));
    } else {                                          // while all are in the cache
        host.attention(layer, tokens);
    }
    return s ? session.end(layer, host.heads, tokens, cache) : s;
}
// [readme]

void Host::append(std::uint32_t tokens) {
    // All rows are alike, so it makes no difference where in its block a token lies.
    kv_len += tokens;
}

void Host::attention(std::uint32_t, std::uint32_t) {}

mnnkv_attend Host::queries(std::uint32_t tokens) {
    query.assign(std::size_t{tokens} * heads * 64, 0x3c00);
    output.assign(query.size(), 0);
    mnnkv_attend attend = mnnkv::make<mnnkv_attend>();
    attend.dtype = MNNKV_DTYPE_F16;
    attend.heads = heads;
    attend.rows = tokens;
    attend.head_dim = 64;
    attend.causal = 1;
    attend.queries = query.data();
    attend.output = output.data();
    return attend;
}

int main() {
    Host host;
    host.layout = mnnkv::make<mnnkv_layout>();
    host.layout.key_dtype = host.layout.value_dtype = MNNKV_DTYPE_F16;
    host.layout.kv_heads = 2;
    host.layout.head_dim = 64;
    host.layout.e_pack = 12;
    host.layout.l_pack = 1;
    host.layout.h_pack = 16;
    host.layout.flash_block = 64;
    host.layout.max_tokens = 40000;
    std::uint64_t key_bytes = 0, value_bytes = 0;
    if (mnnkv_layout_check(&host.layout, &key_bytes, &value_bytes) != MNNKV_OK) {
        return 1;
    }
    host.key.assign(key_bytes / 2, 0x3c00);
    host.value.assign(value_bytes / 2, 0x3c00);
    mnnkv_session_options options = mnnkv::make<mnnkv_session_options>();
    options.layers = 4;
    options.lanes = 1;
    options.config_json = config;
    options.config_len = std::strlen(config);
    options.attends = 1;
    mnnkv::session session;
    if (!session.create(options)) {
        return 1;
    }
    // Tokens of 512 bytes, which a quarter of the budget does not hold: those of the prompt leave in the step behind it.
    for (int steps = 0; steps < 3; ++steps) {
        const mnnkv::status s = run(session, host, 2, steps == 0 ? 38000 : 1);
        if (!s) {
            std::fprintf(stderr, "%s\n", s.message());
            return 1;
        }
    }
    std::uint32_t logical = 0, physical = 0;
    if (!session.lengths(2, logical, physical)) {
        return 1;
    }
    // All values are 1, and their mean.
    std::printf("%u tokens in the chat, %u in the cache\n", logical, physical);
    return logical == 38002 && physical < 200 && host.output[0] == 0x3c00 ? 0 : 1;
}
