// The stand-in's CPUKVCacheManager: K and V of one layer in MNN's packing and element types, with MNN's appends, growth
// and defects. Members that the adapter uses have MNN's names.

#ifndef MNNKV_TESTS_STUB_CACHE_HPP
#define MNNKV_TESTS_STUB_CACHE_HPP

#include "../oracle/packing.hpp"
#include "../oracle/quantised.hpp"
#include "kv_plugin.hpp"
#include "stub_host.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>

namespace mnn_stub {

/// Tokens per tile, and per block of V, of flash attention.
const int flash_block = 64;
/// The same of INT8 V.
const std::size_t block_tokens = oracle::int8_values::block_tokens;

inline std::size_t index_of(int i) { return static_cast<std::size_t>(i); }

enum kind { query, key, value };

/// Whole 64ths between -1 and 1, which every element type holds exactly. Queries are larger, which makes attention
/// uneven.
inline float made_up(kind what, int layer, int head, int dim, const token& of) {
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

/// Calls body(thread, head) for every head, in that many threads: each has a run of heads.
template <class Body>
void share_heads(int heads, int threads, Body body) {
    const int share = (heads + threads - 1) / threads;
    const auto work = [&](int thread) {
        for (int head = thread * share; head < std::min(heads, (thread + 1) * share); ++head) {
            body(thread, head);
        }
    };
    std::vector<std::thread> others;
    for (int thread = 1; thread < threads; ++thread) {
        others.emplace_back(work, thread);
    }
    work(0);
    for (std::thread& other : others) {
        other.join();
    }
}

class cache_manager {
public:
    explicit cache_manager(const settings& how)
        : how_(how), mBytes(how.element_bytes), mKvNumHead(how.kv_heads), mHeadDim(how.head_dim), eP(how.e_pack),
          lP(how.l_pack), hP(how.h_pack), lP8(how.l_pack_8), hP8(how.h_pack_8),
          mKeyQuantMode(static_cast<oracle::quant>(how.key_quant_mode)),
          mValueQuantMode(static_cast<oracle::quant>(how.value_quant_mode)), mUseFlashAttention(how.flash),
          packing_(mnnkv_layout()), int8_keys_(index_of(mHeadDim), index_of(lP8), index_of(hP8)),
          int8_values_(index_of(mHeadDim), index_of(lP8), index_of(hP8)),
          turbo_keys_(mKeyQuantMode, index_of(mHeadDim)),
          turbo_values_(mValueQuantMode, index_of(mHeadDim)) {}

    int length() const { return mPastLength; }
    int capacity() const { return mMaxLength; }
    int chunk() const { return mConfig.mExpandChunk; }

    void onClear() {
        for (std::vector<std::uint8_t>* buffer : {&keys_, &values_, &mKeyMax}) {
            buffer->clear();
        }
        mKeySum.clear();
        mValueSum.clear();
        mPastLength = mMaxLength = 0;
        mKVCacheInDisk = false;
    }

    void onAlloc(const MNN::KVMeta* meta, int tokens) {
        const bool is_prefix = !meta->file_name.empty() && meta->file_flag != MNN::KVMeta::NoChange;
        resize(tokens + mConfig.mExpandChunk);
        mKVCacheInDisk = how_.mapped || is_prefix;
        fresh_buffers();
        mKeyMax.resize(is_int8(mKeyQuantMode) ? index_of(mKvNumHead * mHeadDim * mBytes) : 0);
        for (std::size_t at = 0; at < mKeyMax.size(); at += index_of(mBytes)) {
            store(&mKeyMax[at], mBytes == 2 ? -65504.0f : std::numeric_limits<float>::lowest(), mBytes);
        }
    }

    /// Grows, drops, moves reserved ranges; of a quantised cache MNN drops these, too.
    void reallocate(const MNN::KVMeta& meta) {
        const std::size_t need = meta.previous + meta.add - meta.remove + meta.reserved();
        if (need > index_of(mMaxLength)) {
            grow(static_cast<int>(need) + mConfig.mExpandChunk);
        }
        const int start = mPastLength - static_cast<int>(meta.remove);
        mPastLength = start;
        for (int n = 0; n < meta.n_reserve && !is_quantised(); ++n) {
            for (int i = 0; i < meta.reserve[2 * n + 1]; ++i) {
                move(start + meta.reserve[2 * n] + i, mPastLength++);
            }
        }
    }

    /// Appends tokens; returns what they are coded to.
    rows append(int layer, const std::vector<token>& tokens) {
        rows come, coded;
        for (const token& of : tokens) {
            const rows row = rows_of(how_, layer, of);
            come.keys.insert(come.keys.end(), row.keys.begin(), row.keys.end());
            come.values.insert(come.values.end(), row.values.begin(), row.values.end());
        }
        prepare_int8(come, tokens.size());
        for (std::size_t at = 0; at < come.keys.size(); at += index_of(mKvNumHead * mHeadDim)) {
            write_token(&come.keys[at], &come.values[at]);
            // V was coded by the scales of the first block.
            read_token(index_of(mPastLength++), 0, coded);
        }
        return coded;
    }

    /// All tokens as attention reads them.
    rows read() {
        rows all;
        for (std::size_t t = 0; t < index_of(mPastLength); ++t) {
            read_token(t, t / block_tokens, all);
        }
        return all;
    }

    /// Adds to `out` the product of probabilities with the tokens of INT8 V from `begin` on.
    void multiply(int head, int begin, const std::vector<float>& probabilities, std::size_t padded, float* out) {
        int8_values_.multiply(value_head(head), index_of(begin) / block_tokens, probabilities.data(),
                              probabilities.size(), padded, value_sums(head), out);
    }

    /// INT8 V: what is not as if just the tokens of the cache had been appended; "" if all is.
    std::string wrong_sums() {
        const std::size_t length = index_of(mPastLength), blocks = int8_values_.blocks(index_of(mMaxLength));
        for (int i = 0; is_int8(mValueQuantMode) && i < mKvNumHead * mHeadDim; ++i) {
            const std::uint8_t* const head = value_head(i / mHeadDim);
            const float* const sums = value_sums(i / mHeadDim);
            const std::size_t dim = index_of(i % mHeadDim);
            const std::string place = " of head " + std::to_string(i / mHeadDim) + ", dim " + std::to_string(dim);
            for (std::size_t block = 0, left = length; block < blocks; left -= std::min(left, block_tokens), ++block) {
                if (sums[block * int8_values_.sums_of_block() + dim] !=
                    int8_values_.sum(head, block, dim, std::min(left, block_tokens))) {
                    return "the sum of block " + std::to_string(block) + place;
                }
            }
            for (std::size_t t = length; t % block_tokens != 0; ++t) {
                if (head[int8_values_.code(t, dim)] != 0) {
                    return "the code of token " + std::to_string(t) + place;
                }
            }
        }
        return std::string();
    }

    std::vector<std::uint8_t> buffers() const {
        std::vector<std::uint8_t> both = keys_;
        both.insert(both.end(), values_.begin(), values_.end());
        return both;
    }

private:
    friend class kv_plugin::layer;
    // Declared first and destroyed last, after the buffers, as in MNN.
    std::shared_ptr<kv_plugin::layer> plugin;

    settings how_;
    struct {
        int mExpandChunk = 64;
    } mConfig;
    bool mKVCacheInDisk = false;
    int mPastLength = 0, mMaxLength = 0;
    int mBytes, mKvNumHead, mHeadDim;
    int eP, lP, hP, lP8, hP8;
    std::size_t mFlashAttentionUpperKv = 0, mCurrentKeySizePerHead = 0, mCurrentValueSizePerHead = 0;
    oracle::quant mKeyQuantMode, mValueQuantMode;
    bool mUseFlashAttention;
    oracle::packing packing_;
    oracle::int8_keys int8_keys_;
    oracle::int8_values int8_values_;
    oracle::turbo turbo_keys_, turbo_values_;
    std::vector<std::uint8_t> keys_, values_, mKeyMax;
    std::vector<float> mKeySum, mValueSum;

    std::uint8_t* keyAddr() { return keys_.data(); }
    std::uint8_t* valudAddr() { return values_.data(); }
    std::int8_t* addrOfKeySum(int head) { return beside(mKeyQuantMode, mKeySum, key_sums(head)); }
    std::int8_t* addrOfValueSum(int head) { return beside(mValueQuantMode, mValueSum, value_sums(head)); }
    std::int8_t* addrOfKeyMax(int head) { return beside(mKeyQuantMode, mKeyMax, center_at(head, 0)); }

    /// NULL where a mode has no such array. A crash between clear and allocate, as in MNN.
    template <class Array, class Pointer>
    static std::int8_t* beside(oracle::quant mode, const Array& array, Pointer at) {
        if (mode != oracle::quant::int8) {
            return nullptr;
        }
        if (array.empty()) {
            std::abort();
        }
        return static_cast<std::int8_t*>(static_cast<void*>(at));
    }

    static bool is_float(oracle::quant mode) { return mode == oracle::quant::none; }
    static bool is_int8(oracle::quant mode) { return mode == oracle::quant::int8; }
    bool is_quantised() const { return !is_float(mKeyQuantMode) || !is_float(mValueQuantMode); }

    std::uint8_t* key_head(int head) { return keys_.data() + index_of(head) * mCurrentKeySizePerHead; }
    std::uint8_t* value_head(int head) { return values_.data() + index_of(head) * mCurrentValueSizePerHead; }
    std::size_t key_sums_of_head() const { return oracle::round_up(index_of(mMaxLength), index_of(hP8)); }
    std::size_t value_sums_of_head() const {
        return int8_values_.blocks(index_of(mMaxLength)) * int8_values_.sums_of_block();
    }
    float* key_sums(int head) { return mKeySum.data() + index_of(head) * key_sums_of_head(); }
    float* value_sums(int head) { return mValueSum.data() + index_of(head) * value_sums_of_head(); }
    std::uint8_t* center_at(int head, int dim) { return mKeyMax.data() + index_of((head * mHeadDim + dim) * mBytes); }

    void resize(int tokens) {
        const auto u32 = [](int i) { return static_cast<std::uint32_t>(i); };
        mMaxLength = tokens;
        mFlashAttentionUpperKv = index_of(mUseFlashAttention ? flash_block : tokens);
        const oracle::pack_mode packs = {"", 0, u32(eP), u32(lP), u32(hP)};  // sizes in elements: no dtype
        packing_ = oracle::packing(oracle::make_layout(packs, u32(mKvNumHead), u32(mHeadDim), u32(tokens),
                                                       u32(mUseFlashAttention ? flash_block : tokens)));
        const std::size_t max = index_of(tokens), bytes = index_of(mBytes);
        mCurrentKeySizePerHead = is_float(mKeyQuantMode)  ? packing_.key_head() * bytes
                                 : is_int8(mKeyQuantMode) ? int8_keys_.head_bytes(max)
                                                          : turbo_keys_.head_bytes(max);
        mCurrentValueSizePerHead = is_float(mValueQuantMode)  ? packing_.value_head() * bytes
                                   : is_int8(mValueQuantMode) ? int8_values_.head_bytes(max)
                                                              : turbo_values_.head_bytes(max);
    }

    /// Buffers of the present size. Memory holds anything where MNN does not zero it: floats without padding that takes
    /// part in products, and key sums.
    void fresh_buffers() {
        const bool zero_keys = mHeadDim % lP != 0 || !is_float(mKeyQuantMode);
        const bool zero_values = lP > 1 || !is_float(mValueQuantMode);
        keys_.assign(mCurrentKeySizePerHead * index_of(mKvNumHead), zero_keys ? 0 : 0xFF);
        values_.assign(mCurrentValueSizePerHead * index_of(mKvNumHead), zero_values ? 0 : 0xFF);
        if (is_int8(mKeyQuantMode)) {
            mKeySum.assign(index_of(mKvNumHead) * key_sums_of_head(), std::numeric_limits<float>::quiet_NaN());
        }
        if (is_int8(mValueQuantMode)) {
            mValueSum.assign(index_of(mKvNumHead) * value_sums_of_head(), 0.0f);
        }
    }

    void grow(int tokens) {
        cache_manager old(*this);
        resize(tokens);
        fresh_buffers();
        for (int head = 0; head < mKvNumHead; ++head) {
            std::memcpy(key_head(head), old.key_head(head), old.mCurrentKeySizePerHead);
            if (is_int8(mKeyQuantMode)) {
                std::copy_n(old.key_sums(head), old.key_sums_of_head(), key_sums(head));
            }
            if (is_int8(mValueQuantMode)) {
                std::copy_n(old.value_sums(head), old.value_sums_of_head(), value_sums(head));
            }
            if (mUseFlashAttention || !is_float(mValueQuantMode)) {
                std::memcpy(value_head(head), old.value_head(head), old.mCurrentValueSizePerHead);
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

    /// INT8 before an append: several tokens raise the centre of K; the first append sets the scales of V, and one that
    /// starts with a block copies them to all blocks.
    void prepare_int8(const rows& come, std::size_t count) {
        const std::size_t stride = index_of(mKvNumHead * mHeadDim);
        for (std::size_t i = 0; is_int8(mKeyQuantMode) && count > 1 && i < count * stride; ++i) {
            const int head = static_cast<int>(i % stride) / mHeadDim, dim = static_cast<int>(i % stride) % mHeadDim;
            store(center_at(head, dim), std::max(load(center_at(head, dim), mBytes), come.keys[i]), mBytes);
        }
        for (int head = 0; is_int8(mValueQuantMode) && head < mKvNumHead; ++head) {
            if (mPastLength == 0) {
                int8_values_.set_scales(value_head(head), &come.values[index_of(head * mHeadDim)], count, stride);
            }
            if (index_of(mPastLength) % block_tokens == 0) {
                for (std::size_t block = 1; block < int8_values_.blocks(index_of(mMaxLength)); ++block) {
                    int8_values_.copy_scales(value_head(head), block);
                }
            }
        }
    }

    /// [head][dim]
    void write_token(const float* key, const float* value) {
        const std::size_t t = index_of(mPastLength);
        std::vector<float> centred(index_of(mHeadDim));
        for (int head = 0; head < mKvNumHead; ++head, key += mHeadDim, value += mHeadDim) {
            for (int dim = 0; is_float(mKeyQuantMode) && dim < mHeadDim; ++dim) {
                store(key_at(head, mPastLength, dim), key[dim], mBytes);
            }
            for (int dim = 0; is_float(mValueQuantMode) && dim < mHeadDim; ++dim) {
                store(value_at(head, mPastLength, dim), value[dim], mBytes);
            }
            if (is_int8(mKeyQuantMode)) {
                for (int dim = 0; dim < mHeadDim; ++dim) {
                    centred[index_of(dim)] = key[dim] - load(center_at(head, dim), mBytes);
                }
                key_sums(head)[t] = int8_keys_.write(key_head(head), t, centred.data());
            } else if (!is_float(mKeyQuantMode)) {
                turbo_keys_.write(key_head(head), t, key);
            }
            if (is_int8(mValueQuantMode)) {
                int8_values_.write(value_head(head), t, value, value_sums(head));
            } else if (!is_float(mValueQuantMode)) {
                turbo_values_.write(value_head(head), t, value);
            }
        }
    }

    /// A copy of one head.
    /// Adds a token to `to`, INT8 V by the scales of a block.
    void read_token(std::size_t t, std::size_t scale_block, rows& to) {
        std::vector<float> key(index_of(mHeadDim)), value(key);
        for (int head = 0; head < mKvNumHead; ++head) {
            for (std::size_t dim = 0; is_float(mKeyQuantMode) && dim < key.size(); ++dim) {
                key[dim] = load(key_head(head) + packing_.key_index(t, dim) * index_of(mBytes), mBytes);
            }
            for (std::size_t dim = 0; is_float(mValueQuantMode) && dim < value.size(); ++dim) {
                value[dim] = load(value_head(head) + packing_.value_index(t, dim) * index_of(mBytes), mBytes);
            }
            if (is_int8(mKeyQuantMode)) {
                int8_keys_.read(key_head(head), t, key.data());
                to.key_sums.push_back(key_sums(head)[t]);
            } else if (!is_float(mKeyQuantMode)) {
                turbo_keys_.read(key_head(head), t, key.data());
            }
            if (is_int8(mValueQuantMode)) {
                int8_values_.read(value_head(head), t, scale_block, value.data());
            } else if (!is_float(mValueQuantMode)) {
                turbo_values_.read(value_head(head), t, value.data());
            }
            to.keys.insert(to.keys.end(), key.begin(), key.end());
            to.values.insert(to.values.end(), value.begin(), value.end());
        }
    }

    std::uint8_t* key_at(int head, int token, int dim) {
        return key_head(head) + packing_.key_index(index_of(token), index_of(dim)) * index_of(mBytes);
    }

    std::uint8_t* value_at(int head, int token, int dim) {
        return value_head(head) + packing_.value_index(index_of(token), index_of(dim)) * index_of(mBytes);
    }
};

}  // namespace mnn_stub

#endif  // MNNKV_TESTS_STUB_CACHE_HPP
