#include "stub_host.hpp"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <limits>
#include <thread>

#include "../oracle/packing.hpp"
#include "mnnkv_columns.hpp"
#include "mnnkv_mnn.hpp"
#include "mnnkv_perplexity.hpp"  // compiled as MNN compiles it

namespace mnn_stub {

namespace {

/// Tokens per tile, and per block of V, of flash attention.
const int flash_block = 64;

std::string& printed() {
    static std::string text;
    return text;
}

std::size_t index_of(int i) { return static_cast<std::size_t>(i); }

enum kind { query, key, value };

/// Whole 64ths between -1 and 1, which every element type holds exactly. Queries are larger, which makes attention
/// uneven.
float made_up(kind what, int layer, int head, int dim, const token& of) {
    std::uint32_t hash = 0x9E3779B9u;
    for (const int word : {static_cast<int>(what), layer, head, dim, of.serial, of.position}) {
        hash = (hash ^ static_cast<std::uint32_t>(word)) * 0x85EBCA6Bu;
        hash ^= hash >> 15;
    }
    const float number = static_cast<float>(static_cast<int>(hash >> 25) - 64) / 64.0f;
    return what == query ? number * 6.0f : number;
}

/// Rounds towards 0; not for infinities, NaN and denormals.
inline std::uint16_t half_of(float number) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &number, sizeof bits);
    const std::uint32_t sign = bits >> 16 & 0x8000u, magnitude = (bits & 0x7FFFFFFFu) >> 13;
    return static_cast<std::uint16_t>(magnitude <= 112u << 10 ? sign : sign | (magnitude - (112u << 10)));
}

inline float float_of(std::uint16_t half) {
    const std::uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7FFFu;
    const std::uint32_t bits = magnitude == 0 ? sign : sign | ((magnitude + (112u << 10)) << 13);
    float number = 0;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}

inline void store(std::uint8_t* at, float number, int bytes) {
    if (bytes == 4) {
        std::memcpy(at, &number, 4);
    } else if (bytes == 2) {
        const std::uint16_t half = half_of(number);
        std::memcpy(at, &half, 2);
    } else {
        *at = static_cast<std::uint8_t>(static_cast<std::int8_t>(number * 64.0f));
    }
}

inline float load(const std::uint8_t* at, int bytes) {
    float number = 0;
    if (bytes == 4) {
        std::memcpy(&number, at, 4);
        return number;
    }
    if (bytes == 1) {
        return static_cast<float>(static_cast<std::int8_t>(*at)) / 64.0f;
    }
    std::uint16_t half = 0;
    std::memcpy(&half, at, 2);
    return float_of(half);
}

/// K and V of one layer. Members that the adapter uses have MNN's names.
class cache_manager {
public:
    explicit cache_manager(const settings& how)
        : mBytes(how.element_bytes), mKvNumHead(how.kv_heads), mHeadDim(how.head_dim), eP(how.e_pack), lP(how.l_pack),
          hP(how.h_pack), mKeyQuantMode(static_cast<quant>(how.key_quant_mode)),
          mValueQuantMode(static_cast<quant>(how.value_quant_mode)), flash_(how.flash), mapped_(how.mapped),
          packing_(mnnkv_layout()) {}

    int length() const { return mPastLength; }
    int capacity() const { return mMaxLength; }
    int chunk() const { return mConfig.mExpandChunk; }

    void clear() {
        keys_.clear();
        values_.clear();
        mPastLength = mMaxLength = 0;
        mKVCacheInDisk = false;
    }

    void allocate(const MNN::KVMeta& meta, int tokens) {
        const bool is_prefix = !meta.file_name.empty() && meta.file_flag != MNN::KVMeta::NoChange;
        resize(tokens + mConfig.mExpandChunk);
        mKVCacheInDisk = mapped_ || is_prefix;
        keys_ = fresh(mCurrentKeySizePerHead, mHeadDim % lP != 0);
        values_ = fresh(mCurrentValueSizePerHead, lP > 1);
    }

    /// Grows, drops, moves reserved ranges.
    void reallocate(const MNN::KVMeta& meta) {
        const std::size_t need = meta.previous + meta.add - meta.remove + meta.reserved();
        if (need > index_of(mMaxLength)) {
            grow(static_cast<int>(need) + mConfig.mExpandChunk);
        }
        const int start = mPastLength - static_cast<int>(meta.remove);
        mPastLength = start;
        for (int n = 0; n < meta.n_reserve; ++n) {
            for (int i = 0; i < meta.reserve[2 * n + 1]; ++i) {
                move(start + meta.reserve[2 * n] + i, mPastLength++);
            }
        }
    }

    void append(int layer, const std::vector<token>& tokens) {
        for (const token& of : tokens) {
            for (int head = 0; head < mKvNumHead; ++head) {
                for (int dim = 0; dim < mHeadDim; ++dim) {
                    store(key_at(head, mPastLength, dim), made_up(key, layer, head, dim, of), mBytes);
                    store(value_at(head, mPastLength, dim), made_up(value, layer, head, dim, of), mBytes);
                }
            }
            ++mPastLength;
        }
    }

    /// [token][kv head][dim]
    void read(std::vector<float>& keys, std::vector<float>& values) {
        keys.reserve(index_of(mPastLength * mKvNumHead * mHeadDim));
        values.reserve(keys.capacity());
        for (int token = 0; token < mPastLength; ++token) {
            for (int head = 0; head < mKvNumHead; ++head) {
                for (int dim = 0; dim < mHeadDim; ++dim) {
                    keys.push_back(load(key_at(head, token, dim), mBytes));
                    values.push_back(load(value_at(head, token, dim), mBytes));
                }
            }
        }
    }

    std::vector<std::uint8_t> buffers() const {
        std::vector<std::uint8_t> both = keys_;
        both.insert(both.end(), values_.begin(), values_.end());
        return both;
    }

private:
    friend class mnnkv_mnn::layer;
    // Declared first and destroyed last, after the buffers, as in MNN.
    std::shared_ptr<mnnkv_mnn::layer> mnnkv;

    enum class quant : int { none };
    struct {
        int mExpandChunk = 64;
    } mConfig;
    bool mKVCacheInDisk = false;
    int mPastLength = 0, mMaxLength = 0;
    int mBytes, mKvNumHead, mHeadDim;
    int eP, lP, hP, lP8 = 4, hP8 = 8;
    std::size_t mFlashAttentionUpperKv = 0, mCurrentKeySizePerHead = 0, mCurrentValueSizePerHead = 0;
    quant mKeyQuantMode, mValueQuantMode;
    bool flash_, mapped_;
    oracle::packing packing_;
    std::vector<std::uint8_t> keys_, values_;

    std::uint8_t* keyAddr() { return keys_.data(); }
    std::uint8_t* valudAddr() { return values_.data(); }
    // The stand-in stores no INT8.
    std::int8_t* addrOfKeySum(int) { return nullptr; }
    std::int8_t* addrOfValueSum(int) { return nullptr; }
    std::int8_t* addrOfKeyMax(int) { return nullptr; }

    void resize(int tokens) {
        const auto u32 = [](int i) { return static_cast<std::uint32_t>(i); };
        mMaxLength = tokens;
        mFlashAttentionUpperKv = index_of(flash_ ? flash_block : tokens);
        const oracle::pack_mode packs = {"", 0, u32(eP), u32(lP), u32(hP)};  // sizes in elements: no dtype
        packing_ = oracle::packing(oracle::make_layout(packs, u32(mKvNumHead), u32(mHeadDim), u32(tokens),
                                                       u32(flash_ ? flash_block : tokens)));
        mCurrentKeySizePerHead = packing_.key_head() * index_of(mBytes);
        mCurrentValueSizePerHead = packing_.value_head() * index_of(mBytes);
    }

    /// New memory holds anything; MNN zeroes it only where padding takes part in products.
    std::vector<std::uint8_t> fresh(std::size_t per_head, bool zeroed) const {
        return std::vector<std::uint8_t>(per_head * index_of(mKvNumHead), zeroed ? 0 : 0xFF);
    }

    void grow(int tokens) {
        cache_manager old(*this);
        resize(tokens);
        keys_ = fresh(mCurrentKeySizePerHead, mHeadDim % lP != 0);
        values_ = fresh(mCurrentValueSizePerHead, lP > 1);
        for (int head = 0; head < mKvNumHead; ++head) {
            const std::size_t h = index_of(head);
            std::memcpy(&keys_[h * mCurrentKeySizePerHead], &old.keys_[h * old.mCurrentKeySizePerHead],
                        old.mCurrentKeySizePerHead);
            if (flash_) {
                std::memcpy(&values_[h * mCurrentValueSizePerHead], &old.values_[h * old.mCurrentValueSizePerHead],
                            old.mCurrentValueSizePerHead);
                continue;
            }
            // One block as long as the cache: every group of dims has another offset.
            const std::size_t was = old.packing_.value_index(0, index_of(hP)) * index_of(mBytes);
            for (int dim = 0; dim < mHeadDim; dim += hP) {
                std::memcpy(value_at(head, 0, dim), old.value_at(head, 0, dim), was);
            }
        }
    }

    void move(int from, int to) {
        for (int head = 0; head < mKvNumHead; ++head) {
            for (int dim = 0; dim < mHeadDim; ++dim) {
                std::memmove(key_at(head, to, dim), key_at(head, from, dim), index_of(mBytes));
                std::memmove(value_at(head, to, dim), value_at(head, from, dim), index_of(mBytes));
            }
        }
    }

    std::uint8_t* key_at(int head, int token, int dim) {
        const std::size_t at = packing_.key_index(index_of(token), index_of(dim));
        return &keys_[index_of(head) * mCurrentKeySizePerHead + at * index_of(mBytes)];
    }

    std::uint8_t* value_at(int head, int token, int dim) {
        const std::size_t at = packing_.value_index(index_of(token), index_of(dim));
        return &values_[index_of(head) * mCurrentValueSizePerHead + at * index_of(mBytes)];
    }
};

/// Attention of the last rows over a cache in the form of cache_manager::read. The thread of a softmax tile calls
/// see(thread, tile, tokens, first token, last, scales, sums).
template <class See>
std::vector<float> attend(const settings& how, int layer, const std::vector<token>& tokens, float scale,
                          const std::vector<float>& keys, const std::vector<float>& values, See see) {
    const int rows = static_cast<int>(tokens.size()), dims = how.head_dim, pack = how.tile_pack;
    const int length = static_cast<int>(keys.size()) / (how.kv_heads * dims);
    const int width = how.element_bytes == 2 ? 2 : 4;
    std::vector<float> output(index_of(rows * how.heads * dims));

    const auto head_of = [&](int thread, int head) {
        std::vector<float> queries, row, sums(index_of(rows), 0.0f), scales(index_of(rows));
        std::vector<float> tops(index_of(rows), std::numeric_limits<float>::lowest());
        const int kv_head = head / (how.heads / how.kv_heads);
        for (const token& of : tokens) {
            for (int d = 0; d < dims; ++d) {
                queries.push_back(made_up(query, layer, head, d, of));
            }
        }
        // Tokens of a tile from `begin` on that a row may attend to.
        const auto visible_to = [&](int r, int begin, int here) {
            return std::max(0, std::min(here, length - rows + r + 1 - begin));
        };
        const int block = how.flash ? flash_block : length;
        for (int begin = 0; begin < length; begin += block) {
            const int here = std::min(block, length - begin);
            // Padding past the last token may hold anything.
            const std::size_t padded = oracle::round_up(index_of(here), index_of(pack));
            std::vector<std::uint8_t> tile(padded * index_of(rows * width), 0xFF);
            for (int r = 0; r < rows; ++r) {
                const std::size_t at = index_of(r);
                const int visible = visible_to(r, begin, here);
                const float* const q = &queries[index_of(r * dims)];
                row.assign(index_of(here), 0.0f);
                float top = tops[at], sum = 0;
                for (int t = 0; t < visible; ++t) {
                    const float* const k = &keys[index_of(((begin + t) * how.kv_heads + kv_head) * dims)];
                    float product = 0;
                    for (int d = 0; d < dims; ++d) {
                        product += q[d] * k[d];
                    }
                    row[index_of(t)] = product * scale;
                    top = std::max(top, row[index_of(t)]);
                }
                for (int t = 0; t < visible; ++t) {
                    row[index_of(t)] = std::exp(row[index_of(t)] - top);
                    sum += row[index_of(t)];
                }
                scales[at] = visible > 0 ? std::exp(tops[at] - top) : 1.0f;
                sums[at] = sums[at] * scales[at] + sum;
                tops[at] = top;
                float* const out = &output[index_of((r * how.heads + head) * dims)];
                for (int d = 0; d < dims; ++d) {
                    out[d] *= scales[at];
                }
                for (int t = 0; t < here; ++t) {
                    std::uint8_t* const word = &tile[index_of(((t / pack * rows + r) * pack + t % pack) * width)];
                    store(word, how.flash ? row[index_of(t)] : row[index_of(t)] / sum, width);
                }
            }
            see(thread, tile.data(), here, begin, begin + here == length, how.flash ? scales.data() : nullptr,
                how.flash ? sums.data() : nullptr);
            for (int r = 0; r < rows; ++r) {
                float* const out = &output[index_of((r * how.heads + head) * dims)];
                for (int t = 0; t < visible_to(r, begin, here); ++t) {
                    const std::uint8_t* const word = &tile[index_of(((t / pack * rows + r) * pack + t % pack) * width)];
                    const float weight = load(word, width);
                    const float* const v = &values[index_of(((begin + t) * how.kv_heads + kv_head) * dims)];
                    for (int d = 0; d < dims; ++d) {
                        out[d] += weight * v[d];
                    }
                }
            }
        }
        for (int i = 0; how.flash && i < rows * dims; ++i) {
            output[index_of((i / dims * how.heads + head) * dims + i % dims)] /= sums[index_of(i / dims)];
        }
    };

    const int share = (how.heads + how.threads - 1) / how.threads;
    const auto work = [&](int thread) {
        for (int head = thread * share; head < std::min(how.heads, (thread + 1) * share); ++head) {
            head_of(thread, head);
        }
    };
    std::vector<std::thread> others;
    for (int thread = 1; thread < how.threads; ++thread) {
        others.emplace_back(work, thread);
    }
    work(0);
    for (std::thread& other : others) {
        other.join();
    }
    return output;
}

float scale_of(const settings& how, float given) {
    return given != 0 ? given : 1.0f / std::sqrt(static_cast<float>(how.head_dim));
}

/// One attention op; its clones share the cache.
class attention {
public:
    attention(const settings& how, int layer, MNN::KVMeta* meta, std::shared_ptr<cache_manager> cache)
        : how_(how), layer_(layer), meta_(meta), cache_(std::move(cache)), reads_(how.source(layer) != layer) {
        if (reads_ && how_.patched) {
            mnnkv_mnn::layer::share(*cache_);
        }
    }

    layer_step run(const std::vector<token>& tokens, const std::vector<token>& prefix, failure fails) {
        const int rows = static_cast<int>(tokens.size());
        layer_step step;
        mnnkv_mnn::layer* const kv =
            how_.patched ? mnnkv_mnn::layer::of(meta_, *cache_, !reads_, how_.threads) : nullptr;
        MNN::KVMeta* const meta = kv != nullptr ? kv->begin(meta_, *cache_) : meta_;
        step.hooked = kv != nullptr;
        if (meta == nullptr || fails == failure::before_room) {
            return step;
        }
        if (!reads_) {
            if (meta->previous == meta->remove) {
                const bool from_file = meta->file_flag == MNN::KVMeta::PendingRead;
                cache_->clear();
                cache_->allocate(*meta, rows + (from_file ? meta->seqlen_in_disk : 0));
                if (from_file) {
                    cache_->append(layer_, prefix);
                }
            } else {
                step.agrees = meta->previous == index_of(cache_->length());
                cache_->reallocate(*meta);
            }
            cache_->append(layer_, tokens);
            if (kv != nullptr) {
                kv->appended(*cache_);
            }
        }
        if (fails == failure::after_append) {
            return step;
        }
        cache_->read(step.keys, step.values);
        const settings& how = how_;
        for (const token& of : tokens) {
            for (int i = 0; i < how.heads * how.head_dim; ++i) {
                step.queries.push_back(made_up(query, layer_, i / how.head_dim, i % how.head_dim, of));
            }
        }
        step.output = attend(how, layer_, tokens, scale_of(how, meta->attn_scale), step.keys, step.values,
                             [&](int thread, const void* tile, int here, int begin, bool last, const float* scales,
                                 const float* sums) {
                                 if (kv != nullptr) {
                                     kv->tile(thread, tile, how.element_bytes, how.tile_pack, rows, here, begin, last,
                                              scales, sums);
                                 }
                             });
        if (kv != nullptr) {
            kv->end(*cache_, how_.heads, rows, elements_of(how, step.queries).data());
        }
        step.ran = true;
        step.length = cache_->length();
        step.capacity = cache_->capacity();
        step.chunk = cache_->chunk();
        return step;
    }

private:
    settings how_;
    int layer_;
    MNN::KVMeta* meta_;
    std::shared_ptr<cache_manager> cache_;
    bool reads_;
};

}  // namespace

void print(const char* format, ...) {
    char line[1024];
    va_list rest;
    va_start(rest, format);
    std::vsnprintf(line, sizeof line, format, rest);
    va_end(rest);
    printed() += line;
}

std::vector<std::string> take_log() {
    std::vector<std::string> lines;
    for (std::size_t from = 0, to; from < printed().size(); from = to + 1) {
        to = std::min(printed().find('\n', from), printed().size());
        lines.push_back(printed().substr(from, to - from));
    }
    printed().clear();
    return lines;
}

struct engine::parts {
    /// Modules for a prompt and for one token are clones of each other.
    struct ops {
        std::shared_ptr<cache_manager> cache;
        std::unique_ptr<attention> prompt, decode;
    };

    settings how;
    std::unique_ptr<MNN::KVMeta> meta{new MNN::KVMeta()};
    std::vector<ops> layers;
    std::vector<int> reserve;
    std::vector<token> prefix;

    void make(int layer) {
        ops& made = layers[index_of(layer)];
        made = ops();
        made.cache = how.source(layer) == layer ? std::make_shared<cache_manager>(how)
                                                : layers[index_of(how.source(layer))].cache;
        made.prompt.reset(new attention(how, layer, meta.get(), made.cache));
        made.decode.reset(new attention(how, layer, meta.get(), made.cache));
    }
};

engine::engine(const settings& how) : parts_(new parts()) {
    parts_->how = how;
    MNN::KVMeta& meta = *parts_->meta;
    meta.layer_nums = how.layer_nums != 0 ? how.layer_nums : how.layers;
    meta.attn_scale = how.attn_scale;
    if (how.patched) {
        mnnkv_mnn::host host;
        host.config = how.config;
        host.evicts = how.evicts;
        host.compresses = how.compresses;
        host.logs = how.logs;
        host.dump_folder = how.dump_folder;
        host.attention_type = how.attention_type;
        host.attention_mask = how.attention_mask;
        mnnkv_mnn::attach(meta, host);
    }
    parts_->layers.resize(index_of(how.layers));
    for (int layer = 0; layer < how.layers; ++layer) {
        parts_->make(layer);
    }
}

engine::engine(engine&&) noexcept = default;

engine::~engine() {
    if (parts_) {
        parts_->layers.clear();
    }
}

std::vector<layer_step> engine::forward(const std::vector<token>& tokens) {
    return forward(tokens, -1, failure::none, true);
}

std::vector<layer_step> engine::forward(const std::vector<token>& tokens, int failing, failure how, bool counted) {
    MNN::KVMeta& meta = *parts_->meta;
    meta.add = tokens.size();
    std::vector<layer_step> steps;
    for (int layer = 0; layer < parts_->how.layers; ++layer) {
        parts::ops& ops = parts_->layers[index_of(layer)];
        attention& op = tokens.size() > 1 ? *ops.prompt : *ops.decode;
        steps.push_back(op.run(tokens, parts_->prefix, layer == failing ? how : failure::none));
        if (!steps.back().ran && !counted) {
            return steps;
        }
    }
    meta.sync();
    meta.previous += index_of(meta.seqlen_in_disk);
    meta.seqlen_in_disk = 0;
    meta.file_name.clear();
    meta.file_flag = MNN::KVMeta::NoChange;
    return steps;
}

void engine::remove(std::size_t remove, const std::vector<std::pair<int, int>>& reserve) {
    MNN::KVMeta& meta = *parts_->meta;
    parts_->reserve.clear();
    for (const std::pair<int, int>& range : reserve) {
        parts_->reserve.push_back(range.first);
        parts_->reserve.push_back(range.second);
    }
    meta.remove = remove;
    meta.n_reserve = static_cast<int>(reserve.size());
    meta.reserve = reserve.empty() ? nullptr : parts_->reserve.data();
}

void engine::erase_history(std::size_t begin, std::size_t end) {
    const std::size_t length = previous();
    std::vector<std::pair<int, int>> rest;
    if (end < length) {
        rest.emplace_back(static_cast<int>(end - begin), static_cast<int>(length - end));
    }
    remove(length - begin, rest);
}

void engine::clear() { remove(previous()); }

void engine::write_prefix(const std::string& name) {
    parts_->meta->file_name = name;
    parts_->meta->file_flag = MNN::KVMeta::PendingWrite;
}

void engine::read_prefix(const std::string& name, const std::vector<token>& tokens) {
    parts_->prefix = tokens;
    parts_->meta->file_name = name;
    parts_->meta->file_flag = MNN::KVMeta::PendingRead;
    parts_->meta->seqlen_in_disk = static_cast<int>(tokens.size());
}

std::size_t engine::previous() const { return parts_->meta->previous; }
std::string engine::metrics() const { return mnnkv_mnn::metrics(*parts_->meta); }

std::vector<std::uint8_t> engine::buffers(int layer) const {
    return parts_->layers[index_of(layer)].cache->buffers();
}

void engine::remake(int layer) { parts_->make(layer); }
void engine::destroy_meta() { parts_->meta.reset(); }

layer_step attention_over(const settings& how, int layer, const std::vector<token>& held, int rows) {
    cache_manager cache(how);
    cache.allocate(MNN::KVMeta(), static_cast<int>(held.size()));
    cache.append(how.source(layer), held);
    layer_step step;
    cache.read(step.keys, step.values);
    const auto unseen = [](int, const void*, int, int, bool, const float*, const float*) {};
    step.output = attend(how, layer, std::vector<token>(held.end() - rows, held.end()), scale_of(how, how.attn_scale),
                         step.keys, step.values, unseen);
    return step;
}

std::pair<std::vector<float>, std::vector<float>> rows_of(const settings& how, int layer, const token& of) {
    std::pair<std::vector<float>, std::vector<float>> rows;
    for (int head = 0; head < how.kv_heads; ++head) {
        for (int dim = 0; dim < how.head_dim; ++dim) {
            rows.first.push_back(made_up(key, layer, head, dim, of));
            rows.second.push_back(made_up(value, layer, head, dim, of));
        }
    }
    return rows;
}

std::vector<std::uint8_t> elements_of(const settings& how, const std::vector<float>& numbers) {
    std::vector<std::uint8_t> elements(numbers.size() * index_of(how.element_bytes));
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        store(&elements[i * index_of(how.element_bytes)], numbers[i], how.element_bytes);
    }
    return elements;
}

std::string bench_metrics(const std::string& dumped_config) { return mnnkv_host::metrics_in(dumped_config); }

std::string bench_value(const std::string& metrics, const std::string& name) {
    return mnnkv_host::metric_text(metrics, name);
}

const std::vector<std::string>& bench_columns() { return mnnkv_host::metric_columns(); }

}  // namespace mnn_stub
