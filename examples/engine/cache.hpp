// The KV cache of one layer, packed in the engine's own way, and attention over it. Elements are bf16.

#ifndef ENGINE_CACHE_HPP
#define ENGINE_CACHE_HPP

#include "model.hpp"

#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

#if STEP >= 1
#include <mnnkv.hpp>
#endif

namespace engine {

using Word = std::uint16_t;  // a bf16: the upper half of a float

inline float widen(Word word) {
    const std::uint32_t bits = std::uint32_t(word) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline Word narrow(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return static_cast<Word>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// Pages from the system, all zero.
class Pages {
public:
    explicit Pages(std::size_t bytes) : bytes_(bytes), data_(nullptr) {
        if (bytes > 0) {
            data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            data_ = data_ == MAP_FAILED ? nullptr : data_;
        }
    }
    ~Pages() {
        if (data_ != nullptr) {
            ::munmap(data_, bytes_);
        }
    }
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;
    void swap(Pages& other) {
        std::swap(bytes_, other.bytes_);
        std::swap(data_, other.data_);
    }

    Word* words() const { return static_cast<Word*>(data_); }
    bool empty() const { return data_ == nullptr; }

    /// Bytes that are in memory.
    std::size_t resident() const {
        if (empty()) {
            return 0;
        }
#ifdef __linux__
        const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
        std::vector<unsigned char> in_memory((bytes_ + page - 1) / page);
        if (::mincore(data_, bytes_, in_memory.data()) == 0) {
            std::size_t pages = 0;
            for (const unsigned char flags : in_memory) {
                pages += flags & 1;
            }
            return pages * page;
        }
#endif
        return bytes_;
    }

private:
    std::size_t bytes_;
    void* data_;
};

class Cache {
public:
    /// Tokens in the cache.
    std::uint32_t length = 0;

    Cache() : key_(0), value_(0) {}

    /// Makes room for so many tokens. False: out of memory.
    bool reserve(std::uint32_t tokens) {
        if (tokens <= capacity_) {
            return true;
        }
        Cache larger;
        larger.capacity_ = std::max(64u, capacity_);
        while (larger.capacity_ < tokens) {
            larger.capacity_ *= 2;
        }
        const std::size_t bytes = std::size_t(kv_heads) * larger.capacity_ * dims * sizeof(Word);
        Pages(bytes).swap(larger.key_);
        Pages(bytes).swap(larger.value_);
        if (larger.key_.empty() || larger.value_.empty()) {
            return false;
        }
        const std::uint32_t old = key_.empty() ? 0 : (length + 3) / 4 * 4;  // whole packs of K
        for (std::uint32_t head = 0; head < kv_heads && old > 0; ++head) {
            std::memcpy(larger.key(head), key(head), std::size_t(old) * dims * sizeof(Word));
            std::memcpy(larger.value(head), value(head), std::size_t(old) * dims * sizeof(Word));
        }
        key_.swap(larger.key_);
        value_.swap(larger.value_);
        capacity_ = larger.capacity_;
        return true;
    }

    /// Frees the memory. The length stays.
    void release() {
        Pages(0).swap(key_);
        Pages(0).swap(value_);
        capacity_ = 0;
    }

    std::size_t resident() const { return key_.resident() + value_.resident(); }

    /// K [token / 4][dim][4] of a head: four tokens fill a vector.
    Word* key(std::uint32_t head) const { return key_.words() + std::size_t(head) * capacity_ * dims; }
    /// V [token][dim] of a head.
    Word* value(std::uint32_t head) const { return value_.words() + std::size_t(head) * capacity_ * dims; }
    Word& key_at(std::uint32_t head, std::uint32_t t, std::uint32_t d) const {
        return key(head)[(t / 4 * dims + d) * 4 + t % 4];
    }
    Word& value_at(std::uint32_t head, std::uint32_t t, std::uint32_t d) const { return value(head)[t * dims + d]; }

    /// Adds a token; k and v are [head][dim].
    void append(const float* k, const float* v) {
        for (std::uint32_t i = 0; i < kv_heads * dims; ++i) {
            key_at(i / dims, length, i % dims) = narrow(k[i]);
            value_at(i / dims, length, i % dims) = narrow(v[i]);
        }
        ++length;
    }

    /// Removes tokens; those after them move down.
    void erase(std::uint32_t first, std::uint32_t count) {
        for (std::uint32_t t = first; t + count < length; ++t) {
            for (std::uint32_t i = 0; i < kv_heads * dims; ++i) {
                key_at(i / dims, t, i % dims) = key_at(i / dims, t + count, i % dims);
                value_at(i / dims, t, i % dims) = value_at(i / dims, t + count, i % dims);
            }
        }
        length -= count;
    }

#if STEP >= 1
    // Cache: the same memory, in the words of mnn-kv.
    mnnkv_cache view() {
        layout_ = mnnkv::make<mnnkv_layout>();
        layout_.key_dtype = layout_.value_dtype = MNNKV_DTYPE_BF16;
        layout_.kv_heads = kv_heads;
        layout_.head_dim = dims;
        layout_.l_pack = 1;       // K: a dim of one token
        layout_.h_pack = 4;       // lies beside that of the next three
        layout_.flash_block = 1;  // V: one token after the other
        layout_.max_tokens = capacity_;
        mnnkv_cache cache = mnnkv::make<mnnkv_cache>();
        cache.kv_len = length;
        if (capacity_ > 0) {
            cache.layout = &layout_;
            cache.key = key_.words();
            cache.value = value_.words();
        }
        return cache;
    }
#endif

private:
    std::uint32_t capacity_ = 0;
    Pages key_, value_;
#if STEP >= 1
    mnnkv_layout layout_;
#endif
};

/// Attention of one query row to the first `tokens` tokens of a head: p gets the softmax values, out the mean of V.
inline void attend(const Word* key, const Word* value, const float* q, std::uint32_t tokens, float* p, float* out) {
    float most = -INFINITY, sum = 0;
    for (std::uint32_t t = 0; t < tokens; t += 4) {
        float logit[4] = {};
        for (std::uint32_t d = 0; d < dims; ++d) {
            for (std::uint32_t i = 0; i < 4; ++i) {
                logit[i] += q[d] * widen(key[(t / 4 * dims + d) * 4 + i]);
            }
        }
        for (std::uint32_t i = 0; i < 4 && t + i < tokens; ++i) {
            p[t + i] = logit[i] / std::sqrt(static_cast<float>(dims));
            most = std::max(most, p[t + i]);
        }
    }
    for (std::uint32_t t = 0; t < tokens; ++t) {
        sum += p[t] = std::exp(p[t] - most);
    }
    std::fill(out, out + dims, 0.0f);
    for (std::uint32_t t = 0; t < tokens; ++t) {
        p[t] /= sum;
        for (std::uint32_t d = 0; d < dims; ++d) {
            out[d] += p[t] * widen(value[t * dims + d]);
        }
    }
}

}  // namespace engine

#endif
