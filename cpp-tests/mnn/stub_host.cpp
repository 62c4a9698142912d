#define KV_PLUGIN_IMPLEMENTATION  // as CPUAttention.cpp
#include "stub_host.hpp"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <limits>

#include "mnnkv_columns.hpp"
#include "mnnkv_perplexity.hpp"  // compiled as MNN compiles it
#include "stub_cache.hpp"

namespace mnn_stub {

namespace {

std::string& printed() {
    static std::string text;
    return text;
}

std::mutex& printing() {
    static std::mutex mutex;
    return mutex;
}

/// The product of a query and K. INT8 K: as from 8-bit codes of the query, whose zero point has the key sum as factor.
float product_of(const float* q, const float* k, int dims, const float* key_sum) {
    const float zero = key_sum != nullptr ? q[0] : 0.0f;
    float product = 0;
    for (int d = 0; d < dims; ++d) {
        product += (q[d] - zero) * k[d];
    }
    return key_sum != nullptr ? product + zero * *key_sum : product;
}

/// Attention of the last rows over the tokens of a cache. The thread of a softmax tile calls
/// see(thread, tile, tokens, first token, last, scales, sums), and multiply(KV head, first token, weights, out) where V
/// is INT8: adds the product with 8-bit probabilities.
template <class See, class Multiply>
std::vector<float> attend(const settings& how, int layer, const std::vector<token>& tokens, float scale,
                          const rows& held, See see, Multiply multiply) {
    const std::vector<float>&keys = held.keys, &values = held.values, &key_sums = held.key_sums;
    const bool is_int8 = how.value_quant_mode == static_cast<int>(oracle::quant::int8);
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
        // Tokens of a tile from `begin` on before those that a row's window shows.
        const int window = how.window_of(layer);
        const auto hidden_from = [&](int r, int begin, int here) {
            return window == 0 ? 0 : std::min(here, std::max(0, length - rows + r + 1 - window - begin));
        };
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
                const int hidden = hidden_from(r, begin, here);
                for (int t = hidden; t < visible; ++t) {
                    const std::size_t of = index_of((begin + t) * how.kv_heads + kv_head);
                    row[index_of(t)] = scale * product_of(q, &keys[of * index_of(dims)], dims,
                                                          key_sums.empty() ? nullptr : &key_sums[of]);
                    top = std::max(top, row[index_of(t)]);
                }
                for (int t = hidden; t < visible; ++t) {
                    row[index_of(t)] = std::exp(row[index_of(t)] - top);
                    sum += row[index_of(t)];
                }
                scales[at] = visible > hidden ? std::exp(tops[at] - top) : 1.0f;
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
                row.assign(index_of(here), 0.0f);
                for (int t = 0; t < visible_to(r, begin, here); ++t) {
                    const std::uint8_t* const word = &tile[index_of(((t / pack * rows + r) * pack + t % pack) * width)];
                    const float weight = row[index_of(t)] = load(word, width);
                    const float* const v = &values[index_of(((begin + t) * how.kv_heads + kv_head) * dims)];
                    for (int d = 0; d < dims && !is_int8; ++d) {
                        out[d] += weight * v[d];
                    }
                }
                if (is_int8) {
                    multiply(kv_head, begin, row, out);
                }
            }
        }
        for (int i = 0; how.flash && i < rows * dims; ++i) {
            output[index_of((i / dims * how.heads + head) * dims + i % dims)] /= sums[index_of(i / dims)];
        }
    };

    share_heads(how.heads, how.threads, head_of);
    return output;
}

/// As much of MNN's Tensor as the adapter reads: floats, or halves in the element type of the caches.
class tensor {
public:
    tensor(std::vector<int> dims, std::size_t bytes)
        : dims_(std::move(dims)), numbers_(index_of(elementSize()) * bytes) {}

    std::vector<int> shape() const { return dims_; }
    int length(int at) const { return dims_[index_of(at)]; }
    int elementSize() const {
        int all = 1;
        for (const int dim : dims_) {
            all *= dim;
        }
        return all;
    }
    template <class T>
    T* host() const {
        return static_cast<T*>(static_cast<void*>(const_cast<std::uint8_t*>(numbers_.data())));
    }
    std::uint8_t* at(int element) { return &numbers_[index_of(element) * (numbers_.size() / index_of(elementSize()))]; }

private:
    std::vector<int> dims_;
    std::vector<std::uint8_t> numbers_;
};

/// The mask of a layer for the last `rows` of `tokens`: one number, or with windows floats of all tokens.
tensor mask_of(const settings& how, int layer, int rows, int tokens) {
    if (how.window == 0) {
        return tensor({}, sizeof(float));
    }
    const float lowest = how.element_bytes == 2 ? -65504.0f : std::numeric_limits<float>::lowest();
    tensor mask({1, 1, rows, tokens}, index_of(how.element_bytes));
    for (int i = 0; i < rows * tokens; ++i) {
        const int own = tokens - rows + i / tokens, at = i % tokens, window = how.window_of(layer);
        store(mask.at(i), at <= own && (window == 0 || at > own - window) ? 0.0f : lowest, how.element_bytes);
    }
    return mask;
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
            kv_plugin::layer::share(*cache_);
        }
    }

    layer_step run(const std::vector<token>& tokens, const std::vector<token>& prefix, failure fails) {
        const int rows = static_cast<int>(tokens.size());
        layer_step step;
        kv_plugin::layer* const kv =
            how_.patched ? kv_plugin::layer::of(meta_, *cache_, true, reads_, how_.threads) : nullptr;
        const int before = static_cast<int>(meta_->previous - meta_->remove);
        const kv_plugin::own_meta own(meta_);
        step.hooked = kv != nullptr;
        step.error = kv != nullptr ? kv->begin(meta_, *cache_) : MNN::NO_ERROR;
        const MNN::KVMeta* const meta = meta_;
        if (step.error != MNN::NO_ERROR || fails == failure::before_room) {
            return step;
        }
        if (!reads_) {
            if (meta->previous == meta->remove) {
                const bool from_file = meta->file_flag == MNN::KVMeta::PendingRead;
                cache_->onClear();
                cache_->onAlloc(meta, rows + (from_file ? meta->seqlen_in_disk : 0));
                if (from_file) {
                    (void)cache_->append(layer_, prefix);
                }
            } else {
                step.agrees = meta->previous == index_of(cache_->length());
                cache_->reallocate(*meta);
            }
            step.coded = cache_->append(layer_, tokens);
            if (kv != nullptr) {
                kv->appended(*cache_);
            }
        }
        if (fails == failure::after_append) {
            return step;
        }
        step.held = cache_->read();
        step.wrong_sums = cache_->wrong_sums();
        const settings& how = how_;
        for (const token& of : tokens) {
            for (int i = 0; i < how.heads * how.head_dim; ++i) {
                step.queries.push_back(made_up(query, layer_, i / how.head_dim, i % how.head_dim, of));
            }
        }
        if (kv != nullptr && how.element_bytes != 1) {
            const tensor mask = mask_of(how, layer_, rows, before + rows);
            tensor queries({1, rows, how.heads, how.head_dim}, index_of(how.element_bytes));
            const tensor output({1, rows, how.heads, how.head_dim}, index_of(how.element_bytes));
            for (int i = 0; i < queries.elementSize(); ++i) {
                store(queries.at(i), step.queries[index_of(i)], how.element_bytes);
            }
            step.attended = kv->attends(*cache_, &queries, &mask, rows);
            if (step.attended) {
                kv->prepare(*cache_, &queries, &mask, static_cast<const tensor*>(nullptr), &output, how.heads, rows, 0, how.threads);
                share_heads(how.threads, how.threads, [&](int thread, int) { kv->attend(thread); });
                for (int i = 0; i < output.elementSize(); ++i) {
                    step.output.push_back(load(output.host<std::uint8_t>() + i * how.element_bytes, how.element_bytes));
                }
            }
        }
        if (!step.attended) {
            step.output = attend(
                how, layer_, tokens, scale_of(how, meta->attn_scale), step.held,
                [&](int thread, const void* tile, int here, int begin, bool last, const float* scales, const float* sums) {
                    if (kv != nullptr) {
                        kv->tile(thread, tile, how.element_bytes, how.tile_pack, rows, here, begin, last, scales, sums);
                    }
                },
                [&](int head, int begin, const std::vector<float>& weights, float* out) {
                    const std::size_t padded = oracle::round_up(weights.size(), index_of(how.tile_pack));
                    cache_->multiply(head, begin, weights, padded, out);
                });
        }
        if (kv != nullptr) {
            step.error = kv->end(*cache_, how_.heads, rows);
        }
        if (step.error != MNN::NO_ERROR) {
            return step;
        }
        step.ran = true;
        step.length = cache_->length();
        step.capacity = cache_->capacity();
        step.chunk = cache_->chunk();
        return step;
    }

    void windowed(const std::vector<int>& layers) { how_.windowed = layers; }

private:
    settings how_;
    int layer_;
    MNN::KVMeta* meta_;
    std::shared_ptr<cache_manager> cache_;
    bool reads_;
};

/// An op of linear attention: its state is a hash of the tokens.
class linear_attention {
public:
    explicit linear_attention(int layer) : state_(std::make_shared<MNN::Tensor>(24 + index_of(layer))) {}

    void run(MNN::KVMeta& meta, const std::vector<token>& tokens) {
        if (meta.plugin) {
            kv_plugin::keep(*meta.plugin, state_, {state_.get(), nullptr});
        }
        unsigned char* const bytes = state_->host<unsigned char>();
        const std::size_t size = index_of(state_->elementSize());
        if (meta.previous == meta.remove) {
            std::fill(bytes, bytes + size, static_cast<unsigned char>(0));
        }
        for (const token& of : tokens) {
            for (std::size_t i = 0; i < size; ++i) {
                bytes[i] = static_cast<unsigned char>(bytes[i] * 31 + static_cast<unsigned char>(of.serial) + bytes[(i + 1) % size] + i);
            }
        }
    }

    std::vector<char> state() const { return std::vector<char>(state_->host<char>(), state_->host<char>() + state_->elementSize()); }

private:
    std::shared_ptr<MNN::Tensor> state_;
};

}  // namespace

void print(const char* format, ...) {
    char line[1024];
    va_list rest;
    va_start(rest, format);
    std::vsnprintf(line, sizeof line, format, rest);
    va_end(rest);
    const std::lock_guard<std::mutex> guard(printing());
    printed() += line;
}

/// Takes the printed lines that say what a config does, or the others.
std::vector<std::string> take(bool outlooks) {
    std::vector<std::string> lines;
    std::string rest;
    for (std::size_t from = 0, to; from < printed().size(); from = to + 1) {
        to = std::min(printed().find('\n', from), printed().size());
        const std::string line = printed().substr(from, to - from);
        const auto has = [&line](const char* part) { return line.find(part) != std::string::npos; };
        if ((has(" keep all") || has(" keeps all") || has(" stays, from ") || has(" tokens stay") || has(": tokens are raw up to ") || has(" hold it, ")) == outlooks) {
            lines.push_back(line);
        } else {
            rest += line + '\n';
        }
    }
    printed() = rest;
    return lines;
}

std::vector<std::string> take_log() { return take(false); }
std::vector<std::string> take_outlooks() { return take(true); }

struct engine::parts {
    /// Modules for a prompt and for one token are clones of each other.
    struct ops {
        std::shared_ptr<cache_manager> cache;
        std::unique_ptr<attention> prompt, decode;
    };

    settings how;
    std::unique_ptr<MNN::KVMeta> meta{new MNN::KVMeta()};
    std::vector<ops> layers;
    std::vector<linear_attention> linear;
    std::vector<int> reserve;
    std::vector<token> prefix;
    bool is_loaded = true;
    llm_context context;
    std::string prompt;

    /// The token ids of the chat, as far as MNN has them.
    void note(const std::vector<token>& tokens) {
        const std::lock_guard<std::mutex> guard(context.mutex);
        std::vector<int>& ids = context.history_tokens;
        if (meta->n_reserve == 0) {
            ids.resize(ids.size() - std::min(ids.size(), meta->remove));
        }
        for (const token& of : tokens) {
            ids.push_back(of.serial);
        }
    }

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
        kv_plugin::host host(how.config);
        host.chats = how.chats;
        host.logs = how.logs;
        host.dump_folder = how.dump_folder;
        host.model_files = how.model_files;
        host.attention_type = how.attention_type;
        host.attention_mask = how.attention_mask;
        host.steps_at_load = how.steps_at_load;
        kv_plugin::attach(meta, host);
    }
    parts_->layers.resize(index_of(how.layers));
    for (int layer = 0; layer < how.layers; ++layer) {
        parts_->make(layer);
    }
    for (int layer = 0; layer < how.linear; ++layer) {
        parts_->linear.emplace_back(layer);
    }
    if (how.patched) {
        while (kv_plugin::needs_step(meta)) {
            forward({{-2, 0}, {-1, 1}}, -1, failure::none, false);
            reset();
        }
        parts_->is_loaded = !kv_plugin::is_refused(meta, parts_->context, parts_->prompt);
    }
}

engine::engine(engine&&) noexcept = default;

engine& engine::operator=(engine&& other) noexcept {
    std::swap(parts_, other.parts_);
    return *this;
}

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
    parts_->note(tokens);
    std::vector<layer_step> steps;
    for (int layer = 0; layer < parts_->how.layers; ++layer) {
        parts::ops& ops = parts_->layers[index_of(layer)];
        attention& op = tokens.size() > 1 ? *ops.prompt : *ops.decode;
        steps.push_back(op.run(tokens, parts_->prefix, layer == failing ? how : failure::none));
        if (!steps.back().ran && !counted) {
            parts_->context.status = llm_status::INTERNAL_ERROR;
            return steps;
        }
    }
    for (linear_attention& op : parts_->linear) {
        op.run(meta, tokens);
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

bool engine::command(const std::string& content) {
    if (kv_plugin::is_command(content)) {
        while (kv_plugin::needs_step(content, *parts_->meta)) {
            forward({{-2, 0}, {-1, 1}});
            reset();
        }
        return kv_plugin::command(content, *parts_->meta, parts_->context, parts_->prompt);
    }
    kv_plugin::check_late_keys(content, parts_->context);
    return false;
}

void engine::reset() {
    parts_->context.history_tokens.clear();
    kv_plugin::reset(*parts_->meta, parts_->context);
    clear();
}

bool engine::is_loaded() const { return parts_->is_loaded; }

int engine::chunk_of(std::size_t tokens, int configured) const {
    int chunk = configured, during = 0;
    {
        const kv_plugin::prompt_chunk prompt(*parts_->meta, chunk, tokens);
        during = chunk;
    }
    return chunk == configured ? during : -1;
}

llm_context& engine::context() { return parts_->context; }
std::string& engine::prompt() { return parts_->prompt; }

std::vector<char> engine::state(int layer) const { return parts_->linear[index_of(layer)].state(); }

std::size_t engine::previous() const { return parts_->meta->previous; }
std::string engine::metrics() const { return kv_plugin::metrics(*parts_->meta); }

std::vector<std::uint8_t> engine::buffers(int layer) const {
    return parts_->layers[index_of(layer)].cache->buffers();
}

void engine::change_masks(const settings& other) {
    parts_->how.windowed = other.windowed;
    for (parts::ops& ops : parts_->layers) {
        ops.prompt->windowed(other.windowed);
        ops.decode->windowed(other.windowed);
    }
}

void engine::remake(int layer) { parts_->make(layer); }
void engine::destroy_meta() { parts_->meta.reset(); }

layer_step attention_over(const settings& how, int layer, const std::vector<token>& held, int rows) {
    cache_manager cache(how);
    const MNN::KVMeta meta;
    cache.onAlloc(&meta, static_cast<int>(held.size()));
    layer_step step;
    (void)cache.append(how.source(layer), held);
    step.held = cache.read();
    step.output = attention_over(how, layer, step.held, std::vector<token>(held.end() - rows, held.end()));
    return step;
}

std::vector<float> attention_over(const settings& how, int layer, const rows& held, const std::vector<token>& last) {
    const auto unseen = [](int, const void*, int, int, bool, const float*, const float*) {};
    const auto multiply = [&](int head, int begin, const std::vector<float>& weights, float* out) {
        for (std::size_t t = 0; t < weights.size(); ++t) {
            const std::size_t at = (index_of(begin) + t) * index_of(how.kv_heads) + index_of(head);
            for (int d = 0; d < how.head_dim; ++d) {
                const float v = held.values[at * index_of(how.head_dim) + index_of(d)];
                out[d] += std::round(weights[t] * 255.0f) / 255.0f * v;
            }
        }
    };
    return attend(how, layer, last, scale_of(how, how.attn_scale), held, unseen, multiply);
}

rows rows_of(const settings& how, int layer, const token& of) {
    rows made;
    for (int head = 0; head < how.kv_heads; ++head) {
        for (int dim = 0; dim < how.head_dim; ++dim) {
            const bool lives = dim < how.live_dims;
            made.keys.push_back(lives ? made_up(key, layer, head, dim, of) : 0.0f);
            made.values.push_back(lives ? made_up(value, layer, head, dim, of) : 0.0f);
        }
    }
    return made;
}

settings settings::in_mode(int attention_mode) const {
    settings how = *this;
    how.flash = attention_mode >= 8;
    how.key_quant_mode = static_cast<int>(oracle::quants_of(attention_mode).key);
    how.value_quant_mode = static_cast<int>(oracle::quants_of(attention_mode).value);
    return how;
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
