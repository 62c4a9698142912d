// A host that makes a store's calls for one layer.

#ifndef MNNKV_TESTS_STORE_HOST_HPP
#define MNNKV_TESTS_STORE_HOST_HPP

#include "cache_host.hpp"

namespace support {

class store_host : public cache_host {
public:
    store_host(mnnkv::store& store, std::uint32_t layer, const mnnkv_layout& layout, dice& random)
        : cache_host(layer, layout, random), store_(store) {}

    void append(std::uint32_t count, content kind = content::compressible) {
        ASSERT_LE(count, room());
        const std::uint32_t begin = length();
        tokens_.resize(begin + count);
        write(begin, count, kind);
    }

    /// New words for tokens, without a report to the store.
    void write(std::uint32_t begin, std::uint32_t count, content kind = content::compressible) {
        for (std::uint32_t t = begin; t < begin + count; ++t) {
            tokens_[t].releasable = false;
            cache_host::write(t, kind);
        }
    }

    mnnkv_status submit(std::uint32_t begin, std::uint32_t count, std::uint64_t* ticket = nullptr) {
        const mnnkv::status status = store_.submit(number_, layout(), key(), value(), begin, count, ticket);
        for (std::uint32_t t = begin; status && t < begin + count; ++t) {
            tokens_[t].releasable = true;
        }
        return status.code();
    }

    mnnkv_status commit(std::uint64_t* released = nullptr) {
        return store_.commit(number_, layout(), key(), value(), released).code();
    }

    mnnkv_status restore(std::uint64_t* restored = nullptr) {
        return store_.restore(number_, layout(), key(), value(), restored).code();
    }

    /// Evicts by the library and calls mnnkv_store_compacted. Pairs are relative to base.
    void compact(std::uint32_t base, const std::vector<std::int32_t>& pairs) {
        std::uint32_t new_len = 0;
        ASSERT_TRUE(ok(mnnkv_kv_compact(&layout(), key(), value(), base, pairs.data(), pairs.size() / 2,
                                        length(), &new_len)));
        std::vector<std::int32_t> absolute = {0, static_cast<std::int32_t>(base)};
        std::vector<token> kept(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(base));
        for (std::size_t i = 0; i < pairs.size(); i += 2) {
            absolute.push_back(pairs[i] + static_cast<std::int32_t>(base));
            absolute.push_back(pairs[i + 1]);
            const auto from = tokens_.begin() + static_cast<std::ptrdiff_t>(base) + pairs[i];
            kept.insert(kept.end(), from, from + pairs[i + 1]);
        }
        ASSERT_TRUE(ok(store_.compacted(number_, absolute.data(), absolute.size() / 2).code()));
        tokens_ = std::move(kept);
        ASSERT_EQ(new_len, length());
    }

    void truncate(std::uint32_t kv_len) {
        const std::int32_t pair[] = {0, static_cast<std::int32_t>(kv_len)};
        ASSERT_TRUE(ok(store_.compacted(number_, pair, 1).code()));
        tokens_.resize(std::min(kv_len, length()));
    }

    /// The store may hold some of these tokens.
    bool any_submitted(std::uint32_t begin, std::uint32_t count) const {
        return std::any_of(tokens_.begin() + begin, tokens_.begin() + begin + count,
                           [](const token& t) { return t.releasable; });
    }
    bool any_released(std::uint32_t begin, std::uint32_t count) const { return released_tokens(begin, count) > 0; }
    std::uint64_t released_raw_bytes() const { return released_tokens(0, length()) * model().token_bytes(); }

    testing::AssertionResult sound() const { return holds_all(true); }
    /// Sound, and nothing is released.
    testing::AssertionResult whole() const { return holds_all(false); }

private:
    mnnkv::store& store_;
};

/// The counters; a failure to read them fails the test.
inline mnnkv_store_statistics stats_of(const mnnkv::store& store) {
    mnnkv_store_statistics stats = mnnkv::make<mnnkv_store_statistics>();
    EXPECT_TRUE(ok(store.stats(stats).code()));
    return stats;
}

}  // namespace support

#endif  // MNNKV_TESTS_STORE_HOST_HPP
