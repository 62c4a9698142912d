// The example of integrations/common/README.md, a test compares the two: an engine with row-major caches, whose history
// is edited and whose forwards may fail.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <mnnkv_host.hpp>
#include <vector>

namespace {

const std::uint32_t kv_heads = 2, head_dim = 64, capacity = 1024, layers = 2;

/// K and V of one layer, [token][head][dim]; every word of a token is its number in the chat.
class Cache {
public:
    std::uint32_t length = 0;

    Cache() : layout_(mnnkv::make<mnnkv_layout>()), key_(capacity * row), value_(capacity * row) {
        layout_.key_dtype = layout_.value_dtype = MNNKV_DTYPE_F16;
        layout_.kv_heads = kv_heads;
        layout_.head_dim = head_dim;
        layout_.max_tokens = capacity;
        layout_.l_pack = layout_.h_pack = layout_.flash_block = 1;
        layout_.key_token_stride = layout_.value_token_stride = row * sizeof(std::uint16_t);
    }

    mnnkv_cache view() {
        mnnkv_cache cache = mnnkv::make<mnnkv_cache>();
        cache.layout = &layout_;
        cache.key = key_.data();
        cache.value = value_.data();
        cache.kv_len = length;
        return cache;
    }

    void append(std::uint32_t token) {
        for (std::uint32_t i = 0; i < row; ++i) {
            key_[length * row + i] = value_[length * row + i] = static_cast<std::uint16_t>(token);
        }
        ++length;
    }

    std::uint32_t token(std::uint32_t at) const { return key_[at * row]; }

private:
    static const std::uint32_t row = kv_heads * head_dim;
    mnnkv_layout layout_;
    std::vector<std::uint16_t> key_, value_;
};

/// Attention that looks at all tokens alike; false: out of memory.
bool attention(mnnkv_host::layer_session& steps, std::uint32_t length, std::uint32_t queries, bool fails) {
    if (fails) {
        return false;
    }
    const std::vector<float> rows(std::size_t(queries) * length, 1.0f), sums(queries, static_cast<float>(length));
    for (std::uint32_t head = 0; head < kv_heads; ++head) {
        mnnkv_score_tile tile = mnnkv::make<mnnkv_score_tile>();
        tile.dtype = MNNKV_DTYPE_F32;
        tile.queries = queries;
        tile.tokens = length;
        tile.flags = MNNKV_TILE_FIRST | MNNKV_TILE_LAST;
        tile.data = rows.data();
        tile.row_sum = sums.data();
        steps.sum(0, tile);  // each thread has its own lane
    }
    return true;
}

// [readme]
struct Layer {
    Cache cache;
    std::unique_ptr<mnnkv_host::layer_session> steps;
};

// One layer's step. The engine has `counts.previous` tokens; `counts` has its edits, too.
bool step(Layer& layer, const mnnkv_host::step_counts& counts, bool fails) {
    mnnkv_cache view = layer.cache.view();
    if (counts.previous == counts.remove) {  // a new chat
        layer.steps->clear(counts);
        layer.cache.length = view.kv_len = 0;
        if (!layer.steps->begin_cleared(view)) return false;
    } else {
        if (!layer.steps->begin(counts, view)) return false;  // edits done, tokens restored, others evicted
        layer.cache.length = view.kv_len;
    }
    for (std::size_t i = 0; i < counts.add; ++i) {
        layer.cache.append(static_cast<std::uint32_t>(counts.previous - counts.remove + i));
    }
    const uint32_t queries = static_cast<uint32_t>(counts.add);
    if (!attention(*layer.steps, layer.cache.length, queries, fails)) return false;  // the next begin closes the step
    view = layer.cache.view();
    return layer.steps->end(kv_heads, queries, view) == MNNKV_OK;
}
// [readme]

void print(const char* line) { std::fprintf(stderr, "%s\n", line); }

}  // namespace

int main() {
    mnnkv_host::model_config config;
    config.json = R"({"kv_h2o_enable": true, "kv_h2o_layer_start": 1, "kv_h2o_trigger_min_tokens": 256,
        "kv_h2o_recent_tokens": 64, "kv_h2o_block_tokens": 16, "kv_lossless_enable": true,
        "kv_lossless_runtime_enable": true, "kv_lossless_runtime_mode": "store"})";
    config.layers = layers;
    config.logs = false;
    config.print = &print;
    mnnkv_host::model_session model(config);
    if (!model.refusal.empty()) {
        print(model.refusal.c_str());
        return 1;
    }
    std::vector<Layer> all(layers);
    for (Layer& layer : all) {
        layer.steps.reset(new mnnkv_host::layer_session(model));
    }

    std::size_t length = 0, done = 0;
    const auto forward = [&](std::size_t add, std::size_t remove, bool fails) {
        const mnnkv_host::step_counts counts = {done, length, remove, add, nullptr, 0};
        for (Layer& layer : all) {
            if (!step(layer, counts, fails && &layer == &all.back())) {
                return;  // the engine counts nothing
            }
        }
        length += add - remove;
        ++done;
    };
    forward(600, 0, false);
    for (int i = 0; i < 40; ++i) {
        forward(1, 0, i % 10 == 9);
    }
    forward(5, 30, false);
    forward(3, 0, true);
    const std::int32_t front[] = {0, static_cast<std::int32_t>(length - 10)};
    for (Layer& layer : all) {
        mnnkv_cache view = layer.cache.view();
        if (!layer.steps->keep(front, 1, view)) {
            return 1;
        }
        layer.cache.length = view.kv_len;
    }
    length -= 10;
    forward(2, 0, false);

    for (Layer& layer : all) {
        std::uint32_t logical = 0, physical = 0;
        if (!model.session.lengths(layer.steps->number(), logical, physical)) {
            return 1;
        }
        std::printf("layer %u: %u tokens in the chat, %u in the cache\n", layer.steps->number(), logical, physical);
        if (logical != length || physical != layer.cache.length || (physical < 250) != (layer.steps->number() == 1)) {
            return 1;
        }
        // The newest token is the chat's last, and the order is the chat's. Stored tokens read as 0.
        if (layer.cache.token(physical - 1) != length - 1) {
            return 1;
        }
        for (std::uint32_t at = 0, last = 0; at < physical; ++at) {
            const std::uint32_t token = layer.cache.token(at);
            if (token != 0 && token < last) {
                return 1;
            }
            last = token != 0 ? token : last;
        }
    }
    return 0;
}
