// A chat with a stub engine that checks every step: the tokens of a cache, identified by their rows, and the output,
// which must be that of a host without the adapter whose cache holds just these. Rows of quantised caches are those
// that MNN coded when it appended the token: no later step may change them.

#ifndef MNNKV_TESTS_MNN_CHAT_HPP
#define MNNKV_TESTS_MNN_CHAT_HPP

#include "../suites/support.hpp"
#include "stub_host.hpp"

#include <functional>
#include <map>
#include <memory>
#include <optional>

namespace support {

using mnn_stub::failure;
using mnn_stub::layer_step;
using mnn_stub::settings;
using mnn_stub::token;

inline std::string lines(const std::vector<std::string>& all) {
    std::string text;
    for (const std::string& line : all) {
        text += line + '\n';
    }
    return text;
}

/// Evicts from every layer but the first, in small blocks: small caches then behave like large ones.
inline std::string evicting(const std::string& more = "") {
    return R"("kv_h2o_enable": true, "kv_h2o_layer_start": 1, "kv_h2o_block_tokens": 8,
              "kv_h2o_sink_tokens": 8, "kv_h2o_recent_tokens": 24, "kv_h2o_trigger_min_tokens": 80,
              "kv_h2o_update_interval": 4, "kv_h2o_target_lossy_ratio": 2.0)" + (more.empty() ? "" : ", " + more);
}

/// Compresses cold tokens of every layer. store: keeps them compressed between steps. full: decodes and compares.
inline std::string compressing(const std::string& mode, int workers) {
    return R"("kv_lossless_enable": true, "kv_lossless_runtime_enable": true, "kv_lossless_front_n": 100,
              "kv_lossless_block_tokens": 16, "kv_lossless_hot_recent_tokens": 24, "kv_lossless_runtime_mode": ")" +
           mode + R"(", "kv_lossless_async_threads": )" + std::to_string(workers);
}

/// The settings that the engine derives from a config, which has keys of its own as well.
inline settings configured(settings how, const std::string& keys, const std::string& more = "") {
    how.config = R"({"attention_mode": 8, "llm_model": "llm.mnn", )" + keys + (more.empty() ? "" : ", " + more) + "}";
    how.evicts = how.config.find(R"("kv_h2o_enable": true)") != std::string::npos;
    how.compresses = how.config.find(R"("kv_lossless_enable": true)") != std::string::npos;
    how.chats = how.config.find(R"("kv_chat_enable": true)") != std::string::npos;
    how.logs = how.config.find(R"("kv_h2o_log_stats": true)") != std::string::npos;
    return how;
}

class chat {
public:
    explicit chat(const settings& how) : how_(how), host_(how), coded_(static_cast<std::size_t>(how.layers)) {
        if (!how.evicts && !how.is_quantised()) {
            settings plain = how;
            plain.patched = false;
            plain_.emplace(plain);
        }
        forget();
    }

    const settings& how() const { return how_; }
    mnn_stub::engine& host() { return host_; }
    int length() const { return static_cast<int>(history_.size()); }
    /// Tokens that MNN counts and no longer has: see erase.
    int forgotten() const { return forgotten_; }
    const layer_step& last(int layer) const { return last_[static_cast<std::size_t>(layer)]; }
    int held(int layer) const { return last(layer).length; }
    bool holds(int layer, int serial) const {
        const std::vector<int>& held = held_[static_cast<std::size_t>(layer)];
        return std::binary_search(held.begin(), held.end(), serial);
    }
    /// Serials of the chat's tokens, in order.
    int serial(int at) const { return history_[static_cast<std::size_t>(at)].serial; }

    /// Called before each of the steps that follow.
    void before_steps(std::function<void(chat&)> act) { before_ = std::move(act); }

    /// Goes on in another engine, which loads the chat from a file, or has it already (""). Eviction and the types of caches must
    /// be the same.
    void restart(const std::string& path, const settings& how) {
        host_ = mnn_stub::engine(settings());  // closes the file
        host_ = mnn_stub::engine(how);
        how_ = how;
        ASSERT_TRUE(path.empty() || host_.command("{\"kv_load\": \"" + path + "\"}"));
    }

    /// Becomes another chat, without its engine. Not if outputs are compared with MNN alone.
    void become(const chat& other) {
        ASSERT_FALSE(plain_);
        history_ = other.history_;
        serial_ = other.serial_;
        forgotten_ = other.forgotten_;
        held_ = other.held_;
        coded_ = other.coded_;
        edited_ = other.edited_;
    }

    /// A step of `count` new tokens that is not judged.
    std::vector<token> advance(int count) {
        const std::vector<token> come = next(count);
        if (before_) {
            before_(*this);
        }
        last_ = host_.forward(come);
        remember(last_, come);
        history_.insert(history_.end(), come.begin(), come.end());
        edited_ = false;
        return come;
    }

    /// The largest difference of a layer's last output from that of MNN whose cache holds just these tokens.
    double deviation(int layer, const std::vector<token>& tokens, int count) {
        const std::vector<token> last(tokens.end() - count, tokens.end());
        mnn_stub::rows held;
        for (const token& of : tokens) {
            const mnn_stub::rows& row = rows_of(layer, of);
            held.keys.insert(held.keys.end(), row.keys.begin(), row.keys.end());
            held.values.insert(held.values.end(), row.values.begin(), row.values.end());
            held.key_sums.insert(held.key_sums.end(), row.key_sums.begin(), row.key_sums.end());
        }
        const std::vector<float> expected = mnn_stub::attention_over(how_, layer, held, last);
        const std::vector<float>& output = this->last(layer).output;
        double most = output.size() == expected.size() ? 0 : INFINITY;
        for (std::size_t i = 0; i < expected.size() && most < INFINITY; ++i) {
            const double off = std::abs(static_cast<double>(output[i]) - static_cast<double>(expected[i]));
            most = off <= most ? most : off == off ? off : INFINITY;
        }
        return most;
    }
    const std::vector<token>& history() const { return history_; }

    /// A step of `count` new tokens. Without eviction the outputs equal those of an engine without patches, which makes
    /// the same steps; not of a quantised cache, whose history MNN alone cannot edit.
    void say(int count) {
        const std::vector<token> come = advance(count);
        std::vector<layer_step> plain;
        if (plain_) {
            plain = plain_->forward(come);
        }
        ASSERT_EQ(last_.size(), static_cast<std::size_t>(how_.layers));
        EXPECT_EQ(host_.previous(), static_cast<std::size_t>(length() + forgotten_));
        for (int layer = 0; layer < how_.layers && !testing::Test::HasFailure(); ++layer) {
            SCOPED_TRACE("layer " + std::to_string(layer) + " after " + std::to_string(length()) + " tokens");
            ASSERT_NO_FATAL_FAILURE(judge(layer, count));
            if (!how_.evicts) {
                EXPECT_EQ(held(layer), length()) << "nothing is evicted";
            }
            if (plain_) {
                EXPECT_TRUE(last(layer).output == plain[static_cast<std::size_t>(layer)].output)
                    << "the output is not that of MNN alone";
            }
        }
    }

    /// `count` steps of one token.
    void decode(int count) {
        for (int i = 0; i < count && !testing::Test::HasFailure(); ++i) {
            ASSERT_NO_FATAL_FAILURE(say(1));
        }
    }

    /// A step that fails in a layer. Not counted: the chat is unchanged, and its next step has other tokens.
    void fail(int count, int layer, failure how, bool counted) {
        const std::vector<token> come = next(count);
        const std::vector<layer_step> steps = host_.forward(come, layer, how, counted);
        EXPECT_FALSE(steps[static_cast<std::size_t>(layer)].ran);
        EXPECT_EQ(steps[static_cast<std::size_t>(layer)].error, 0);
        if (!counted) {
            return;
        }
        remember(steps, come);
        history_.insert(history_.end(), come.begin(), come.end());
        edited_ = false;
        if (plain_) {
            plain_->forward(come);
        }
        for (std::vector<int>& held : held_) {
            for (const token& of : come) {
                held.push_back(of.serial);
            }
        }
    }

    /// The next step first removes the last `remove` tokens, except these ranges (offset, length).
    void edit(int remove, const std::vector<std::pair<int, int>>& reserve = {}) {
        ASSERT_FALSE(edited_) << "MNN takes one edit per step";
        edited_ = true;
        host_.remove(static_cast<std::size_t>(remove), reserve);
        if (plain_) {
            plain_->remove(static_cast<std::size_t>(remove), reserve);
        }
        if (static_cast<std::size_t>(remove) == host_.previous()) {
            forgotten_ = 0;
            for (const std::pair<int, int>& range : reserve) {
                forgotten_ += range.second;
            }
            history_.clear();
            forget();
            return;
        }
        const int base = length() - remove;
        std::vector<token> left(history_.begin(), history_.begin() + base);
        for (const std::pair<int, int>& range : reserve) {
            const auto from = history_.begin() + base + range.first;
            left.insert(left.end(), from, from + range.second);
        }
        history_ = left;
    }

    /// With begin 0 nothing is left: MNN starts a new chat, and counts the tokens that should be left.
    void erase(int begin, int end) {
        if (end < length()) {
            ASSERT_NO_FATAL_FAILURE(edit(length() - begin, {{end - begin, length() - end}}));
        } else {
            ASSERT_NO_FATAL_FAILURE(edit(length() - begin));
        }
    }

    void clear() {
        history_.clear();
        ASSERT_NO_FATAL_FAILURE(edit(static_cast<int>(host_.previous())));
    }

    /// The caches' buffers are, byte for byte, those of an engine without patches.
    testing::AssertionResult is_untouched() {
        for (int layer = 0; layer < how_.layers; ++layer) {
            const testing::AssertionResult equal = same(host_.buffers(layer), plain_->buffers(layer));
            if (!equal) {
                return testing::AssertionFailure() << "layer " << layer << ": " << equal.message();
            }
        }
        return testing::AssertionSuccess();
    }
    mnn_stub::engine& plain() { return *plain_; }

    /// A number of the metrics; -1 when it was not measured.
    double metric(const std::string& name) const {
        const std::string text = mnn_stub::bench_value(host_.metrics(), name);
        return text == "-" ? -1.0 : std::atof(text.c_str());
    }

    /// The next prompt is written to a prefix file, or follows the tokens of one.
    void write_prefix() {
        host_.write_prefix("prefix");
        plain_->write_prefix("prefix");
    }
    void read_prefix(int count) {
        const std::vector<token> tokens = next(count);
        host_.read_prefix("prefix", tokens);
        plain_->read_prefix("prefix", tokens);
        history_ = tokens;
    }

private:
    std::vector<token> next(int count) {
        std::vector<token> come;
        for (int i = 0; i < count; ++i) {
            come.push_back({serial_++, length() + forgotten_ + i});
        }
        return come;
    }

    /// A token as the cache of a layer must have it.
    const mnn_stub::rows& rows_of(int layer, const token& of) {
        if (how_.is_quantised()) {
            return coded_[static_cast<std::size_t>(how_.source(layer))].at(of.serial);
        }
        return row_ = mnn_stub::rows_of(how_, how_.source(layer), of);
    }

    static bool is_at(const std::vector<float>& all, const std::vector<float>& row, std::size_t slot) {
        return std::equal(row.begin(), row.end(), all.begin() + static_cast<std::ptrdiff_t>(slot * row.size()));
    }

    void remember(const std::vector<layer_step>& steps, const std::vector<token>& come) {
        for (std::size_t layer = 0; layer < steps.size() && how_.is_quantised(); ++layer) {
            const mnn_stub::rows& all = steps[layer].coded;
            const auto part = [&](const std::vector<float>& of, std::size_t at) {
                const auto from = of.begin() + static_cast<std::ptrdiff_t>(of.size() / come.size() * at);
                return std::vector<float>(from, from + static_cast<std::ptrdiff_t>(of.size() / come.size()));
            };
            for (std::size_t at = 0; at < come.size(); ++at) {
                coded_[layer][come[at].serial] = {part(all.keys, at), part(all.values, at), part(all.key_sums, at)};
            }
        }
    }

    void forget() { held_.assign(static_cast<std::size_t>(how_.layers), std::vector<int>()); }

    void judge(int layer, int count) {
        const layer_step& step = last(layer);
        ASSERT_TRUE(step.ran);
        EXPECT_TRUE(step.agrees) << "MNN counts other tokens than its cache has";
        EXPECT_EQ(step.chunk, 64) << "MNN's own";
        EXPECT_LE(step.length, step.capacity);

        // Rows are unique, so they identify the tokens of the cache, which are in order.
        const auto size = static_cast<std::size_t>(step.length);
        const std::size_t row = static_cast<std::size_t>(how_.kv_heads * how_.head_dim);
        ASSERT_EQ(step.held.keys.size(), row * size);
        std::vector<token> tokens;
        std::vector<int> serials;
        std::size_t slot = 0;
        for (std::size_t at = 0; slot < size && at < history_.size(); ++at) {
            const token& of = history_[at];
            const mnn_stub::rows& rows = rows_of(layer, of);
            if (is_at(step.held.keys, rows.keys, slot)) {
                ASSERT_TRUE(is_at(step.held.values, rows.values, slot))
                    << "K of slot " << slot << " is not where its V is";
                ASSERT_TRUE(is_at(step.held.key_sums, rows.key_sums, slot))
                    << "K of slot " << slot << " is not where its sums are";
                tokens.push_back(of);
                serials.push_back(of.serial);
                ++slot;
            }
        }
        ASSERT_EQ(slot, size) << "the cache's first slot that holds no token of the chat, in order";
        ASSERT_EQ(std::adjacent_find(serials.begin(), serials.end()), serials.end()) << "a token is there twice";
        EXPECT_EQ(step.wrong_sums, "");
        ASSERT_GE(step.length, count);
        ASSERT_EQ(tokens[tokens.size() - static_cast<std::size_t>(count)].serial, serial(length() - count))
            << "a new token is missing";

        std::vector<int>& held = held_[static_cast<std::size_t>(layer)];
        EXPECT_TRUE(std::includes(held.begin(), held.end(), serials.begin(), serials.end() - count) || held.empty())
            << "a token is back that was evicted";
        held = serials;
        if (how_.is_quantised()) {
            // The product with INT8 V adds up in another order.
            EXPECT_LE(deviation(layer, tokens, count), how_.value_quant_mode == 1 ? 1e-4 : 0.0)
                << "the output is not that of MNN with " << step.length << " of " << length() << " tokens";
        } else if (how_.evicts) {
            EXPECT_TRUE(step.output == mnn_stub::attention_over(how_, layer, tokens, count).output)
                << "the output is not that of MNN with " << step.length << " of " << length() << " tokens";
        }
    }

    settings how_;
    mnn_stub::engine host_;
    std::optional<mnn_stub::engine> plain_;
    std::vector<token> history_;
    int serial_ = 0, forgotten_ = 0;
    bool edited_ = false;
    std::function<void(chat&)> before_;
    std::vector<layer_step> last_;
    /// Per layer, serials in the cache after the last step.
    std::vector<std::vector<int>> held_;
    /// Per layer and serial, tokens of a quantised cache.
    std::vector<std::map<int, mnn_stub::rows>> coded_;
    mnn_stub::rows row_;
};

/// A user's session with a model: prompts, answers, edits, drafts.
inline void live(chat& chat) {
    ASSERT_NO_FATAL_FAILURE(chat.say(150));
    ASSERT_NO_FATAL_FAILURE(chat.decode(10));
    ASSERT_NO_FATAL_FAILURE(chat.say(60));  // second turn, and growth
    ASSERT_NO_FATAL_FAILURE(chat.say(90));
    ASSERT_NO_FATAL_FAILURE(chat.decode(12));
    chat.erase(chat.length() - 30, chat.length());
    ASSERT_NO_FATAL_FAILURE(chat.decode(6));
    chat.erase(60, 100);
    ASSERT_NO_FATAL_FAILURE(chat.say(20));
    ASSERT_NO_FATAL_FAILURE(chat.decode(3));
    chat.erase(1, 25);
    ASSERT_NO_FATAL_FAILURE(chat.decode(6));
    for (const int rejected : {3, 0, 4, 1}) {  // drafts of five tokens
        ASSERT_NO_FATAL_FAILURE(chat.say(5));
        chat.edit(rejected);
    }
    for (int chunk = 0; chunk < 3; ++chunk) {
        ASSERT_NO_FATAL_FAILURE(chat.say(40)) << "a prompt in chunks";
    }
    // A tree of drafts: a path of three stays of its eight tokens.
    ASSERT_NO_FATAL_FAILURE(chat.say(8));
    chat.edit(8, {{0, 1}, {2, 1}, {5, 1}});
    ASSERT_NO_FATAL_FAILURE(chat.decode(8));
}

}  // namespace support

#endif  // MNNKV_TESTS_MNN_CHAT_HPP
