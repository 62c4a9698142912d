// A stand-in for MNN's LLM engine, with the adapter's calls where the patches put them: caches of MNN's shape,
// attention in MNN's order, real arithmetic over made-up numbers. Slow and simple. Compiled as MNN is (C++11, neither
// exceptions nor RTTI); suites include only this header.

#ifndef MNNKV_TESTS_STUB_HOST_HPP
#define MNNKV_TESTS_STUB_HOST_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace mnn_stub {

/// A token of the chat. Its q, k and v are a function of both numbers, the layer and the head.
struct token {
    int serial, position;
};

struct settings {
    int layers = 2, heads = 4, kv_heads = 2, head_dim = 12;
    /// K and V are 0 from this dim on, so that codecs find something in every kind of cache.
    int live_dims = 1 << 30;
    /// Capacity and order of packed caches, and of softmax tiles.
    int e_pack = 24, l_pack = 1, h_pack = 4, tile_pack = 8;
    /// 4: float, 2: half; 1: a byte, which no cache of MNN has.
    int element_bytes = 4;
    /// MNN's KVQuantMode of K and V; lP8 and hP8 of INT8.
    int key_quant_mode = 0, value_quant_mode = 0, l_pack_8 = 4, h_pack_8 = 8;
    int threads = 2;
    bool flash = true;
    /// false: MNN without the patches.
    bool patched = true;
    /// Every cache is a memory-mapped file (MNN: in disk).
    bool mapped = false;
    /// KVMeta::layer_nums; 0: `layers`.
    int layer_nums = 0;
    float attn_scale = 0;
    /// reads[i] is the layer whose cache layer i reads; -1, or none given: its own.
    std::vector<int> reads;
    /// sliding_window of a model of attention_type "mix"; 0: none. And which of its layers have the window.
    int window = 0;
    std::vector<int> windowed;
    /// Layers of linear attention, behind the others.
    int linear = 0;

    /// Llm::load ends with a step, as of a model of text on the CPU.
    bool steps_at_load = true;

    /// The engine's settings for the adapter.
    std::string config = "{}";
    bool evicts = false, compresses = false, chats = false, logs = false;
    std::string dump_folder;
    std::vector<std::string> model_files;
    std::string attention_type = "full", attention_mask = "float";

    /// MNN's attention_mode: flash and the element types.
    settings in_mode(int attention_mode) const;
    bool is_quantised() const { return key_quant_mode != 0 || value_quant_mode != 0; }

    int window_of(int layer) const {
        return std::find(windowed.begin(), windowed.end(), layer) != windowed.end() ? window : 0;
    }

    int source(int layer) const {
        return static_cast<std::size_t>(layer) < reads.size() && reads[static_cast<std::size_t>(layer)] >= 0
                   ? reads[static_cast<std::size_t>(layer)]
                   : layer;
    }
};

/// Tokens of a cache, [token][kv head][dim]. INT8 K is without its centre, and has sums, [token][kv head].
struct rows {
    std::vector<float> keys, values, key_sums;
};

/// Where an attention op fails, as if memory had run out.
enum class failure {
    none,
    /// After begin, before there is room for the new tokens.
    before_room,
    /// After the new tokens are in the cache, before attention.
    after_append
};

/// One layer's result of one step.
struct layer_step {
    /// The op ran to its end.
    bool ran = false;
    /// MNN's code where the adapter failed it; 0: it did not.
    int error = 0;
    /// The adapter gave it a layer.
    bool hooked = false;
    /// The adapter has attended in place of MNN.
    bool attended = false;
    /// The KVMeta for MNN's own code counts as many tokens as the cache has (MNN asserts it in debug builds).
    bool agrees = true;
    /// The cache as attention reads it.
    rows held;
    /// The new tokens as MNN coded them.
    rows coded;
    /// INT8 V: what is not as if just the tokens of the cache had been appended; "": all is.
    std::string wrong_sums;
    /// [row][head][dim]
    std::vector<float> queries, output;
    /// After the step: mPastLength, mMaxLength, mExpandChunk.
    int length = 0, capacity = 0, chunk = 0;
};

enum class llm_status { NOT_LOADED = -1, RUNNING = 0, INTERNAL_ERROR = 4 };

/// MNN's LlmContext, with its names. The mutex guards history_tokens.
struct llm_context {
    int all_seq_len = 0;
    std::vector<int> history_tokens;
    llm_status status = llm_status::RUNNING;
    mutable std::mutex mutex;
};

class engine {
public:
    explicit engine(const settings& how);
    /// Destroys the caches first, as MNN.
    ~engine();
    engine(engine&&) noexcept;
    engine& operator=(engine&&) noexcept;

    /// One step of all layers: the pending edit, then these new tokens.
    std::vector<layer_step> forward(const std::vector<token>& tokens);

    /// A step that fails in `layer`. counted: the engine continues with the next layer and counts the tokens. Otherwise
    /// it stops there and counts nothing: the next step repeats the edit.
    std::vector<layer_step> forward(const std::vector<token>& tokens, int layer, failure how, bool counted);

    /// The next step first removes the last `remove` tokens, except the ranges (offset, length).
    void remove(std::size_t remove, const std::vector<std::pair<int, int>>& reserve = {});
    /// Removes tokens begin .. end of the chat, by MNN's call. With begin 0 MNN drops the others as well and still
    /// counts them.
    void erase_history(std::size_t begin, std::size_t end);
    /// The next step is the prompt of a new chat.
    void clear();

    /// The next prompt is written to, or taken from, a prefix cache file; the file has these tokens.
    void write_prefix(const std::string& name);
    void read_prefix(const std::string& name, const std::vector<token>& tokens);

    /// Llm::set_config once the model is loaded: with a command, or keys that the engine ignores. Returns false for these.
    bool command(const std::string& content);
    /// Llm::reset
    void reset();
    llm_context& context();
    /// What Llm::load returned.
    bool is_loaded() const;
    /// Llm's mBlockSize while a prompt of so many tokens is computed, where the config's chunk is `configured`.
    int chunk_of(std::size_t tokens, int configured) const;
    /// Llm's mCachedPromptText
    std::string& prompt();

    std::size_t previous() const;
    /// What a layer of linear attention remembers.
    std::vector<char> state(int layer) const;
    /// Metrics as dump_config shows them.
    std::string metrics() const;
    /// The whole buffers of a layer, K then V.
    std::vector<std::uint8_t> buffers(int layer) const;

    /// Masks are those of other windows from now on.
    void change_masks(const settings& other);
    /// Makes the op of this layer and its cache anew, as loading a module again does.
    void remake(int layer);
    /// Destroys KVMeta before the caches; only the destructor may follow.
    void destroy_meta();

private:
    struct parts;
    std::unique_ptr<parts> parts_;
};

/// The attention of a host without the adapter whose layer holds just these tokens, for the last `rows` of them.
layer_step attention_over(const settings& how, int layer, const std::vector<token>& held, int rows);

/// The same of rows that a cache has read, for the last tokens among them.
std::vector<float> attention_over(const settings& how, int layer, const rows& held, const std::vector<token>& last);

/// A token before it is coded.
rows rows_of(const settings& how, int layer, const token& of);

/// Numbers in the element type of floating-point caches.
std::vector<std::uint8_t> elements_of(const settings& how, const std::vector<float>& numbers);

/// The lines printed since the last call, without those that say what a config does.
std::vector<std::string> take_log();
/// These.
std::vector<std::string> take_outlooks();

/// The metrics in the form of llm_bench.
std::string bench_metrics(const std::string& dumped_config);
std::string bench_value(const std::string& metrics, const std::string& name);
const std::vector<std::string>& bench_columns();

}  // namespace mnn_stub

#endif  // MNNKV_TESTS_STUB_HOST_HPP
