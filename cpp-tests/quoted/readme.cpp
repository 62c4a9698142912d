// The example of README.md; a test keeps the two the same.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mnnkv.h>
#include <vector>

/// A host with one layer: a packed cache, without an attention.
struct Host {
    mnnkv_layout layout = mnnkv_layout();
    std::vector<std::uint16_t> key, value;
    std::uint32_t kv_len = 0;

    void append(std::uint32_t tokens);
    void attention(std::uint32_t layer, std::uint32_t queries);
};
// [readme]
#include <mnnkv.hpp>

const char* const config = R"({"kv_h2o_enable": true, "kv_h2o_target_lossy_ratio": 2})";

// One step of one layer: two calls around append and attention.
mnnkv::status step(mnnkv::session& session, Host& host, uint32_t layer, uint32_t heads, uint32_t tokens) {
    mnnkv_cache cache = mnnkv::make<mnnkv_cache>();
    cache.layout = &host.layout;
    cache.key = host.key.data();
    cache.value = host.value.data();
    cache.kv_len = host.kv_len;
    mnnkv::status s = session.begin(layer, cache);         // evicts as planned, updates kv_len
    if (!s) return s;
    host.kv_len = cache.kv_len;
    host.append(tokens);                                   // K and V of the new tokens
    host.attention(layer, tokens);
    cache.kv_len = host.kv_len;
    return session.end(layer, heads, tokens, cache);       // plans the next eviction
}
// [readme]

void Host::append(std::uint32_t tokens) {
    // All rows are alike, so it makes no difference where in its block a token lies.
    kv_len += tokens;
}

void Host::attention(std::uint32_t, std::uint32_t) {}

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
    host.layout.max_tokens = 2048;
    std::uint64_t key_bytes = 0, value_bytes = 0;
    if (mnnkv_layout_check(&host.layout, &key_bytes, &value_bytes) != MNNKV_OK) {
        return 1;
    }
    host.key.assign(key_bytes / 2, 0x3c00);
    host.value.assign(value_bytes / 2, 0x3c00);
    mnnkv::session session;
    if (!session.create(config, std::strlen(config), 4, 1)) {
        return 1;
    }
    // The end of the prompt plans an eviction, which the next step applies.
    for (int steps = 0; steps < 18; ++steps) {
        const mnnkv::status s = step(session, host, 2, 1, steps == 0 ? 1536 : 1);
        if (!s) {
            std::fprintf(stderr, "%s\n", s.message());
            return 1;
        }
    }
    std::uint32_t logical = 0, physical = 0;
    if (!session.lengths(2, logical, physical)) {
        return 1;
    }
    std::printf("%u tokens in the chat, %u in the cache\n", logical, physical);
    return logical == 1553 && physical < 800 ? 0 : 1;
}
