// The examples of README.md; a test keeps them the same.

#include <cstdint>
#include <cstdio>
#include <mnnkv/session.h>
#include <string>
#include <vector>

static void append(mnnkv_cache& cache, std::uint32_t tokens);
static void attention(const mnnkv_cache& cache, const mnnkv_attend& attend);

// [readme]
#include <mnnkv.hpp>

mnnkv::status start(mnnkv::session& chat, uint32_t layers) {
    static const char config[] = R"({"kv_memory_mb": 64, "kv_memory_file": "chat.kv"})";
    mnnkv_session_options options = mnnkv::make<mnnkv_session_options>();
    options.layers = layers;
    options.attends = 1;  // mnn-kv computes the attention where a step says so
    options.config_json = config;
    options.config_len = sizeof config - 1;
    return chat.create(options);
}

// A step of a layer, of one token or a chunk of a prompt. append and attention are your own code. cache: your buffers, their layout
// and kv_len; attend: queries and output. RoPE needs the position in the chat: you count it, kv_len is only that in the cache.
mnnkv::status run(mnnkv::session& chat, uint32_t layer, mnnkv_cache& cache, const mnnkv_attend& attend) {
    mnnkv_step step = mnnkv::make<mnnkv_step>();
    mnnkv::status s = chat.begin(layer, cache, step);               // mnn-kv may take old tokens over, so that kv_len shrinks
    if (!s) return s;
    append(cache, attend.rows);                                     // K and V of the new tokens, from cache.kv_len on
    cache.kv_len += attend.rows;
    if (step.attends) s = chat.attend(layer, 0, 1, cache, attend);  // part 0 of 1: the only thread
    else attention(cache, attend);                                  // all tokens are raw
    return s ? chat.end(layer, attend.heads, attend.rows, cache) : s;
}
// [readme]

// [readme]
mnnkv::status save(mnnkv::session& chat, const std::string& tokens, const mnnkv_cache* caches, uint32_t layers) {
    mnnkv::status s = chat.put("tokens", tokens.data(), tokens.size());  // your own state
    return s ? chat.save(nullptr, caches, layers) : s;                   // to kv_memory_file
}
mnnkv::status open(mnnkv::session& chat, std::string& tokens) {
    mnnkv::status s = chat.open();  // then set each cache.kv_len by chat.lengths: its first begin fills your buffers
    return s ? chat.get("tokens", tokens) : s;
}
// [readme]

// All rows are alike, so it makes no difference where in its block a token lies.
static void append(mnnkv_cache&, std::uint32_t) {}

static void attention(const mnnkv_cache&, const mnnkv_attend&) {}

/// Prints what failed.
static bool is_good(const mnnkv::status& status) {
    if (!status) {
        std::fprintf(stderr, "%s\n", status.message());
    }
    return static_cast<bool>(status);
}

/// A host of one layer with 2 KV heads of 64.
struct Host {
    mnnkv_layout layout = mnnkv::make<mnnkv_layout>();
    std::vector<std::uint16_t> key, value, query, output;
    mnnkv_cache cache = mnnkv::make<mnnkv_cache>();

    bool make() {
        layout.key_dtype = layout.value_dtype = MNNKV_DTYPE_F16;
        layout.kv_heads = 2;
        layout.head_dim = 64;
        layout.e_pack = 12;
        layout.l_pack = 1;
        layout.h_pack = 16;
        layout.flash_block = 64;
        layout.max_tokens = 80000;
        std::uint64_t key_bytes = 0, value_bytes = 0;
        if (mnnkv_layout_check(&layout, &key_bytes, &value_bytes) != MNNKV_OK) {
            return false;
        }
        key.assign(key_bytes / 2, 0x3c00);
        value.assign(value_bytes / 2, 0x3c00);
        cache.layout = &layout;
        cache.key = key.data();
        cache.value = value.data();
        return true;
    }

    mnnkv_attend queries(std::uint32_t tokens) {
        query.assign(std::size_t{tokens} * 2 * 64, 0x3c00);
        output.assign(query.size(), 0);
        mnnkv_attend attend = mnnkv::make<mnnkv_attend>();
        attend.dtype = MNNKV_DTYPE_F16;
        attend.heads = 2;
        attend.rows = tokens;
        attend.head_dim = 64;
        attend.causal = 1;
        attend.queries = query.data();
        attend.output = output.data();
        return attend;
    }
};

int main() {
    std::remove("chat.kv");
    Host host;
    std::string tokens;
    {
        mnnkv::session chat;
        if (!host.make() || !is_good(start(chat, 1))) {
            return 1;
        }
        // Tokens of 512 bytes, of which half of the budget does not hold so many: they leave in the step behind them.
        for (const std::uint32_t rows : {76000u, 1u, 1u}) {
            if (!is_good(run(chat, 0, host.cache, host.queries(rows)))) {
                return 1;
            }
        }
        if (!is_good(save(chat, "ids", &host.cache, 1))) {
            return 1;
        }
    }
    mnnkv::session chat;
    std::uint32_t logical = 0;
    const bool goes_on = is_good(start(chat, 1)) && is_good(open(chat, tokens)) && is_good(chat.lengths(0, logical, host.cache.kv_len)) &&
                         is_good(run(chat, 0, host.cache, host.queries(1)));
    std::remove("chat.kv");
    // All values are 1, and their mean.
    std::printf("%u tokens in the chat, %u in the cache\n", logical, host.cache.kv_len);
    return goes_on && tokens == "ids" && logical == 76002 && host.cache.kv_len < 200 && host.output[0] == 0x3c00 ? 0 : 1;
}
