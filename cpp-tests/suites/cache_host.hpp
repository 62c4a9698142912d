// A host's packed cache of one layer and, beside it, the expected words of every token. The hosts of session and store
// add their calls.

#ifndef MNNKV_TESTS_CACHE_HOST_HPP
#define MNNKV_TESTS_CACHE_HOST_HPP

#include "packed_model.hpp"

namespace support {

/// Words of new tokens.
enum class content { compressible, noise };

class cache_host {
public:
    std::uint32_t number() const { return number_; }
    std::uint32_t length() const { return static_cast<std::uint32_t>(tokens_.size()); }
    std::uint32_t room() const { return layout().max_tokens - length(); }
    const mnnkv_layout& layout() const { return model_.layout(); }
    const packed_model& model() const { return model_; }
    std::uint8_t* key() { return key_.data(); }
    std::uint8_t* value() { return value_.data(); }

    /// A copy of the whole cache in buffers of another layout, as a host makes it when the cache grows.
    void move_to(const mnnkv_layout& layout) {
        const std::vector<std::uint32_t> all = tokens_from(0, length());
        const rows contents = model_.get(key_.data(), value_.data(), all);
        allocate(layout);
        model_.put(key_.data(), value_.data(), all, contents);
    }

    /// The token reads as zero, which no token of this host is: its words are only in the library.
    bool is_released(std::uint32_t t) const {
        const auto zero = [](std::uint8_t b) { return b == 0; };
        const rows now = model_.get(key_.data(), value_.data(), {t});
        return std::all_of(now.key.begin(), now.key.end(), zero) &&
               std::all_of(now.value.begin(), now.value.end(), zero);
    }
    std::uint32_t released_tokens(std::uint32_t begin, std::uint32_t count) const {
        std::uint32_t released = 0;
        for (std::uint32_t t = begin; t < begin + count; ++t) {
            released += is_released(t) ? 1 : 0;
        }
        return released;
    }

protected:
    struct token {
        rows bits;
        std::int32_t logical = 0;
        /// The library may release it.
        bool releasable = true;
    };

    /// An empty cache; all of its memory is noise.
    cache_host(std::uint32_t number, const mnnkv_layout& layout, dice& random)
        : number_(number), random_(random), model_(layout) {
        allocate(layout);
    }

    /// New words for a token.
    void write(std::uint32_t at, content kind = content::compressible) {
        tokens_[at].bits = {made_up(model_.key_row_bytes(1), kind), made_up(model_.value_row_bytes(1), kind)};
        model_.put(key_.data(), value_.data(), {at}, tokens_[at].bits);
    }

    /// Every token reads as it was written, or, where it is releasable and `may_be_released`, as zero. Bytes of no
    /// token have not changed.
    testing::AssertionResult holds_all(bool may_be_released) const {
        bytes key = key_.contents(), value = value_.contents();
        for (std::uint32_t t = 0; t < length(); ++t) {
            const rows now = model_.get(key.data(), value.data(), {t});
            const token& then = tokens_[t];
            const bool released = may_be_released && then.releasable && is_released(t);
            if (!released && (now.key != then.bits.key || now.value != then.bits.value)) {
                return testing::AssertionFailure()
                       << "token " << t << " of " << length() << " in layer " << number_ << " (logical "
                       << then.logical << ") " << (is_released(t) ? "reads as zero" : "has other bytes");
            }
        }
        model_.zero(key.data(), value.data(), tokens_from(0, layout().max_tokens));
        // holds() also compares the canaries around the buffers.
        if (!key_.holds(key_.contents()) || !value_.holds(value_.contents())) {
            return testing::AssertionFailure() << "bytes outside the buffers were written";
        }
        if (!foreign_.are_in(key, value)) {
            return testing::AssertionFailure() << "bytes that belong to no token were written";
        }
        return testing::AssertionSuccess();
    }

    std::uint32_t number_;
    std::vector<token> tokens_;

private:
    void allocate(const mnnkv_layout& layout) {
        model_ = packed_model(layout);
        key_ = guarded(random_.noise(model_.key_bytes()), 1);
        value_ = guarded(random_.noise(model_.value_bytes()), 3);
        foreign_ = foreign_bytes(model_, key_.contents(), value_.contents());
    }

    /// Never all zero.
    bytes made_up(std::size_t size, content kind) {
        bytes out = random_.noise(size);
        for (std::uint8_t& b : out) {
            b = kind == content::noise ? b : b & 0x11;
        }
        out[0] = static_cast<std::uint8_t>(out[0] | 1);
        return out;
    }

    dice& random_;
    packed_model model_;
    guarded key_{0}, value_{0};
    foreign_bytes foreign_;
};

}  // namespace support

#endif  // MNNKV_TESTS_CACHE_HOST_HPP
