// A host with one layer: packed buffers, and next to them what every token should read as.

#ifndef MNNKV_TESTS_STORE_HOST_HPP
#define MNNKV_TESTS_STORE_HOST_HPP

#include "packed_model.hpp"

namespace support {

/// What new tokens look like.
enum class content { compressible, noise };

class store_host {
public:
    /// An empty cache; all of its memory is noise.
    store_host(mnnkv::store& store, std::uint32_t layer, const mnnkv_layout& layout, dice& random)
        : store_(store), layer_(layer), random_(random), model_(layout) {
        allocate(layout);
    }

    std::uint32_t length() const { return static_cast<std::uint32_t>(tokens_.size()); }
    std::uint32_t room() const { return model_.layout().max_tokens - length(); }
    const mnnkv_layout& layout() const { return model_.layout(); }
    const packed_model& model() const { return model_; }
    std::uint8_t* key() { return key_.data(); }
    std::uint8_t* value() { return value_.data(); }

    void append(std::uint32_t count, content kind = content::compressible) {
        ASSERT_LE(count, room());
        const std::uint32_t begin = length();
        tokens_.resize(begin + count);
        write(begin, count, kind);
    }

    /// New contents for tokens that the store may know, without telling it.
    void write(std::uint32_t begin, std::uint32_t count, content kind = content::compressible) {
        for (std::uint32_t t = begin; t < begin + count; ++t) {
            tokens_[t] = {made_up(model_.key_row_bytes(1), kind), made_up(model_.value_row_bytes(1), kind), false};
            model_.put(key_.data(), value_.data(), {t}, {tokens_[t].key, tokens_[t].value});
        }
    }

    /// A copy in a cache of another layout, as a host makes it when the cache grows.
    void move_to(const mnnkv_layout& layout) {
        const std::vector<std::uint32_t> all = tokens_from(0, length());
        const rows contents = model_.get(key_.data(), value_.data(), all);
        allocate(layout);
        model_.put(key_.data(), value_.data(), all, contents);
    }

    mnnkv_status submit(std::uint32_t begin, std::uint32_t count, std::uint64_t* ticket = nullptr) {
        const mnnkv::status status =
            store_.submit(layer_, layout(), key_.data(), value_.data(), begin, count, ticket);
        for (std::uint32_t t = begin; status && t < begin + count; ++t) {
            tokens_[t].submitted = true;
        }
        return status.code();
    }

    mnnkv_status commit(std::uint64_t* released = nullptr) {
        return store_.commit(layer_, layout(), key_.data(), value_.data(), released).code();
    }

    mnnkv_status restore(std::uint64_t* restored = nullptr) {
        return store_.restore(layer_, layout(), key_.data(), value_.data(), restored).code();
    }

    /// Evicts with the library and tells the store. Pairs are relative to base.
    void compact(std::uint32_t base, const std::vector<std::int32_t>& pairs) {
        std::uint32_t new_len = 0;
        ASSERT_TRUE(ok(mnnkv_kv_compact(&layout(), key_.data(), value_.data(), base, pairs.data(), pairs.size() / 2,
                                        length(), &new_len)));
        std::vector<std::int32_t> absolute = {0, static_cast<std::int32_t>(base)};
        std::vector<token> kept(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(base));
        for (std::size_t i = 0; i < pairs.size(); i += 2) {
            absolute.push_back(pairs[i] + static_cast<std::int32_t>(base));
            absolute.push_back(pairs[i + 1]);
            const auto from = tokens_.begin() + static_cast<std::ptrdiff_t>(base) + pairs[i];
            kept.insert(kept.end(), from, from + pairs[i + 1]);
        }
        ASSERT_TRUE(ok(store_.compacted(layer_, absolute.data(), absolute.size() / 2).code()));
        tokens_ = std::move(kept);
        ASSERT_EQ(new_len, length());
    }

    void truncate(std::uint32_t kv_len) {
        ASSERT_TRUE(ok(store_.truncated(layer_, kv_len).code()));
        tokens_.resize(std::min(kv_len, length()));
    }

    /// Whether a token's bytes are only in the store: it reads as zero, which no token of this host is.
    bool is_released(std::uint32_t t) const {
        const rows now = model_.get(key_.data(), value_.data(), {t});
        return all_zero(now.key) && all_zero(now.value);
    }

    /// Whether the store may have something for these tokens.
    bool any_submitted(std::uint32_t begin, std::uint32_t count) const {
        return std::any_of(tokens_.begin() + begin, tokens_.begin() + begin + count,
                           [](const token& t) { return t.submitted; });
    }

    bool any_released(std::uint32_t begin, std::uint32_t count) const {
        bool any = false;
        for (std::uint32_t t = begin; t < begin + count; ++t) {
            any = any || is_released(t);
        }
        return any;
    }

    std::uint64_t released_raw_bytes() const {
        std::uint64_t sum = 0;
        for (std::uint32_t t = 0; t < length(); ++t) {
            sum += is_released(t) ? model_.token_bytes() : 0;
        }
        return sum;
    }

    /// Every token reads as what was written to it or, if it was submitted since, as zero. Bytes of no token have not changed.
    testing::AssertionResult sound() const {
        bytes key = key_.contents(), value = value_.contents();
        for (std::uint32_t t = 0; t < length(); ++t) {
            const rows now = model_.get(key.data(), value.data(), {t});
            const bool released = tokens_[t].submitted && all_zero(now.key) && all_zero(now.value);
            if (!released && (now.key != tokens_[t].key || now.value != tokens_[t].value)) {
                return testing::AssertionFailure() << "token " << t << " of " << length() << " in layer " << layer_
                                                   << " has other bytes than were written";
            }
        }
        model_.zero(key.data(), value.data(), tokens_from(0, layout().max_tokens));
        // holds() also looks at the canaries around the buffers.
        if (!key_.holds(key_.contents()) || !value_.holds(value_.contents())) {
            return testing::AssertionFailure() << "bytes outside the buffers were written";
        }
        if (!foreign_.are_in(key, value)) {
            return testing::AssertionFailure() << "bytes that belong to no token were written";
        }
        return testing::AssertionSuccess();
    }

    /// Sound, and nothing is released.
    testing::AssertionResult whole() const {
        if (any_released(0, length())) {
            return testing::AssertionFailure() << "a token of layer " << layer_ << " reads as zero";
        }
        return sound();
    }

private:
    struct token {
        bytes key, value;
        /// Whether a commit may release it.
        bool submitted = false;
    };

    void allocate(const mnnkv_layout& layout) {
        model_ = packed_model(layout);
        key_ = guarded(random_.noise(model_.key_bytes()), 1);
        value_ = guarded(random_.noise(model_.value_bytes()), 1);
        foreign_ = foreign_bytes(model_, key_.contents(), value_.contents());
    }

    bytes made_up(std::size_t size, content kind) {
        bytes out = random_.noise(size);
        for (std::uint8_t& b : out) {
            b = kind == content::noise ? b : b & 0x11;
        }
        out[0] = static_cast<std::uint8_t>(out[0] | 1);  // never all zero, so a released token can be told
        return out;
    }

    static bool all_zero(const bytes& row) {
        return std::all_of(row.begin(), row.end(), [](std::uint8_t b) { return b == 0; });
    }

    mnnkv::store& store_;
    std::uint32_t layer_;
    dice& random_;
    packed_model model_;
    guarded key_{0}, value_{0};
    foreign_bytes foreign_;
    std::vector<token> tokens_;
};

/// The counters; a failure to read them fails the test.
inline mnnkv_store_statistics stats_of(const mnnkv::store& store) {
    mnnkv_store_statistics stats = mnnkv::make<mnnkv_store_statistics>();
    EXPECT_TRUE(ok(store.stats(stats).code()));
    return stats;
}

}  // namespace support

#endif  // MNNKV_TESTS_STORE_HOST_HPP
