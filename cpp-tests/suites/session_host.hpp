// A host that makes a session's calls, one object per layer.

#ifndef MNNKV_TESTS_SESSION_HOST_HPP
#define MNNKV_TESTS_SESSION_HOST_HPP

#include "cache_host.hpp"
#include "report.hpp"
#include "score_tiles.hpp"

#include <string>

namespace support {

inline mnnkv::session made_session(const std::string& config, std::uint32_t layers, std::uint32_t lanes = 1) {
    mnnkv::session session;
    EXPECT_TRUE(ok(session.create(config.data(), config.size(), layers, lanes).code()));
    EXPECT_EQ(report_of(session).warnings(), "");
    return session;
}

/// Evicts from every layer, in small blocks, so that small caches show what large ones do.
inline std::string evicting(const std::string& more = "") {
    return R"("kv_h2o_enable": true, "kv_h2o_layer_start": 0, "kv_h2o_block_tokens": 16,
              "kv_h2o_sink_tokens": 16, "kv_h2o_recent_tokens": 32, "kv_h2o_trigger_min_tokens": 100,
              "kv_h2o_update_interval": 4, "kv_h2o_target_lossy_ratio": 2.0)" + (more.empty() ? "" : ", " + more);
}

/// Keeps cold tokens of every layer compressed.
inline std::string storing(unsigned workers, const std::string& more = "") {
    return R"("kv_lossless_enable": true, "kv_lossless_runtime_enable": true, "kv_lossless_runtime_mode": "store",
              "kv_lossless_front_n": 100, "kv_lossless_block_tokens": 32, "kv_lossless_hot_recent_tokens": 40,
              "kv_lossless_async_threads": )" + std::to_string(workers) + (more.empty() ? "" : ", " + more);
}

inline std::string object(const std::string& a, const std::string& b = "") {
    return "{" + a + (b.empty() ? "" : ", " + b) + "}";
}

class session_layer : public cache_host {
public:
    session_layer(mnnkv::session& session, std::uint32_t number, const mnnkv_layout& layout, dice& random)
        : cache_host(number, layout, random), session_(session) {}

    std::uint32_t logical_length() const { return logical_; }
    mnnkv::session& session() { return session_; }

    /// The cache as the library takes it.
    mnnkv_cache cache() {
        mnnkv_cache cache = mnnkv::make<mnnkv_cache>();
        cache.layout = &layout();
        cache.key = key();
        cache.value = value();
        cache.kv_len = length();
        return cache;
    }

    /// Opens a step; after it every token is at the place of positions().
    mnnkv_status begin(std::uint32_t rows = 1) {
        mnnkv_cache given = cache();
        opened.rows = rows;
        const mnnkv_status status = session_.begin(number_, given, opened).code();
        if (status != MNNKV_OK) {
            EXPECT_EQ(given.kv_len, length()) << "outputs are written only on success";
            return status;
        }
        EXPECT_EQ(opened.kv_len, given.kv_len);
        follow(given.kv_len);
        EXPECT_TRUE(whole());
        return status;
    }

    /// What the last begin has said.
    mnnkv_step opened = mnnkv::make<mnnkv_step>();

    mnnkv_status end(std::uint32_t heads, std::uint32_t queries) {
        mnnkv_cache given = cache();
        const mnnkv_status status = session_.end(number_, heads, queries, given).code();
        EXPECT_EQ(given.kv_len, length()) << "end does not change it";
        return status;
    }

    void append(std::uint32_t count) {
        ASSERT_LE(count, room());
        for (std::uint32_t i = 0; i < count; ++i) {
            tokens_.emplace_back();
            tokens_.back().logical = static_cast<std::int32_t>(logical_++);
            write(length() - 1);
        }
    }

    /// Writes other words to tokens, as a K-shift does, and calls mnnkv_session_rewritten.
    mnnkv_status rewrite(std::uint32_t begin, std::uint32_t count) {
        for (std::uint32_t at = begin; at < begin + count; ++at) {
            write(at);
        }
        return session_.rewritten(number_, begin, count).code();
    }

    /// Takes new tokens back before the step is closed.
    void forget_last(std::uint32_t count) {
        tokens_.resize(tokens_.size() - count);
        logical_ -= count;
    }

    /// Clears the cache and calls mnnkv_session_reset.
    void clear() {
        ASSERT_TRUE(ok(session_.reset_layer(number_).code()));
        forget();
    }
    /// Clears the cache alone.
    void forget() {
        tokens_.clear();
        logical_ = 0;
    }

    mnnkv_status keep(const pair_list& pairs) {
        mnnkv_cache given = cache();
        const mnnkv_status status = session_.keep(number_, pairs.data(), pairs.size() / 2, given).code();
        if (status != MNNKV_OK) {
            EXPECT_EQ(given.kv_len, length()) << "outputs are written only on success";
            return status;
        }
        std::vector<token> kept;
        std::int32_t before = 0;
        for (std::size_t i = 0; i < pairs.size(); i += 2) {
            for (token& t : tokens_) {
                if (pairs[i] <= t.logical && t.logical < pairs[i] + pairs[i + 1]) {
                    kept.push_back(t);
                    kept.back().logical += before - pairs[i];
                }
            }
            before += pairs[i + 1];
        }
        tokens_ = std::move(kept);
        logical_ = static_cast<std::uint32_t>(before);
        EXPECT_EQ(given.kv_len, length());
        return status;
    }

    /// One whole step without scores.
    void step(std::uint32_t count = 1) {
        ASSERT_TRUE(ok(begin()));
        append(count);
        ASSERT_TRUE(ok(end(0, count)));
        EXPECT_TRUE(sound());
    }

    /// One whole step whose heads attend as `weight` says (by logical position).
    void scored_step(const weights& weight, std::uint32_t count = 1, const tiling& how = tiling()) {
        ASSERT_TRUE(ok(begin(count)));
        append(count);
        for (std::uint32_t head = 0; head < 4; ++head) {
            ASSERT_TRUE(ok(score(0, head, weight, how)));
        }
        ASSERT_TRUE(ok(end(4, count)));
        EXPECT_TRUE(sound());
    }

    /// The attention to each token of the cache.
    std::vector<float> attention(const weights& weight) const {
        std::vector<float> row;
        for (const token& t : tokens_) {
            row.push_back(weight(t.logical));
        }
        return row;
    }

    /// The block sums of one head.
    mnnkv_status score(std::uint32_t lane, std::uint32_t head, const weights& weight, const tiling& how = tiling()) {
        std::vector<float> row = attention(weight);
        for (float& each : row) {
            each *= static_cast<float>(1 + head);
        }
        return hand_over(session_, number_, lane, row, opened, how);
    }

    /// Logical positions in physical order, as positions() should have them.
    pair_list positions() const {
        pair_list runs;
        for (const token& t : tokens_) {
            if (!runs.empty() && runs[runs.size() - 2] + runs.back() == t.logical) {
                ++runs.back();
            } else {
                runs.push_back(t.logical);
                runs.push_back(1);
            }
        }
        return runs;
    }
    bool has(std::int32_t logical) const {
        return std::any_of(tokens_.begin(), tokens_.end(), [=](const token& t) { return t.logical == logical; });
    }

    /// The session has the host's lengths and positions.
    testing::AssertionResult booked() const {
        std::uint32_t logical = ~0u, physical = ~0u;
        const mnnkv::status status = session_.lengths(number_, logical, physical);
        if (!status || logical != logical_ || physical != length()) {
            return testing::AssertionFailure() << "layer " << number_ << " has " << physical << " of " << logical
                                               << " tokens; expected " << length() << " of " << logical_ << " "
                                               << status.message();
        }
        const pair_list runs = session_positions();
        if (runs != positions()) {
            return testing::AssertionFailure() << "layer " << number_ << " has " << testing::PrintToString(runs)
                                               << "; expected " << testing::PrintToString(positions());
        }
        return testing::AssertionSuccess();
    }

    std::uint32_t compressed_tokens() const { return released_tokens(0, length()); }

    /// Every token reads as it was written or as zero, bytes of no token have not changed, and the session agrees.
    testing::AssertionResult sound() const { return agrees(holds_all(true)); }
    /// The same, and no token reads as zero.
    testing::AssertionResult whole() const { return agrees(holds_all(false)); }

private:
    testing::AssertionResult agrees(const testing::AssertionResult& held) const { return held ? booked() : held; }

    pair_list session_positions() const {
        std::size_t n = 0;
        // BUFFER_TOO_SMALL, which gives n.
        (void)session_.positions(number_, MNNKV_IN_CACHE, nullptr, 0, n);
        pair_list runs(2 * n);
        EXPECT_TRUE(ok(session_.positions(number_, MNNKV_IN_CACHE, runs.data(), n, n).code()));
        EXPECT_EQ(runs.size(), 2 * n);
        return runs;
    }

    /// After begin: the tokens that positions() names are left, in their order.
    void follow(std::uint32_t kv_len) {
        std::vector<token> kept;
        auto from = tokens_.begin();
        const pair_list runs = session_positions();
        for (std::size_t i = 0; i < runs.size(); i += 2) {
            for (std::int32_t logical = runs[i]; logical < runs[i] + runs[i + 1]; ++logical) {
                from = std::find_if(from, tokens_.end(), [=](const token& t) { return t.logical == logical; });
                ASSERT_NE(from, tokens_.end()) << "token " << logical << " was not in the cache";
                kept.push_back(std::move(*from));
                ++from;
            }
        }
        tokens_ = std::move(kept);
        EXPECT_EQ(kv_len, length());
    }

    mnnkv::session& session_;
    std::uint32_t logical_ = 0;
};

}  // namespace support

#endif  // MNNKV_TESTS_SESSION_HOST_HPP
