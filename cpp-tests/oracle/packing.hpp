// MNN's packed K and V, element by element, from MNN's own formulas: the one oracle of suites, demo, benchmarks and the
// MNN stub. Independent of the library, which it judges.

#ifndef MNNKV_TESTS_ORACLE_PACKING_HPP
#define MNNKV_TESTS_ORACLE_PACKING_HPP

#include <mnnkv.hpp>

#include <cstddef>
#include <cstdint>

namespace oracle {

/// How one of MNN's CPU backends packs.
struct pack_mode {
    const char* name;
    std::uint32_t dtype, e_pack, l_pack, h_pack;
};

const pack_mode pack_modes[] = {
    {"x86_sse", MNNKV_DTYPE_F32, 12, 1, 4},          {"x86_avx2", MNNKV_DTYPE_F32, 24, 1, 4},
    {"x86_avx512", MNNKV_DTYPE_F32, 48, 1, 8},       {"x86_bf16", MNNKV_DTYPE_BF16, 3, 8, 4},
    {"generic_c", MNNKV_DTYPE_F32, 16, 1, 4},        {"arm64_f32", MNNKV_DTYPE_F32, 12, 1, 8},
    {"arm32_f32", MNNKV_DTYPE_F32, 12, 1, 4},        {"arm64_fp16", MNNKV_DTYPE_F16, 12, 1, 16},
    {"arm32_fp16", MNNKV_DTYPE_F16, 12, 1, 8},       {"arm64_bf16", MNNKV_DTYPE_BF16, 12, 1, 8},
    {"arm32_bf16", MNNKV_DTYPE_BF16, 12, 1, 4},      {"armv86_bf16_64", MNNKV_DTYPE_BF16, 12, 4, 8},
    {"armv86_bf16_32", MNNKV_DTYPE_BF16, 12, 4, 4},  {"sme2_f32", MNNKV_DTYPE_F32, 16, 1, 64},
    {"sme2_f16", MNNKV_DTYPE_F16, 16, 2, 64},
};

inline mnnkv_layout make_layout(const pack_mode& mode, std::uint32_t kv_heads, std::uint32_t head_dim,
                                std::uint32_t max_tokens, std::uint32_t flash_block) {
    mnnkv_layout layout = mnnkv::make<mnnkv_layout>();
    layout.key_dtype = layout.value_dtype = mode.dtype;
    layout.kv_heads = kv_heads;
    layout.head_dim = head_dim;
    layout.e_pack = mode.e_pack;
    layout.l_pack = mode.l_pack;
    layout.h_pack = mode.h_pack;
    layout.flash_block = flash_block;
    layout.max_tokens = max_tokens;
    return layout;
}

inline std::size_t up(std::size_t a, std::size_t b) { return a / b + (a % b != 0 ? 1 : 0); }
inline std::size_t round_up(std::size_t a, std::size_t b) { return up(a, b) * b; }

/// Places and sizes of a layout without token strides. Heads lie side by side, or apart by the layout's head strides.
class packing {
public:
    explicit packing(const mnnkv_layout& layout)
        : layout_(layout), D(layout.head_dim), lP(layout.l_pack), hP(layout.h_pack), F(layout.flash_block) {}

    const mnnkv_layout& layout() const { return layout_; }

    /// [max/hP][D/lP][hP][lP], in elements within a head.
    std::size_t key_index(std::size_t t, std::size_t d) const {
        return (t / hP) * round_up(D, lP) * hP + (d / lP) * hP * lP + (t % hP) * lP + d % lP;
    }

    /// [max/F][D/hP][F/lP][hP][lP], in elements within a head.
    std::size_t value_index(std::size_t t, std::size_t d) const {
        const std::size_t s1 = up(F, lP) * hP * lP, s0 = s1 * up(D, hP), u = t % F;
        return (t / F) * s0 + (d / hP) * s1 + (u / lP) * hP * lP + (d % hP) * lP + u % lP;
    }

    /// Elements of a head.
    std::size_t key_head() const { return round_up(layout_.max_tokens, hP) * round_up(D, lP); }
    std::size_t value_head() const { return up(layout_.max_tokens, F) * round_up(D, hP) * round_up(F, lP); }

    std::size_t key_element() const { return element(layout_.key_dtype); }
    std::size_t value_element() const { return element(layout_.value_dtype); }
    std::size_t key_head_bytes() const { return key_head() * key_element(); }
    std::size_t value_head_bytes() const { return value_head() * value_element(); }

    /// Bytes from one head to the next.
    std::size_t key_stride() const {
        return layout_.key_head_stride != 0 ? layout_.key_head_stride : key_head_bytes();
    }
    std::size_t value_stride() const {
        return layout_.value_head_stride != 0 ? layout_.value_head_stride : value_head_bytes();
    }

    /// The whole buffers, up to the end of the last head.
    std::size_t key_bytes() const { return (layout_.kv_heads - 1) * key_stride() + key_head_bytes(); }
    std::size_t value_bytes() const { return (layout_.kv_heads - 1) * value_stride() + value_head_bytes(); }

private:
    static std::size_t element(std::uint32_t dtype) { return dtype == MNNKV_DTYPE_F32 ? 4 : 2; }

    mnnkv_layout layout_;
    std::size_t D, lP, hP, F;
};

}  // namespace oracle

#endif  // MNNKV_TESTS_ORACLE_PACKING_HPP
